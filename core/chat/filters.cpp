#include "core/chat/library.h"
#include "core/model/tokenizer/unicode.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <map>

namespace kvscope::chat {
namespace {

using Filter = Value (*)(const Value&, const Given&, Budget&);

/// Calls a method of texts as a filter, on the text as which the value is printed.
Value asMethod(const char* name, const Value& value, const Arguments& arguments, Budget& budget) {
    return findMethod(Value(shownAs(value, budget)), name, budget)->callable().call(arguments);
}

Value length(const Value& value, const Given& given, Budget& budget) {
    if (value.isString()) return characterCount(value.string(), budget);
    if (!value.isList() && !value.isDict() && !value.isUndefined())
        given.wrong(fmt::format("{} has no length", value.typeName()));
    return std::int64_t(itemsOf(value, budget).size());
}

Value first(const Value& value, const Given&, Budget& budget) {
    const List items = itemsOf(value, budget);
    return items.empty() ? Value(Undefined{"the first item of nothing"}) : items.front();
}
Value last(const Value& value, const Given&, Budget& budget) {
    const List items = itemsOf(value, budget);
    return items.empty() ? Value(Undefined{"the last item of nothing"}) : items.back();
}

/// "a.b.0" of an item.
Value pathOf(const Value& item, const Value& path, Budget& budget) {
    if (path.isInt()) return itemOf(item, path, budget);
    const std::string names = shownAs(path, budget);
    Value value = item;
    for (std::size_t at = 0; at <= names.size();) {
        const std::size_t dot = std::min(names.find('.', at), names.size());
        const std::string name = names.substr(at, dot - at);
        const bool index = !name.empty() && name.size() < 10 &&
                           std::all_of(name.begin(), name.end(), [](char c) { return c >= '0' && c <= '9'; });
        value = itemOf(value, index ? Value(std::int64_t(std::stoll(name))) : Value(name), budget);
        at = dot + 1;
    }
    return value;
}

Value join(const Value& value, const Given& given, Budget& budget) {
    const Value* separator = given.find(0, "d");
    const Value* attribute = given.find(1, "attribute");
    const std::string between = separator ? shownAs(*separator, budget) : "";
    std::string out;
    bool begun = false;
    for (const Value& item : itemsOf(value, budget)) {
        if (std::exchange(begun, true)) out += between;
        budget.grow(between.size());
        out += shownAs(attribute ? pathOf(item, *attribute, budget) : item, budget);
    }
    return out;
}

Value orElse(const Value& value, const Given& given, Budget&) {
    const Value* fallback = given.find(0, "default_value");
    const bool missing = value.isUndefined() || (given.flag(1, "boolean", false) && !value.truthy());
    return !missing ? value : fallback ? *fallback : Value("");
}

Value toJson(const Value& value, const Given& given, Budget& budget) {
    JsonForm form;
    // Positions as in transformers: ensure_ascii, indent, separators, sort_keys.
    form.ascii = given.flag(0, "ensure_ascii", false);
    form.indent = int(std::clamp<std::int64_t>(given.integer(1, "indent", -1), -1, 64));
    if (const Value* separators = given.find(2, "separators"); separators && !separators->isNone()) {
        if (!separators->isList() || separators->list().size() != 2 || !separators->list()[0].isString() ||
            !separators->list()[1].isString())
            given.wrong("the separators are not a pair of texts");
        form.itemSeparator = separators->list()[0].string(), form.keySeparator = separators->list()[1].string();
    }
    form.sortKeys = given.flag(3, "sort_keys", false);
    if (value.isUndefined()) given.wrong(fmt::format("'{}' is undefined", value.undefinedName()));
    std::string out = jsonOf(value, form, budget);
    budget.grow(out.size());
    return out;
}

Value toText(const Value& value, const Given&, Budget& budget) { return shownAs(value, budget); }

Value toInteger(const Value& value, const Given& given, Budget&) {
    const std::int64_t fallback = given.integer(0, "default", 0);
    if (value.isInt() || value.isBool()) return value.integer();
    if (value.isFloat()) return std::fabs(value.number()) < 9e18 ? std::int64_t(value.number()) : fallback;
    if (!value.isString()) return fallback;
    try {
        std::size_t used = 0;
        const double number = std::stod(value.string(), &used);
        return used == value.string().size() && std::fabs(number) < 9e15 ? std::int64_t(number) : fallback;
    } catch (const std::exception&) {
        return fallback;
    }
}

Value toReal(const Value& value, const Given& given, Budget&) {
    const Value* fallback = given.find(0, "default");
    if (value.isNumber()) return value.number();
    try {
        if (value.isString()) return std::stod(value.string());
    } catch (const std::exception&) {
    }
    return fallback ? *fallback : Value(0.0);
}

Value toList(const Value& value, const Given&, Budget& budget) { return itemsOf(value, budget); }

Value reversed(const Value& value, const Given&, Budget& budget) {
    List items = itemsOf(value, budget);
    std::reverse(items.begin(), items.end());
    if (!value.isString()) return items;
    std::string out;
    for (const Value& item : items) out += item.string();
    return out;
}

Value lowerIfText(const Value& value) {
    return value.isString() ? Value(tokenizing::lowercased(value.string())) : value;
}

Value sorted(const Value& value, const Given& given, Budget& budget) {
    List items = itemsOf(value, budget);
    const Value* attribute = given.find(2, "attribute");
    const bool exact = given.flag(1, "case_sensitive", false), backwards = given.flag(0, "reverse", false);
    const auto key = [&](const Value& item) {
        const Value shown = attribute ? pathOf(item, *attribute, budget) : item;
        return exact ? shown : lowerIfText(shown);
    };
    std::stable_sort(items.begin(), items.end(), [&](const Value& a, const Value& b) {
        budget.step();
        return backwards ? compared("<", key(b), key(a), budget) : compared("<", key(a), key(b), budget);
    });
    return items;
}

Value unique(const Value& value, const Given&, Budget& budget) {
    List out, keys;
    for (const Value& item : itemsOf(value, budget)) {
        const Value key = lowerIfText(item);
        if (std::any_of(keys.begin(), keys.end(), [&](const Value& known) { return equal(known, key, budget); }))
            continue;
        keys.push_back(key);
        out.push_back(item);
    }
    return out;
}

Arguments behind(const Given& given, std::size_t count) {
    Arguments rest;
    for (const auto& argument : given.all())
        if (!argument.first.empty() || count == 0)
            rest.push_back(argument);
        else
            --count;
    return rest;
}

Value mapped(const Value& value, const Given& given, Budget& budget) {
    List out;
    const Value *attribute = given.find(99, "attribute"), *fallback = given.find(99, "default");
    if (value.isNone()) return out; // as in Jinja: nothing to choose from
    for (const Value& item : itemsOf(value, budget)) {
        budget.step();
        if (!attribute) {
            out.push_back(applyFilter(given.text(0), item, behind(given, 1), budget));
            continue;
        }
        Value found = pathOf(item, *attribute, budget);
        out.push_back(found.isUndefined() && fallback ? *fallback : found);
    }
    return out;
}

/// select, reject, selectattr and rejectattr differ in what is tested and what is kept.
Value chosen(const Value& value, const Given& given, Budget& budget, bool byAttribute, bool keep) {
    List out;
    const std::size_t testAt = byAttribute ? 1 : 0;
    if (value.isNone()) return out; // as in Jinja: nothing to choose from
    for (const Value& item : itemsOf(value, budget)) {
        budget.step();
        const Value tested = byAttribute ? pathOf(item, given.need(0), budget) : item;
        const bool holds = given.find(testAt) ? applyTest(given.text(testAt), tested, behind(given, testAt + 1), budget)
                                              : tested.truthy();
        if (holds == keep) out.push_back(item);
    }
    return out;
}

Value pairsOf(const Value& value, const Given& given, Budget&) {
    if (value.isUndefined()) return List{};
    if (!value.isDict()) given.wrong(fmt::format("{} is not a mapping", value.typeName()));
    List out;
    for (const auto& [key, item] : value.dict().entries()) out.push_back(Value::makeTuple({key, item}));
    return out;
}

Value sortedPairs(const Value& value, const Given& given, Budget& budget) {
    List pairs = pairsOf(value, given, budget).list();
    const bool exact = given.flag(0, "case_sensitive", false), backwards = given.flag(2, "reverse", false);
    const bool byValue = given.find(1, "by") && given.text(1, "by") == "value";
    const auto key = [&](const Value& pair) {
        const Value shown = pair.list()[byValue ? 1 : 0];
        return exact ? shown : lowerIfText(shown);
    };
    std::stable_sort(pairs.begin(), pairs.end(), [&](const Value& a, const Value& b) {
        return backwards ? compared("<", key(b), key(a), budget) : compared("<", key(a), key(b), budget);
    });
    return pairs;
}

Value indented(const Value& value, const Given& given, Budget& budget) {
    const Value* width = given.find(0, "width");
    const std::string indent =
        width && width->isString()
            ? width->string()
            : std::string(std::size_t(std::clamp<std::int64_t>(given.integer(0, "width", 4), 0, 1000)), ' ');
    const bool withFirst = given.flag(1, "first", false), blank = given.flag(2, "blank", false);
    const std::string text = shownAs(value, budget);
    std::string out;
    for (std::size_t at = 0; at <= text.size();) {
        const std::size_t end = std::min(text.find('\n', at), text.size());
        const bool begin = at == 0;
        if (begin ? withFirst : blank || end > at) {
            budget.grow(indent.size());
            out += indent;
        }
        out.append(text, at, end - at);
        if (end < text.size()) out += '\n';
        at = end + 1;
    }
    budget.grow(out.size());
    return out;
}

Value absolute(const Value& value, const Given& given, Budget& budget) {
    if (!value.isNumber()) given.wrong(fmt::format("{} has no size", value.typeName()));
    if (value.isFloat()) return std::fabs(value.number());
    return value.integer() < 0 ? binaryResult("-", 0, value.integer(), budget) : Value(value.integer());
}

Value rounded(const Value& value, const Given& given, Budget&) {
    if (!value.isNumber()) given.wrong(fmt::format("{} cannot be rounded", value.typeName()));
    const double scale = std::pow(10.0, double(std::clamp<std::int64_t>(given.integer(0, "precision", 0), -15, 15)));
    const std::string method = given.find(1, "method") ? given.text(1, "method") : "common";
    const double scaled = value.number() * scale;
    return (method == "floor"  ? std::floor(scaled)
            : method == "ceil" ? std::ceil(scaled)
                               : std::nearbyint(scaled)) /
           scale;
}

Value extreme(const Value& value, const Given& given, Budget& budget, const char* order) {
    const List items = itemsOf(value, budget);
    const Value* attribute = given.find(99, "attribute");
    const auto key = [&](const Value& item) {
        return lowerIfText(attribute ? pathOf(item, *attribute, budget) : item);
    };
    if (items.empty()) return Undefined{"an item of nothing"};
    Value best = items.front();
    for (const Value& item : items)
        if (compared(order, key(item), key(best), budget)) best = item;
    return best;
}

Value summed(const Value& value, const Given& given, Budget& budget) {
    const Value* attribute = given.find(0, "attribute");
    Value sum = given.find(1, "start") ? *given.find(1, "start") : Value(0);
    for (const Value& item : itemsOf(value, budget))
        sum = binaryResult("+", sum, attribute ? pathOf(item, *attribute, budget) : item, budget);
    return sum;
}

Value escaped(const Value& value, const Given&, Budget& budget) {
    std::string out;
    for (const char c : shownAs(value, budget))
        out += c == '&'    ? "&amp;"
               : c == '<'  ? "&lt;"
               : c == '>'  ? "&gt;"
               : c == '\'' ? "&#39;"
               : c == '"'  ? "&#34;"
                           : std::string(1, c);
    budget.grow(out.size());
    return out;
}

const std::map<std::string, Filter>& filters() {
    static const std::map<std::string, Filter> table = {
        {"length", length},
        {"count", length},
        {"first", first},
        {"last", last},
        {"join", join},
        {"default", orElse},
        {"d", orElse},
        {"tojson", toJson},
        {"string", toText},
        {"safe", toText},
        {"int", toInteger},
        {"float", toReal},
        {"list", toList},
        {"reverse", reversed},
        {"sort", sorted},
        {"unique", unique},
        {"map", mapped},
        {"items", pairsOf},
        {"dictsort", sortedPairs},
        {"indent", indented},
        {"abs", absolute},
        {"round", rounded},
        {"sum", summed},
        {"escape", escaped},
        {"e", escaped},
        {"select", [](const Value& v, const Given& g, Budget& b) { return chosen(v, g, b, false, true); }},
        {"reject", [](const Value& v, const Given& g, Budget& b) { return chosen(v, g, b, false, false); }},
        {"selectattr", [](const Value& v, const Given& g, Budget& b) { return chosen(v, g, b, true, true); }},
        {"rejectattr", [](const Value& v, const Given& g, Budget& b) { return chosen(v, g, b, true, false); }},
        {"min", [](const Value& v, const Given& g, Budget& b) { return extreme(v, g, b, "<"); }},
        {"max", [](const Value& v, const Given& g, Budget& b) { return extreme(v, g, b, ">"); }},
        {"trim", [](const Value& v, const Given& g, Budget& b) { return asMethod("strip", v, g.all(), b); }},
        {"upper", [](const Value& v, const Given& g, Budget& b) { return asMethod("upper", v, g.all(), b); }},
        {"lower", [](const Value& v, const Given& g, Budget& b) { return asMethod("lower", v, g.all(), b); }},
        {"title", [](const Value& v, const Given& g, Budget& b) { return asMethod("title", v, g.all(), b); }},
        {"capitalize", [](const Value& v, const Given& g, Budget& b) { return asMethod("capitalize", v, g.all(), b); }},
        {"replace", [](const Value& v, const Given& g, Budget& b) { return asMethod("replace", v, g.all(), b); }},
    };
    return table;
}

using Test = bool (*)(const Value&, const Given&, Budget&);

template <int Remainder> bool hasRemainder(const Value& value, const Given& given, Budget&) {
    if (!value.isInt()) given.wrong(fmt::format("{} is not a whole number", value.typeName()));
    return (value.integer() % 2 != 0) == (Remainder != 0);
}

const std::map<std::string, Test>& tests() {
    static const auto isEqual = [](const Value& v, const Given& g, Budget& b) { return equal(v, g.need(0), b); };
    static const auto isSequence = [](const Value& v, const Given&, Budget&) {
        return v.isString() || v.isList() || v.isDict() || v.isUndefined();
    };
    static const std::map<std::string, Test> table = {
        {"defined", [](const Value& v, const Given&, Budget&) { return !v.isUndefined(); }},
        {"undefined", [](const Value& v, const Given&, Budget&) { return v.isUndefined(); }},
        {"none", [](const Value& v, const Given&, Budget&) { return v.isNone(); }},
        {"string", [](const Value& v, const Given&, Budget&) { return v.isString(); }},
        {"mapping", [](const Value& v, const Given&, Budget&) { return v.isDict(); }},
        {"number", [](const Value& v, const Given&, Budget&) { return v.isNumber(); }},
        {"integer", [](const Value& v, const Given&, Budget&) { return v.isInt(); }},
        {"float", [](const Value& v, const Given&, Budget&) { return v.isFloat(); }},
        {"boolean", [](const Value& v, const Given&, Budget&) { return v.isBool(); }},
        {"true", [](const Value& v, const Given&, Budget&) { return v.isBool() && v.boolean(); }},
        {"false", [](const Value& v, const Given&, Budget&) { return v.isBool() && !v.boolean(); }},
        {"callable", [](const Value& v, const Given&, Budget&) { return v.isCallable(); }},
        {"sequence", isSequence},
        {"iterable", isSequence},
        {"even", hasRemainder<0>},
        {"odd", hasRemainder<1>},
        {"divisibleby",
         [](const Value& v, const Given& g, Budget&) {
             const std::int64_t by = g.integer(0, "num", 0);
             if (!v.isInt() || by == 0 || by == -1) return v.isInt() && by == -1;
             return v.integer() % by == 0;
         }},
        {"eq", isEqual},
        {"==", isEqual},
        {"equalto", isEqual},
        {"sameas", isEqual},
        {"!=", [](const Value& v, const Given& g, Budget& b) { return !equal(v, g.need(0), b); }},
        {"<", [](const Value& v, const Given& g, Budget& b) { return compared("<", v, g.need(0), b); }},
        {"<=", [](const Value& v, const Given& g, Budget& b) { return compared("<=", v, g.need(0), b); }},
        {">", [](const Value& v, const Given& g, Budget& b) { return compared(">", v, g.need(0), b); }},
        {">=", [](const Value& v, const Given& g, Budget& b) { return compared(">=", v, g.need(0), b); }},
        {"ne", [](const Value& v, const Given& g, Budget& b) { return !equal(v, g.need(0), b); }},
        {"lt", [](const Value& v, const Given& g, Budget& b) { return compared("<", v, g.need(0), b); }},
        {"lessthan", [](const Value& v, const Given& g, Budget& b) { return compared("<", v, g.need(0), b); }},
        {"le", [](const Value& v, const Given& g, Budget& b) { return compared("<=", v, g.need(0), b); }},
        {"gt", [](const Value& v, const Given& g, Budget& b) { return compared(">", v, g.need(0), b); }},
        {"greaterthan", [](const Value& v, const Given& g, Budget& b) { return compared(">", v, g.need(0), b); }},
        {"ge", [](const Value& v, const Given& g, Budget& b) { return compared(">=", v, g.need(0), b); }},
        {"in", [](const Value& v, const Given& g, Budget& b) { return compared("in", v, g.need(0), b); }},
        {"lower",
         [](const Value& v, const Given&, Budget& b) {
             const std::string text = shownAs(v, b);
             return tokenizing::lowercased(text) == text;
         }},
        {"filter", [](const Value& v, const Given&, Budget&) { return v.isString() && isFilter(v.string()); }},
        {"test", [](const Value& v, const Given&, Budget&) { return v.isString() && isTest(v.string()); }},
    };
    return table;
}

} // namespace

bool isFilter(const std::string& name) { return filters().contains(name); }
bool isTest(const std::string& name) { return tests().contains(name); }

Value applyFilter(const std::string& name, const Value& value, const Arguments& arguments, Budget& budget) {
    const auto found = filters().find(name);
    if (found == filters().end()) throw TemplateError{fmt::format("the filter '{}' is not supported", name)};
    budget.step();
    return found->second(value, Given("the filter " + name, arguments), budget);
}

bool applyTest(const std::string& name, const Value& value, const Arguments& arguments, Budget& budget) {
    const auto found = tests().find(name);
    if (found == tests().end()) throw TemplateError{fmt::format("the test '{}' is not supported", name)};
    return found->second(value, Given("the test " + name, arguments), budget);
}

} // namespace kvscope::chat
