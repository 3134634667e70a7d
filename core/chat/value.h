// Values of the template language: Python's, as far as chat templates use them.
#pragma once

#include "core/chat/budget.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace kvscope::chat {

/// Thrown by raise_exception: the template itself refuses the conversation.
struct TemplateRefusal {
    std::string message;
};

class Value;
using List = std::vector<Value>;
using Arguments = std::vector<std::pair<std::string, Value>>; // name empty: by position

/// Insertion-ordered; chat templates have few keys.
class Dict {
public:
    const Value* find(std::string_view key) const;
    void set(const std::string& key, Value value);
    const std::vector<std::pair<std::string, Value>>& entries() const { return entries_; }

private:
    std::vector<std::pair<std::string, Value>> entries_;
};

/// Something that can be called: a macro or a function of the language.
struct Callable {
    std::string name;
    std::function<Value(const Arguments&)> call;
};

struct Undefined {
    std::string name; // for messages
};
struct None {};

/// Cheap to copy: lists and dictionaries are shared and never changed, except a namespace's.
class Value {
public:
    Value() : data_(Undefined{}) {}
    Value(Undefined value) : data_(std::move(value)) {}
    Value(None) : data_(None{}) {}
    Value(bool value) : data_(value) {}
    Value(int value) : data_(std::int64_t(value)) {}
    Value(std::int64_t value) : data_(value) {}
    Value(double value) : data_(value) {}
    Value(std::string value) : data_(std::make_shared<const std::string>(std::move(value))) {}
    Value(const char* value) : Value(std::string(value)) {}
    Value(List value);
    Value(Dict value);
    Value(Callable value) : data_(std::make_shared<const Callable>(std::move(value))) {}
    /// A list that prints as Python's tuple.
    static Value makeTuple(List value) {
        Value made(std::move(value));
        made.isTuple_ = true;
        return made;
    }
    static Value makeNamespace(Dict value) {
        Value made(std::move(value));
        made.isNamespace_ = made.holdsNamespace_ = true;
        return made;
    }

    bool isUndefined() const { return std::holds_alternative<Undefined>(data_); }
    bool isNone() const { return std::holds_alternative<None>(data_); }
    bool isBool() const { return std::holds_alternative<bool>(data_); }
    bool isInt() const { return std::holds_alternative<std::int64_t>(data_); }
    bool isFloat() const { return std::holds_alternative<double>(data_); }
    bool isNumber() const { return isInt() || isFloat() || isBool(); }
    bool isString() const { return std::holds_alternative<std::shared_ptr<const std::string>>(data_); }
    bool isList() const { return std::holds_alternative<std::shared_ptr<const List>>(data_); }
    bool isDict() const { return std::holds_alternative<std::shared_ptr<Dict>>(data_) && !isNamespace_; }
    bool isTuple() const { return isTuple_; }
    bool isNamespace() const { return isNamespace_; }
    bool isCallable() const { return std::holds_alternative<std::shared_ptr<const Callable>>(data_); }

    const std::string& undefinedName() const { return std::get<Undefined>(data_).name; }
    bool boolean() const { return std::get<bool>(data_); }
    std::int64_t integer() const { return isBool() ? std::int64_t(boolean()) : std::get<std::int64_t>(data_); }
    double number() const { return isFloat() ? std::get<double>(data_) : double(integer()); }
    const std::string& string() const { return *std::get<std::shared_ptr<const std::string>>(data_); }
    const List& list() const { return *std::get<std::shared_ptr<const List>>(data_); }
    const Dict& dict() const { return *std::get<std::shared_ptr<Dict>>(data_); }
    Dict& members() const { return *std::get<std::shared_ptr<Dict>>(data_); } // of a namespace
    const Callable& callable() const { return *std::get<std::shared_ptr<const Callable>>(data_); }

    /// Whether the value is a namespace or has one in it. A namespace must never come to hold itself, or values would
    /// have no end.
    bool holdsNamespace() const { return holdsNamespace_; }
    bool truthy() const;
    const char* typeName() const;

private:
    std::variant<Undefined, None, bool, std::int64_t, double, std::shared_ptr<const std::string>,
                 std::shared_ptr<const List>, std::shared_ptr<Dict>, std::shared_ptr<const Callable>>
        data_;
    bool isNamespace_ = false, holdsNamespace_ = false, isTuple_ = false;
    std::uint16_t depth_ = 0; // of lists and mappings within each other
    void contain(const Value& item);
};

/// Python's ==. Every value that is compared counts as a visit.
bool equal(const Value& left, const Value& right, Budget& budget);

/// The text that a template prints for a value: Python's str(), and nothing for an undefined value. Every value that is
/// printed counts as a visit, and its text as new text.
std::string shownAs(const Value& value, Budget& budget);
/// As inside a list: texts in quotes.
std::string represented(const Value& value, Budget& budget);

struct JsonForm {
    int indent = -1; // below 0: one line
    bool ascii = false, sortKeys = false;
    std::string itemSeparator = ", ", keySeparator = ": ";
};
/// Python's json.dumps; counts as shownAs does. @throws TemplateError for what JSON cannot hold
std::string jsonOf(const Value& value, const JsonForm& form, Budget& budget, int depth = 0);

} // namespace kvscope::chat
