#include "core/chat/library.h"

#include "core/model/tokenizer/unicode.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <ctime>
#include <fmt/format.h>

namespace kvscope::chat {

const Value* Given::find(std::size_t position, const char* name) const {
    std::size_t seen = 0;
    for (const auto& [key, value] : arguments_)
        if (key.empty() ? seen++ == position : key == name) return &value;
    return nullptr;
}
const Value& Given::need(std::size_t position, const char* name) const {
    if (const Value* value = find(position, name)) return *value;
    wrong("an argument is missing");
}
std::string Given::text(std::size_t position, const char* name) const {
    const Value& value = need(position, name);
    if (!value.isString()) wrong(fmt::format("{} is given where a text is needed", value.typeName()));
    return value.string();
}
std::int64_t Given::integer(std::size_t position, const char* name, std::int64_t fallback) const {
    const Value* value = find(position, name);
    if (!value || value->isNone()) return fallback;
    if (!value->isInt() && !value->isBool())
        wrong(fmt::format("{} is given where a whole number is needed", value->typeName()));
    return value->integer();
}
bool Given::flag(std::size_t position, const char* name, bool fallback) const {
    const Value* value = find(position, name);
    return value ? value->truthy() : fallback;
}
std::size_t Given::positional() const {
    return std::size_t(
        std::count_if(arguments_.begin(), arguments_.end(), [](const auto& a) { return a.first.empty(); }));
}
void Given::wrong(const std::string& why) const { throw TemplateError{fmt::format("{}: {}", what_, why)}; }

namespace {

[[noreturn]] void refuseUndefined(const Value& value) {
    throw TemplateError{fmt::format("'{}' is undefined", value.undefinedName())};
}

[[noreturn]] void mismatch(const std::string& name, const Value& left, const Value& right) {
    for (const Value* value : {&left, &right})
        if (value->isUndefined()) refuseUndefined(*value);
    throw TemplateError{fmt::format("'{}' does not work on {} and {}", name, left.typeName(), right.typeName())};
}

void refuseOverflow(bool overflowed) {
    if (overflowed) throw TemplateError{"a number becomes too large"};
}

Value integerResult(const std::string& name, std::int64_t a, std::int64_t b) {
    std::int64_t out = 0;
    if (name == "+" || name == "-" || name == "*") {
        refuseOverflow(name == "+"   ? __builtin_add_overflow(a, b, &out)
                       : name == "-" ? __builtin_sub_overflow(a, b, &out)
                                     : __builtin_mul_overflow(a, b, &out));
        return out;
    }
    if (name == "**") {
        if (b < 0) return std::pow(double(a), double(b));
        std::int64_t result = 1;
        for (std::int64_t i = 0; i < b && result != 0 && !(a == 1 && i > 0); ++i) {
            if (i > 64 && a == -1) return b % 2 == 0 ? 1 : -1;
            refuseOverflow(__builtin_mul_overflow(result, a, &result));
        }
        return result;
    }
    if (b == 0) throw TemplateError{"a division by zero"};
    if (name == "/") return double(a) / double(b);
    if (b == -1) return name == "%" ? Value(0) : integerResult("-", 0, a); // the least number has no opposite
    const std::int64_t rest = a % b, floored = a / b - (rest != 0 && (rest < 0) != (b < 0) ? 1 : 0);
    return name == "//" ? floored : a - floored * b;
}

Value realResult(const std::string& name, double a, double b) {
    if (name == "+") return a + b;
    if (name == "-") return a - b;
    if (name == "*") return a * b;
    if (name == "**") return std::pow(a, b);
    if (b == 0) throw TemplateError{"a division by zero"};
    if (name == "/") return a / b;
    if (name == "//") return std::floor(a / b);
    return a - std::floor(a / b) * b;
}

Value characterAt(const std::string& text, std::int64_t index) {
    std::size_t at = 0;
    for (; index > 0; --index) at += tokenizing::utf8Length(text[at]);
    return text.substr(at, tokenizing::utf8Length(text[at]));
}

} // namespace

Value binaryResult(const std::string& name, const Value& left, const Value& right, Budget& budget) {
    if (name == "~") {
        return shownAs(left, budget) + shownAs(right, budget);
    }
    if (left.isNumber() && right.isNumber())
        return left.isFloat() || right.isFloat() ? realResult(name, left.number(), right.number())
                                                 : integerResult(name, left.integer(), right.integer());
    if (name == "+" && left.isString() && right.isString()) {
        budget.grow(left.string().size() + right.string().size());
        return left.string() + right.string();
    }
    if (name == "+" && left.isList() && right.isList()) {
        budget.grow((left.list().size() + right.list().size()) * sizeof(Value));
        List out = left.list();
        out.insert(out.end(), right.list().begin(), right.list().end());
        return out;
    }
    if (name == "*" && (left.isString() || right.isString()) && (left.isInt() || right.isInt())) {
        const std::string& text = left.isString() ? left.string() : right.string();
        const std::int64_t times = std::clamp<std::int64_t>((left.isString() ? right : left).integer(), 0, 1 << 30);
        budget.grow(text.size() * std::size_t(times));
        std::string out;
        out.reserve(text.size() * std::size_t(times));
        for (std::int64_t i = 0; i < times && !text.empty(); ++i) out += text;
        return out;
    }
    mismatch(name, left, right);
}

bool compared(const std::string& name, const Value& left, const Value& right, Budget& budget) {
    if (name == "==") return equal(left, right, budget);
    if (name == "!=") return !equal(left, right, budget);
    if (name == "not in") return !compared("in", left, right, budget);
    if (name == "in") {
        if (right.isUndefined()) return false;
        if (right.isString()) {
            if (!left.isString()) mismatch(name, left, right);
            return findText(right.string(), left.string(), budget) != std::string::npos;
        }
        if (right.isDict()) return left.isString() && right.dict().find(left.string());
        if (!right.isList()) mismatch(name, left, right);
        return std::any_of(right.list().begin(), right.list().end(),
                           [&](const Value& item) { return equal(item, left, budget); });
    }
    int order = 0;
    if (left.isNumber() && right.isNumber())
        order = left.number() < right.number() ? -1 : left.number() > right.number() ? 1 : 0;
    else if (left.isString() && right.isString()) {
        budget.read(std::min(left.string().size(), right.string().size()));
        order = left.string().compare(right.string());
    } else
        mismatch(name, left, right);
    return name == "<" ? order < 0 : name == "<=" ? order <= 0 : name == ">" ? order > 0 : order >= 0;
}

std::size_t findText(std::string_view text, std::string_view what, Budget& budget) {
    budget.read(what.size());
    // Unlike std::string_view's find, memmem needs time for the text's length alone, whatever the two texts are.
    const void* at = memmem(text.data(), text.size(), what.data(), what.size());
    const std::size_t found = at ? std::size_t(static_cast<const char*>(at) - text.data()) : text.npos;
    budget.read(std::min(found, text.size()));
    return found;
}

std::size_t findLastText(std::string_view text, std::string_view what, Budget& budget) {
    const std::string backwards(text.rbegin(), text.rend()), wanted(what.rbegin(), what.rend());
    budget.grow(backwards.size());
    const std::size_t found = findText(backwards, wanted, budget);
    return found == text.npos ? found : text.size() - found - what.size();
}

std::int64_t characterCount(std::string_view text, Budget& budget) {
    budget.read(text.size());
    std::int64_t count = 0;
    for (std::size_t at = 0; at < text.size(); ++count) at += tokenizing::utf8Length(text[at]);
    return count;
}

List charactersOf(const std::string& text, Budget& budget) {
    budget.grow(std::size_t(characterCount(text, budget)) * sizeof(Value));
    List out;
    for (std::size_t at = 0; at < text.size();) {
        const std::size_t size = std::min(tokenizing::utf8Length(text[at]), text.size() - at);
        out.emplace_back(text.substr(at, size));
        at += size;
    }
    return out;
}

List itemsOf(const Value& value, Budget& budget) {
    if (value.isUndefined()) return {};
    if (value.isList()) {
        budget.read(value.list().size() * sizeof(Value)); // a copy
        return value.list();
    }
    List out;
    if (value.isString()) {
        out = charactersOf(value.string(), budget);
    } else if (value.isDict()) {
        for (const auto& [key, item] : value.dict().entries()) out.emplace_back(key);
        budget.read(out.size() * sizeof(Value));
    } else {
        throw TemplateError{fmt::format("{} cannot be walked through", value.typeName())};
    }
    return out;
}

Value attributeOf(const Value& value, const std::string& name, Budget& budget) {
    if (value.isUndefined()) refuseUndefined(value);
    if (auto method = findMethod(value, name, budget)) return *method;
    if (value.isDict() || value.isNamespace()) {
        const Value* found = (value.isNamespace() ? value.members() : value.dict()).find(name);
        if (found) return *found;
    }
    return Undefined{name};
}

Value itemOf(const Value& value, const Value& key, Budget& budget) {
    if (value.isUndefined()) refuseUndefined(value);
    if (key.isString()) {
        if (value.isDict())
            if (const Value* found = value.dict().find(key.string())) return *found;
        return attributeOf(value, key.string(), budget);
    }
    if ((value.isList() || value.isString()) && (key.isInt() || key.isBool())) {
        const std::int64_t size =
            value.isList() ? std::int64_t(value.list().size()) : characterCount(value.string(), budget);
        std::int64_t at = key.integer();
        if (at < 0 && at >= -size) at += size;
        if (at >= 0 && at < size)
            return value.isList() ? value.list()[std::size_t(at)] : characterAt(value.string(), at);
    }
    return Undefined{shownAs(key, budget)};
}

Value sliceOf(const Value& value, const Value& start, const Value& stop, const Value& step, Budget& budget) {
    if (value.isUndefined()) refuseUndefined(value);
    if (!value.isList() && !value.isString()) throw TemplateError{fmt::format("{} cannot be sliced", value.typeName())};
    const List items = itemsOf(value, budget);
    const auto size = std::int64_t(items.size());
    const auto bound = [&](const Value& given, std::int64_t fallback, std::int64_t low, std::int64_t high) {
        if (given.isNone() || given.isUndefined()) return fallback;
        if (!given.isInt()) throw TemplateError{"a slice's bound is not a whole number"};
        const std::int64_t at = given.integer();
        return std::clamp(at < 0 ? std::max(at, -size - 1) + size : at, low, high);
    };
    const std::int64_t by = bound(step, 1, INT64_MIN, INT64_MAX);
    const std::int64_t stride = step.isInt() ? std::clamp<std::int64_t>(step.integer(), -size - 1, size + 1) : by;
    if (stride == 0) throw TemplateError{"a slice's step is zero"};
    const bool forward = stride > 0;
    const std::int64_t low = forward ? 0 : -1, high = forward ? size : size - 1;
    List out;
    const std::int64_t first = bound(start, forward ? 0 : size - 1, low, high),
                       last = bound(stop, forward ? size : -1, low, high);
    for (std::int64_t at = first; forward ? at < last : at > last; at += stride) out.push_back(items[std::size_t(at)]);
    budget.grow(out.size() * sizeof(Value));
    if (value.isList()) return out;
    std::string text;
    for (const Value& character : out) text += character.string();
    return text;
}

void addFunctions(Dict& names, Budget& budget) {
    const auto add = [&](const std::string& name, std::function<Value(const Given&)> call) {
        names.set(name, Callable{name, [name, call = std::move(call)](const Arguments& arguments) {
                                     return call(Given(name, arguments));
                                 }});
    };
    add("range", [&budget](const Given& given) -> Value {
        given.need(0);
        const bool single = given.positional() == 1;
        const std::int64_t from = single ? 0 : given.integer(0, "", 0), to = given.integer(single ? 0 : 1, "", 0),
                           by = given.integer(2, "", 1);
        if (by == 0) given.wrong("the step is zero");
        const double count = std::ceil((double(to) - double(from)) / double(by));
        if (count > 100'000) given.wrong("it has more than 100000 numbers"); // as in Jinja's sandbox
        List out;
        for (std::int64_t i = 0; i < std::int64_t(std::max(count, 0.0)); ++i) out.emplace_back(from + i * by);
        budget.grow(out.size() * sizeof(Value));
        return out;
    });
    const auto named = [&budget](const Given& given) {
        Dict out;
        if (const Value* base = given.find(0)) {
            if (!base->isDict()) given.wrong("its argument is not a mapping");
            out = base->dict();
            budget.step(out.entries().size());
        }
        for (const auto& [name, value] : given.all())
            if (!name.empty()) out.set(name, value);
        return out;
    };
    add("namespace", [named](const Given& given) -> Value { return Value::makeNamespace(named(given)); });
    add("dict", [named](const Given& given) -> Value { return named(given); });
    add("raise_exception",
        [&budget](const Given& given) -> Value { throw TemplateRefusal{shownAs(given.need(0, "message"), budget)}; });
    add("strftime_now", [](const Given& given) -> Value {
        const std::string form = given.text(0, "format");
        const std::time_t now = std::time(nullptr);
        std::tm local{};
        localtime_r(&now, &local);
        std::string out(256, '\0');
        out.resize(std::strftime(out.data(), out.size(), form.c_str(), &local));
        return out;
    });
}

} // namespace kvscope::chat
