// Methods of texts, lists and mappings; none of them changes its object.
#include "core/chat/library.h"
#include "core/model/tokenizer/unicode.h"

#include <algorithm>
#include <fmt/format.h>
#include <map>

namespace kvscope::chat {
namespace {

using TextMethod = Value (*)(const std::string&, const Given&, Budget&);

/// Python's strip: white space, or any of the characters given.
std::string stripped(const std::string& text, const Given& given, Budget& budget, bool left, bool right) {
    const Value* set = given.find(0, "chars");
    std::string_view rest = text;
    if (!set || set->isNone()) {
        if (right) rest.remove_suffix(tokenizing::trailingWhiteSpace(rest));
        if (left) rest.remove_prefix(tokenizing::leadingWhiteSpace(rest));
        return std::string(rest);
    }
    if (!set->isString()) given.wrong("the characters to strip are not text");
    const List characters = charactersOf(set->string(), budget);
    const auto strip = [&](bool atEnd) {
        bool found = true;
        while (std::exchange(found, false)) {
            budget.read(characters.size());
            for (const Value& character : characters)
                if (!rest.empty() &&
                    (atEnd ? rest.ends_with(character.string()) : rest.starts_with(character.string()))) {
                    atEnd ? rest.remove_suffix(character.string().size())
                          : rest.remove_prefix(character.string().size());
                    found = true;
                    break;
                }
        }
    };
    if (right) strip(true);
    if (left) strip(false);
    return std::string(rest);
}

List splitAtSpaces(std::string_view text, std::int64_t most, Budget& budget, bool fromRight) {
    List parts;
    while (true) {
        text.remove_prefix(fromRight ? 0 : tokenizing::leadingWhiteSpace(text));
        text.remove_suffix(fromRight ? tokenizing::trailingWhiteSpace(text) : 0);
        if (text.empty()) break;
        if (most == 0) {
            if (fromRight) text.remove_prefix(0);
            parts.emplace_back(std::string(text));
            break;
        }
        --most;
        if (fromRight) budget.read(text.size()); // each time from its beginning on
        std::size_t at = 0, end = text.size(), lastSpace = text.npos;
        for (std::size_t i = 0; i < text.size();) {
            const std::size_t begin = i;
            if (!tokenizing::isWhiteSpace(tokenizing::nextCodePoint(text, i))) continue;
            if (!fromRight) {
                end = begin;
                break;
            }
            lastSpace = i;
        }
        if (fromRight) {
            at = lastSpace == text.npos ? 0 : lastSpace;
            parts.emplace_back(std::string(text.substr(at)));
            text = text.substr(0, at);
        } else {
            parts.emplace_back(std::string(text.substr(0, end)));
            text = text.substr(end);
        }
    }
    if (fromRight) std::reverse(parts.begin(), parts.end());
    return parts;
}

Value split(const std::string& text, const Given& given, Budget& budget, bool fromRight) {
    const Value* separator = given.find(0, "sep");
    std::int64_t most = given.integer(1, "maxsplit", -1);
    budget.grow(text.size() + sizeof(Value) * std::size_t(std::count(text.begin(), text.end(), ' ') + 1));
    if (!separator || separator->isNone()) return splitAtSpaces(text, most, budget, fromRight);
    if (!separator->isString() || separator->string().empty()) given.wrong("the separator is not text, or empty");
    const std::string& between = separator->string();
    List parts;
    std::string_view rest = text;
    while (most != 0) {
        budget.step();
        const std::size_t found = fromRight ? findLastText(rest, between, budget) : findText(rest, between, budget);
        if (found == rest.npos) break;
        --most;
        if (fromRight) {
            parts.emplace_back(std::string(rest.substr(found + between.size())));
            rest = rest.substr(0, found);
        } else {
            parts.emplace_back(std::string(rest.substr(0, found)));
            rest.remove_prefix(found + between.size());
        }
    }
    parts.emplace_back(std::string(rest));
    if (fromRight) std::reverse(parts.begin(), parts.end());
    return parts;
}

/// startswith and endswith take one text or several.
Value affix(const std::string& text, const Given& given, Budget& budget, bool atEnd) {
    const auto fits = [&](const Value& what) {
        budget.step();
        if (!what.isString()) given.wrong(fmt::format("{} is given where a text is needed", what.typeName()));
        budget.read(what.string().size());
        return atEnd ? text.ends_with(what.string()) : text.starts_with(what.string());
    };
    const Value& what = given.need(0);
    if (!what.isList()) return fits(what);
    return std::any_of(what.list().begin(), what.list().end(), fits);
}

Value replaced(const std::string& text, const Given& given, Budget& budget) {
    const std::string from = given.text(0, "old"), to = given.text(1, "new");
    std::int64_t most = given.integer(2, "count", -1);
    std::string out;
    if (from.empty()) { // between all characters
        for (const Value& character : charactersOf(text, budget)) {
            if (most-- != 0) {
                budget.grow(to.size());
                out += to;
            } else {
                most = 0;
            }
            out += character.string();
        }
        if (most != 0) out += to;
        budget.grow(out.size());
        return out;
    }
    std::string_view rest = text;
    for (std::size_t found; most != 0 && (found = findText(rest, from, budget)) != rest.npos; --most) {
        out.append(rest.substr(0, found)).append(to);
        budget.grow(to.size());
        rest.remove_prefix(found + from.size());
    }
    out.append(rest);
    budget.grow(out.size());
    return out;
}

Value positionIn(const std::string& text, const Given& given, Budget& budget, bool fromRight) {
    const std::string what = given.text(0);
    const std::size_t found = fromRight ? findLastText(text, what, budget) : findText(text, what, budget);
    if (found == text.npos) return -1;
    return characterCount(std::string_view(text).substr(0, found), budget);
}

std::string titled(const std::string& text, bool everyWord, Budget& budget) {
    std::string out;
    bool inside = false;
    for (const Value& character : charactersOf(text, budget)) {
        const std::string& c = character.string();
        std::size_t at = 0;
        const bool letter = tokenizing::lowercased(c) != tokenizing::uppercased(c) ||
                            (everyWord && !c.empty() && tokenizing::nextCodePoint(c, at) > 0x7F);
        out += inside ? tokenizing::lowercased(c) : tokenizing::uppercased(c);
        inside = everyWord ? letter : true;
    }
    return out;
}

Value lines(const std::string& text, const Given& given, Budget& budget) {
    const bool keep = given.flag(0, "keepends", false);
    List out;
    for (std::size_t at = 0; at < text.size();) {
        std::size_t end = text.find_first_of("\n\r", at);
        std::size_t next = end == text.npos ? text.size() : end + (text.compare(end, 2, "\r\n") == 0 ? 2 : 1);
        end = std::min(end, text.size());
        out.emplace_back(text.substr(at, (keep ? next : end) - at));
        at = next;
    }
    budget.grow(text.size() + out.size() * sizeof(Value));
    return out;
}

template <class Holds> bool every(const std::string& text, const Holds& holds) {
    for (std::size_t at = 0; at < text.size();)
        if (!holds(tokenizing::nextCodePoint(text, at))) return false;
    return !text.empty();
}

const std::map<std::string, TextMethod>& textMethods() {
    static const std::map<std::string, TextMethod> table = {
        {"strip",
         [](const std::string& s, const Given& g, Budget& b) -> Value { return stripped(s, g, b, true, true); }},
        {"lstrip",
         [](const std::string& s, const Given& g, Budget& b) -> Value { return stripped(s, g, b, true, false); }},
        {"rstrip",
         [](const std::string& s, const Given& g, Budget& b) -> Value { return stripped(s, g, b, false, true); }},
        {"split", [](const std::string& s, const Given& g, Budget& b) { return split(s, g, b, false); }},
        {"rsplit", [](const std::string& s, const Given& g, Budget& b) { return split(s, g, b, true); }},
        {"splitlines", lines},
        {"startswith", [](const std::string& s, const Given& g, Budget& b) { return affix(s, g, b, false); }},
        {"endswith", [](const std::string& s, const Given& g, Budget& b) { return affix(s, g, b, true); }},
        {"replace", replaced},
        {"find", [](const std::string& s, const Given& g, Budget& b) { return positionIn(s, g, b, false); }},
        {"rfind", [](const std::string& s, const Given& g, Budget& b) { return positionIn(s, g, b, true); }},
        {"upper", [](const std::string& s, const Given&, Budget&) -> Value { return tokenizing::uppercased(s); }},
        {"lower", [](const std::string& s, const Given&, Budget&) -> Value { return tokenizing::lowercased(s); }},
        {"title", [](const std::string& s, const Given&, Budget& b) -> Value { return titled(s, true, b); }},
        {"capitalize", [](const std::string& s, const Given&, Budget& b) -> Value { return titled(s, false, b); }},
        {"count",
         [](const std::string& s, const Given& g, Budget& b) -> Value {
             const std::string what = g.text(0);
             if (what.empty()) return characterCount(s, b) + 1;
             std::int64_t count = 0;
             std::string_view rest = s;
             for (std::size_t at; (at = findText(rest, what, b)) != rest.npos; ++count)
                 rest.remove_prefix(at + what.size());
             return count;
         }},
        {"join",
         [](const std::string& s, const Given& g, Budget& b) -> Value {
             std::string out;
             bool begun = false;
             for (const Value& item : itemsOf(g.need(0), b)) {
                 if (!item.isString()) g.wrong(fmt::format("{} is given where a text is needed", item.typeName()));
                 if (std::exchange(begun, true)) out += s;
                 out += item.string();
                 b.grow(s.size() + item.string().size());
             }
             return out;
         }},
        {"removeprefix",
         [](const std::string& s, const Given& g, Budget&) -> Value {
             return s.starts_with(g.text(0)) ? s.substr(g.text(0).size()) : s;
         }},
        {"removesuffix",
         [](const std::string& s, const Given& g, Budget&) -> Value {
             return s.ends_with(g.text(0)) ? s.substr(0, s.size() - g.text(0).size()) : s;
         }},
        {"isspace",
         [](const std::string& s, const Given&, Budget&) -> Value { return every(s, tokenizing::isWhiteSpace); }},
        {"isdigit",
         [](const std::string& s, const Given&, Budget&) -> Value {
             return every(s, [](std::uint32_t c) { return c >= '0' && c <= '9'; });
         }},
    };
    return table;
}

std::optional<Value> bound(const std::string& name, std::function<Value(const Given&)> call) {
    return Value(Callable{
        name, [name, call = std::move(call)](const Arguments& arguments) { return call(Given(name, arguments)); }});
}

std::optional<Value> mappingMethod(const Value& value, const std::string& name, Budget& budget) {
    if (name == "get")
        return bound(name, [value](const Given& given) {
            const Value &key = given.need(0), *fallback = given.find(1);
            const Value* found = key.isString() ? value.dict().find(key.string()) : nullptr;
            return found ? *found : fallback ? *fallback : Value(None{});
        });
    if (name != "items" && name != "keys" && name != "values") return std::nullopt;
    return bound(name, [value, name, &budget](const Given&) -> Value {
        List out;
        budget.step(value.dict().entries().size());
        for (const auto& [key, item] : value.dict().entries())
            out.push_back(name == "items" ? Value::makeTuple({key, item}) : name == "keys" ? Value(key) : item);
        return out;
    });
}

} // namespace

std::optional<Value> findMethod(const Value& value, const std::string& name, Budget& budget) {
    if (value.isDict()) return mappingMethod(value, name, budget);
    if (value.isList() && (name == "count" || name == "index"))
        return bound(name, [value, name, &budget](const Given& given) -> Value {
            const List& items = value.list();
            const Value& wanted = given.need(0);
            const auto matches = [&](const Value& item) { return equal(item, wanted, budget); };
            if (name == "count") return std::int64_t(std::count_if(items.begin(), items.end(), matches));
            const auto found = std::find_if(items.begin(), items.end(), matches);
            if (found == items.end()) given.wrong("the item is not in the list");
            return std::int64_t(found - items.begin());
        });
    if (!value.isString()) return std::nullopt;
    const auto found = textMethods().find(name);
    if (found == textMethods().end()) return std::nullopt;
    return bound(name, [value, method = found->second, &budget](const Given& given) {
        budget.step();
        budget.grow(value.string().size());
        return method(value.string(), given, budget);
    });
}

} // namespace kvscope::chat
