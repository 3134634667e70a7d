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

bool Value::operator==(const Value& other) const {
    if (isNumber() && other.isNumber())
        return isFloat() || other.isFloat() ? number() == other.number() : integer() == other.integer();
    if (data_.index() != other.data_.index() || isNamespace_ != other.isNamespace_ || isTuple_ != other.isTuple_)
        return false;
    if (isUndefined() || isNone()) return true;
    if (isString()) return string() == other.string();
    if (isList()) return list() == other.list();
    if (isDict()) {
        const auto& mine = dict().entries();
        return mine.size() == other.dict().entries().size() &&
               std::all_of(mine.begin(), mine.end(), [&](const auto& e) {
                   const Value* theirs = other.dict().find(e.first);
                   return theirs && *theirs == e.second;
               });
    }
    return isNamespace() ? &members() == &other.members() : &callable() == &other.callable(); // the same object
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

std::string shownAs(const Value& value) {
    if (value.isUndefined()) return {};
    return value.isString() ? value.string() : represented(value);
}

std::string represented(const Value& value) {
    if (value.isUndefined()) return "Undefined";
    if (value.isNone()) return "None";
    if (value.isBool()) return value.boolean() ? "True" : "False";
    if (value.isInt()) return fmt::format("{}", value.integer());
    if (value.isFloat()) return floatText(value.number());
    if (value.isString()) return quoted(value.string());
    std::string out;
    if (value.isList()) {
        for (const Value& item : value.list()) out += (out.empty() ? "" : ", ") + represented(item);
        if (value.isTuple()) return "(" + out + (value.list().size() == 1 ? ",)" : ")");
        return "[" + out + "]";
    }
    if (value.isDict()) {
        for (const auto& [key, item] : value.dict().entries())
            out += (out.empty() ? "" : ", ") + quoted(key) + ": " + represented(item);
        return "{" + out + "}";
    }
    throw TemplateError{fmt::format("{} cannot be printed", value.typeName())};
}

std::string jsonOf(const Value& value, const JsonForm& form, int depth) {
    if (value.isNone()) return "null";
    if (value.isBool()) return value.boolean() ? "true" : "false";
    if (value.isInt()) return fmt::format("{}", value.integer());
    if (value.isFloat())
        return std::isfinite(value.number()) ? floatText(value.number())
               : std::isnan(value.number())  ? "NaN"
               : value.number() < 0          ? "-Infinity"
                                             : "Infinity";
    if (value.isString()) return jsonString(value.string(), form.ascii);
    if (!value.isList() && !value.isDict()) throw TemplateError{fmt::format("{} is no JSON", value.typeName())};
    const std::string lineBreak =
        form.indent < 0 ? "" : "\n" + std::string(std::size_t(form.indent) * std::size_t(depth + 1), ' ');
    // With an indent Python leaves out the space behind a comma, unless separators are given.
    const std::string separator = form.indent >= 0 && form.itemSeparator == ", " ? "," : form.itemSeparator;
    std::string out;
    const auto add = [&](const std::string& item) { out += (out.empty() ? "" : separator) + lineBreak + item; };
    if (value.isList()) {
        for (const Value& item : value.list()) add(jsonOf(item, form, depth + 1));
    } else {
        auto entries = value.dict().entries();
        if (form.sortKeys)
            std::stable_sort(entries.begin(), entries.end(),
                             [](const auto& a, const auto& b) { return a.first < b.first; });
        for (const auto& [key, item] : entries)
            add(jsonString(key, form.ascii) + form.keySeparator + jsonOf(item, form, depth + 1));
    }
    const char *open = value.isList() ? "[" : "{", *close = value.isList() ? "]" : "}";
    if (out.empty()) return std::string(open) + close;
    return open + out +
           (form.indent < 0 ? "" : "\n" + std::string(std::size_t(form.indent) * std::size_t(depth), ' ')) + close;
}

} // namespace kvscope::chat
