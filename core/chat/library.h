// The filters, tests, methods and functions of the template language.
#pragma once

#include "core/chat/value.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace kvscope::chat {

/// The arguments of a call, found by position or by name.
class Given {
public:
    Given(const std::string& what, const Arguments& arguments) : what_(what), arguments_(arguments) {}
    /// Null when the argument was left out.
    const Value* find(std::size_t position, const char* name = "") const;
    const Value& need(std::size_t position, const char* name = "") const;
    std::string text(std::size_t position, const char* name = "") const;
    std::int64_t integer(std::size_t position, const char* name, std::int64_t fallback) const;
    bool flag(std::size_t position, const char* name, bool fallback) const;
    std::size_t positional() const;
    const Arguments& all() const { return arguments_; }
    [[noreturn]] void wrong(const std::string& why) const;

private:
    const std::string& what_;
    const Arguments& arguments_;
};

/// @throws TemplateError naming an unknown filter or test
Value applyFilter(const std::string& name, const Value& value, const Arguments& arguments, Budget& budget);
bool applyTest(const std::string& name, const Value& value, const Arguments& arguments, Budget& budget);
bool isFilter(const std::string& name);
bool isTest(const std::string& name);

/// The method of this name of a text, list or mapping, bound to the value; nothing where there is none.
std::optional<Value> findMethod(const Value& value, const std::string& name, Budget& budget);

/// value.name and value[key]; undefined when the value has no such member. @throws TemplateError when the value itself
/// is undefined
Value attributeOf(const Value& value, const std::string& name, Budget& budget);
Value itemOf(const Value& value, const Value& key, Budget& budget);
/// The items that a loop over the value visits. @throws TemplateError
List itemsOf(const Value& value, Budget& budget);
/// value[start:stop:step] of a text or list. A bound that is none or undefined counts as left out.
Value sliceOf(const Value& value, const Value& start, const Value& stop, const Value& step, Budget& budget);
Value binaryResult(const std::string& name, const Value& left, const Value& right, Budget& budget);
bool compared(const std::string& name, const Value& left, const Value& right, Budget& budget);

/// Where a text begins within another, the first or the last time; npos: nowhere. The characters that are searched
/// count as read.
std::size_t findText(std::string_view text, std::string_view what, Budget& budget);
std::size_t findLastText(std::string_view text, std::string_view what, Budget& budget);

/// Characters of a text.
List charactersOf(const std::string& text, Budget& budget);
/// How many characters a text has, without making the list of them.
std::int64_t characterCount(std::string_view text, Budget& budget);

/// The functions a template can call: range, namespace, dict, raise_exception, strftime_now.
void addFunctions(Dict& names, Budget& budget);

} // namespace kvscope::chat
