#include "core/select/parameters.h"

#include "base/error.h"
#include "base/nearest_name.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>
#include <optional>

namespace kvscope {
namespace {

std::optional<double> parseNumber(std::string_view text) {
    double value = 0;
    const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (code != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) return std::nullopt;
    return value;
}

std::optional<bool> parseBoolean(std::string_view text) {
    if (text == "true" || text == "1" || text == "on" || text == "yes") return true;
    if (text == "false" || text == "0" || text == "off" || text == "no") return false;
    return std::nullopt;
}

std::vector<std::string> keysOf(const std::vector<Parameter>& declared) {
    std::vector<std::string> keys;
    keys.reserve(declared.size());
    for (const Parameter& parameter : declared) keys.push_back(parameter.key);
    return keys;
}

[[noreturn]] void refuse(const Parameter& parameter, std::string_view value, const std::string& takes) {
    throw Error(ErrorKind::BadInput, fmt::format("'{}' is not a value for parameter '{}'", value, parameter.key),
                fmt::format("it takes {}", takes));
}

} // namespace

void ParameterValues::set(const std::vector<Parameter>& declared, std::string_view key, std::string_view value) {
    const auto found = std::find_if(declared.begin(), declared.end(), [&](const Parameter& p) { return p.key == key; });
    if (found == declared.end())
        throw Error(ErrorKind::BadInput,
                    fmt::format("unknown parameter '{}'{}", key, didYouMean(key, keysOf(declared))),
                    fmt::format("there are: {}", fmt::join(keysOf(declared), ", ")));
    const Parameter& parameter = *found;
    switch (parameter.type) {
    case ParameterType::Integer: {
        const auto number = parseNumber(value);
        if (!number || *number != std::floor(*number) || *number < parameter.min || *number > parameter.max)
            refuse(parameter, value,
                   fmt::format("a whole number from {:.0f} to {:.0f}{}{}", parameter.min, parameter.max,
                               parameter.unit.empty() ? "" : " ", parameter.unit));
        values_[parameter.key] = fmt::format("{:.0f}", *number);
        return;
    }
    case ParameterType::Number: {
        const auto number = parseNumber(value);
        if (!number || *number < parameter.min || *number > parameter.max)
            refuse(parameter, value, fmt::format("a number from {} to {}", parameter.min, parameter.max));
        values_[parameter.key] = std::string(value);
        return;
    }
    case ParameterType::Boolean: {
        const auto flag = parseBoolean(value);
        if (!flag) refuse(parameter, value, "true or false");
        values_[parameter.key] = *flag ? "true" : "false";
        return;
    }
    case ParameterType::Choice:
        if (std::find(parameter.choices.begin(), parameter.choices.end(), value) == parameter.choices.end())
            refuse(parameter, value, fmt::format("one of: {}", fmt::join(parameter.choices, ", ")));
        values_[parameter.key] = std::string(value);
        return;
    }
}

int ParameterValues::integer(std::string_view key) const { return int(number(key)); }

double ParameterValues::number(std::string_view key) const {
    const auto value = parseNumber(text(key));
    if (!value) throw Error(ErrorKind::BadInput, fmt::format("parameter '{}' is not a number", key));
    return *value;
}

bool ParameterValues::boolean(std::string_view key) const { return text(key) == "true"; }

const std::string& ParameterValues::text(std::string_view key) const {
    const auto found = values_.find(std::string(key));
    if (found == values_.end()) throw Error(ErrorKind::BadInput, fmt::format("parameter '{}' has no value", key));
    return found->second;
}

std::string ParameterValues::toJson(const std::vector<Parameter>& declared) const {
    nlohmann::ordered_json object = nlohmann::ordered_json::object();
    for (const Parameter& parameter : declared) {
        if (!has(parameter.key)) continue;
        switch (parameter.type) {
        case ParameterType::Integer:
            object[parameter.key] = integer(parameter.key);
            break;
        case ParameterType::Number:
            object[parameter.key] = number(parameter.key);
            break;
        case ParameterType::Boolean:
            object[parameter.key] = boolean(parameter.key);
            break;
        case ParameterType::Choice:
            object[parameter.key] = text(parameter.key);
            break;
        }
    }
    return object.dump();
}

} // namespace kvscope
