#include "core/trace/knowledge.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace kvscope {

std::string Knowledge::list(bool missing) const {
    static constexpr std::array<const char*, kKnownCount> names{
        "selected blocks", "hits and misses", "bytes", "transfer times", "exposed times", "step times", "stage times"};
    std::string text;
    for (int i = 0; i < kKnownCount; ++i)
        if (has(Known(i)) != missing) text += (text.empty() ? "" : ", ") + std::string(names[std::size_t(i)]);
    return text;
}

std::string Knowledge::toJson() const {
    nlohmann::json words = nlohmann::json::array();
    for (int i = 0; i < kKnownCount; ++i)
        if (has(Known(i))) words.push_back(std::string(kKnownNames[std::size_t(i)]));
    return words.dump();
}

std::optional<Knowledge> Knowledge::parse(std::string_view json) {
    constexpr std::size_t longest = 4096; // of a list of a few words: nothing nests deeply in it
    const auto words = json.size() > longest ? nlohmann::json() : nlohmann::json::parse(json, nullptr, false);
    if (!words.is_array()) return std::nullopt;
    Knowledge known = nothing();
    for (const auto& word : words) {
        if (!word.is_string()) return std::nullopt;
        const auto at = std::find(kKnownNames.begin(), kKnownNames.end(), word.get_ref<const std::string&>());
        if (at != kKnownNames.end()) known = known.with(Known(at - kKnownNames.begin()));
    }
    return known;
}

} // namespace kvscope
