// A strict reader of markup, for tests of documents that hold strangers' text: what is open is closed, attributes are
// quoted and none comes twice, `<` and `&` mean markup only.
#pragma once

#include <algorithm>
#include <cctype>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace kvscope::test {

struct Markup {
    std::string error; // empty: well formed
    std::map<std::string, int> elements, attributes;
};

inline Markup parseMarkup(std::string_view text) {
    Markup markup;
    std::vector<std::string> open;
    std::size_t at = 0;
    const auto fail = [&](const std::string& what) {
        markup.error = what + " at " + std::to_string(at) + ": " + std::string(text.substr(at, 80));
        return markup;
    };
    const auto isName = [](char c) {
        return std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == ':' || c == '_';
    };
    const auto entitiesAreWhole = [](std::string_view words) {
        for (std::size_t i = 0; (i = words.find('&', i)) != std::string_view::npos; ++i) {
            const std::size_t end = words.find(';', i);
            if (end == std::string_view::npos || end == i + 1 || end - i > 10) return false;
        }
        return true;
    };
    while (at < text.size()) {
        const std::size_t tag = text.find('<', at);
        if (!entitiesAreWhole(text.substr(at, tag - at))) return fail("a bare & before");
        if (tag == std::string_view::npos) break;
        at = tag;
        for (const auto& [begin, end] : {std::pair<std::string_view, std::string_view>{"<!--", "-->"},
                                         {"<![CDATA[", "]]>"},
                                         {"<?", "?>"},
                                         {"<!", ">"}})
            if (text.substr(at).starts_with(begin)) {
                const std::size_t close = text.find(end, at);
                if (close == std::string_view::npos) return fail("not closed");
                at = close + end.size();
                break;
            }
        if (at != tag) continue;
        const bool closes = text.substr(at, 2) == "</";
        std::size_t end = at + (closes ? 2 : 1);
        const std::size_t nameAt = end;
        while (end < text.size() && isName(text[end])) ++end;
        const std::string name(text.substr(nameAt, end - nameAt));
        if (name.empty()) return fail("a bare <");
        if (closes) {
            if (text[end] != '>' || open.empty() || open.back() != name) return fail("closes what is not open");
            open.pop_back();
            at = end + 1;
            continue;
        }
        ++markup.elements[name];
        std::vector<std::string> seen;
        for (;;) {
            const bool blank = end < text.size() && std::isspace(static_cast<unsigned char>(text[end]));
            while (end < text.size() && std::isspace(static_cast<unsigned char>(text[end]))) ++end;
            if (text.substr(end, 2) == "/>" || text.substr(end, 1) == ">") break;
            const std::size_t keyAt = end;
            while (end < text.size() && isName(text[end])) ++end;
            const std::string key(text.substr(keyAt, end - keyAt));
            if (!blank || key.empty() || std::find(seen.begin(), seen.end(), key) != seen.end())
                return fail("no attribute of <" + name + ">");
            seen.push_back(key);
            ++markup.attributes[key];
            if (text[end] != '=' || (text[end + 1] != '"' && text[end + 1] != '\''))
                return fail("an attribute without quotes");
            const std::size_t close = text.find(text[end + 1], end + 2);
            if (close == std::string_view::npos || !entitiesAreWhole(text.substr(end + 2, close - end - 2)) ||
                text.substr(end + 2, close - end - 2).find('<') != std::string_view::npos)
                return fail("a value that is none");
            end = close + 1;
        }
        const bool alone = text[end] == '/';
        if (!alone) open.push_back(name);
        at = end + (alone ? 2 : 1);
        // The text of script and style holds no markup.
        if (!alone && (name == "script" || name == "style")) {
            const std::size_t close = text.find("</" + name + ">", at);
            if (close == std::string_view::npos) return fail("not closed");
            at = close;
        }
    }
    if (!open.empty()) markup.error = "<" + open.back() + "> is not closed";
    return markup;
}

} // namespace kvscope::test
