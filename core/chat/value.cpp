#include "core/chat/value.h"

#include "core/model/tokenizer/unicode.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>

namespace kvscope::chat {

const Value* Dict::find(std::string_view key) const {
    for (const auto& [name, value] : entries_)
        if (name == key) return &value;
    return nullptr;
}

void Dict::set(const std::string& key, Value value) {
    for (auto& [name, held] : entries_)
        if (name == key) {
            held = std::move(value);
            return;
        }
    entries_.emplace_back(key, std::move(value));
}

void Value::contain(const Value& item) {
    constexpr std::uint16_t deepest = 200; // comparing, printing and destroying recurse
    if (item.depth_ >= deepest) throw TemplateError{"lists or mappings are nested too deeply"};
    depth_ = std::max(depth_, std::uint16_t(item.depth_ + 1));
    holdsNamespace_ = holdsNamespace_ || item.holdsNamespace_;
}

Value::Value(List value) : depth_(1) {
    for (const Value& item : value) contain(item);
    data_ = std::make_shared<const List>(std::move(value));
}

Value::Value(Dict value) : depth_(1) {
    for (const auto& [key, item] : value.entries()) contain(item);
    data_ = std::make_shared<Dict>(std::move(value));
}

bool Value::truthy() const {
    if (isUndefined() || isNone()) return false;
    if (isBool()) return boolean();
    if (isInt()) return integer() != 0;
    if (isFloat()) return number() != 0;
    if (isString()) return !string().empty();
    if (isList()) return !list().empty();
    if (isDict()) return !dict().entries().empty();
    return true;
}

const char* Value::typeName() const {
    if (isUndefined()) return "undefined";
    if (isNone()) return "none";
    if (isBool()) return "a truth value";
    if (isNumber()) return "a number";
    if (isString()) return "a text";
    if (isList()) return "a list";
    if (isDict()) return "a mapping";
    return isNamespace() ? "a namespace" : "a function";
}

bool equal(const Value& left, const Value& right, Budget& budget) {
    budget.visit();
    if (left.isNumber() && right.isNumber())
        return left.isFloat() || right.isFloat() ? left.number() == right.number() : left.integer() == right.integer();
    if (left.isUndefined() || left.isNone()) return left.isUndefined() ? right.isUndefined() : right.isNone();
    if (left.isString()) {
        if (!right.isString()) return false;
        if (left.string().size() == right.string().size()) budget.read(left.string().size());
        return left.string() == right.string();
    }
    if (left.isList()) {
        return right.isList() && left.isTuple() == right.isTuple() &&
               std::equal(left.list().begin(), left.list().end(), right.list().begin(), right.list().end(),
                          [&](const Value& a, const Value& b) { return equal(a, b, budget); });
    }
    if (left.isDict()) {
        if (!right.isDict() || left.dict().entries().size() != right.dict().entries().size()) return false;
        const auto& entries = left.dict().entries();
        return std::all_of(entries.begin(), entries.end(), [&](const auto& entry) {
            budget.step(entries.size()); // a mapping is searched from its first key on
            const Value* theirs = right.dict().find(entry.first);
            return theirs && equal(*theirs, entry.second, budget);
        });
    }
    if (left.isNamespace()) return right.isNamespace() && &left.members() == &right.members(); // the same object
    return left.isCallable() && right.isCallable() && &left.callable() == &right.callable();
}

namespace {

std::string floatText(double value) {
    if (std::isnan(value)) return "nan";
    if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
    const double size = std::fabs(value);
    if (value == std::floor(value) && size < 1e16) return fmt::format("{:.1f}", value);
    std::string text = fmt::format("{}", value); // the shortest that reads back the same, as in Python
    if (size != 0 && size < 1e-4 && text.find('e') == std::string::npos) text = fmt::format("{:e}", value);
    return text;
}

std::string quoted(const std::string& text) {
    const char quote = text.find('\'') != text.npos && text.find('"') == text.npos ? '"' : '\'';
    std::string out(1, quote);
    for (const char c : text) {
        if (c == quote || c == '\\')
            out += '\\', out += c;
        else if (c == '\n')
            out += "\\n";
        else if (c == '\r')
            out += "\\r";
        else if (c == '\t')
            out += "\\t";
        else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F)
            out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
        else
            out += c;
    }
    return out + quote;
}

std::string jsonString(const std::string& text, bool ascii) {
    std::string out = "\"";
    for (std::size_t at = 0; at < text.size();) {
        const std::size_t begin = at;
        const std::uint32_t c = tokenizing::nextCodePoint(text, at);
        if (c == '"' || c == '\\')
            out += '\\', out += char(c);
        else if (c == '\n')
            out += "\\n";
        else if (c == '\r')
            out += "\\r";
        else if (c == '\t')
            out += "\\t";
        else if (c == '\b')
            out += "\\b";
        else if (c == '\f')
            out += "\\f";
        else if (c < 0x20 || (ascii && c == 0x7F))
            out += c == 0x7F ? std::string("\x7F") : fmt::format("\\u{:04x}", c);
        else if (ascii && c >= 0x10000)
            out += fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + ((c - 0x10000) >> 10), 0xDC00 + ((c - 0x10000) & 0x3FF));
        else if (ascii && c >= 0x80)
            out += fmt::format("\\u{:04x}", c);
        else
            out.append(text, begin, at - begin);
    }
    return out + '"';
}

} // namespace

std::string shownAs(const Value& value, Budget& budget) {
    if (value.isUndefined()) return {};
    if (value.isString()) budget.grow(value.string().size());
    return value.isString() ? value.string() : represented(value, budget);
}

namespace {

/// Appends what represented() gives: a list within lists is not copied once for every one of them.
void represent(const Value& value, std::string& out, Budget& budget) {
    budget.visit();
    const auto append = [&](const std::string& text) {
        budget.grow(text.size());
        out += text;
    };
    if (value.isUndefined()) return append("Undefined");
    if (value.isNone()) return append("None");
    if (value.isBool()) return append(value.boolean() ? "True" : "False");
    if (value.isInt()) return append(fmt::format("{}", value.integer()));
    if (value.isFloat()) return append(floatText(value.number()));
    if (value.isString()) return append(quoted(value.string()));
    bool begun = false;
    if (value.isList()) {
        out += value.isTuple() ? '(' : '[';
        for (const Value& item : value.list()) {
            if (std::exchange(begun, true)) out += ", ";
            represent(item, out, budget);
        }
        if (value.isTuple() && value.list().size() == 1) out += ',';
        out += value.isTuple() ? ')' : ']';
        return;
    }
    if (!value.isDict()) throw TemplateError{fmt::format("{} cannot be printed", value.typeName())};
    out += '{';
    for (const auto& [key, item] : value.dict().entries()) {
        if (std::exchange(begun, true)) out += ", ";
        append(quoted(key));
        out += ": ";
        represent(item, out, budget);
    }
    out += '}';
}

} // namespace

std::string represented(const Value& value, Budget& budget) {
    std::string out;
    represent(value, out, budget);
    return out;
}

std::string jsonOf(const Value& value, const JsonForm& form, Budget& budget, int depth) {
    budget.visit();
    if (value.isNone()) return "null";
    if (value.isBool()) return value.boolean() ? "true" : "false";
    if (value.isInt()) return fmt::format("{}", value.integer());
    if (value.isFloat())
        return std::isfinite(value.number()) ? floatText(value.number())
               : std::isnan(value.number())  ? "NaN"
               : value.number() < 0          ? "-Infinity"
                                             : "Infinity";
    if (value.isString()) {
        budget.grow(value.string().size());
        return jsonString(value.string(), form.ascii);
    }
    if (!value.isList() && !value.isDict()) throw TemplateError{fmt::format("{} is not JSON", value.typeName())};
    const std::string lineBreak =
        form.indent < 0 ? "" : "\n" + std::string(std::size_t(form.indent) * std::size_t(depth + 1), ' ');
    // With an indent Python leaves out the space behind a comma, unless separators are given.
    const std::string separator = form.indent >= 0 && form.itemSeparator == ", " ? "," : form.itemSeparator;
    std::string out;
    const auto add = [&](const std::string& item) { out += (out.empty() ? "" : separator) + lineBreak + item; };
    if (value.isList()) {
        for (const Value& item : value.list()) add(jsonOf(item, form, budget, depth + 1));
    } else {
        auto entries = value.dict().entries();
        if (form.sortKeys)
            std::stable_sort(entries.begin(), entries.end(),
                             [](const auto& a, const auto& b) { return a.first < b.first; });
        for (const auto& [key, item] : entries)
            add(jsonString(key, form.ascii) + form.keySeparator + jsonOf(item, form, budget, depth + 1));
    }
    const char *open = value.isList() ? "[" : "{", *close = value.isList() ? "]" : "}";
    if (out.empty()) return std::string(open) + close;
    return open + out +
           (form.indent < 0 ? "" : "\n" + std::string(std::size_t(form.indent) * std::size_t(depth), ' ')) + close;
}

} // namespace kvscope::chat
