// JSON from files that may be damaged: parsing that cannot exhaust the stack, and texts fit for a message.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace kvscope {

/// The parsed text; discarded when it is malformed or nested deeper than any model file is.
inline nlohmann::json parseJson(std::string_view text) {
    constexpr int deepest = 64;
    int depth = 0;
    bool quoted = false;
    for (std::size_t i = 0; i < text.size(); ++i) {
        const char c = text[i];
        if (quoted && c == '\\')
            ++i;
        else if (c == '"')
            quoted = !quoted;
        else if (!quoted && (c == '[' || c == '{') && ++depth > deepest)
            return nlohmann::json(nlohmann::json::value_t::discarded);
        else if (!quoted && (c == ']' || c == '}'))
            --depth;
    }
    return nlohmann::json::parse(text, nullptr, false);
}

/// A member of an object, not copied; null when it is absent or `object` is not an object.
inline const nlohmann::json& member(const nlohmann::json& object, const char* key) {
    static const nlohmann::json null;
    if (!object.is_object()) return null;
    const auto found = object.find(key);
    return found == object.end() ? null : *found;
}

/// A text of a file, made fit for a message: on one line, cut behind 80 bytes. `text` is valid UTF-8, as the texts of
/// parsed JSON are.
inline std::string shown(std::string_view text) {
    constexpr std::size_t longest = 80;
    std::size_t end = std::min(text.size(), longest);
    while (end < text.size() && end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
    std::string out(text.substr(0, end));
    for (char& c : out)
        if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) c = '?';
    return end < text.size() ? out + "..." : out;
}
inline std::string shownJson(const nlohmann::json& value) { return shown(std::string_view(value.dump())); }

} // namespace kvscope
