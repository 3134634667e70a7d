#include "core/model/config_reader.h"

#include <cstdint>
#include <fmt/format.h>

namespace kvscope {

bool ConfigReader::states(const char* key) const {
    asked_->emplace(key);
    return object_.contains(key);
}

std::vector<std::string> ConfigReader::unread() const {
    std::vector<std::string> keys;
    for (const auto& item : object_.items())
        if (!asked_->contains(item.key())) keys.push_back(item.key());
    return keys;
}

const nlohmann::json& ConfigReader::need(const char* key) const {
    if (!states(key)) refuse(fmt::format("the key '{}' is missing", key));
    const nlohmann::json& value = object_.at(key);
    if (value.is_null()) refuse(fmt::format("'{}' is null", key));
    return value;
}

int ConfigReader::integer(const char* key, int low, int high) const {
    const nlohmann::json& value = need(key);
    if (!value.is_number_integer()) refuse(fmt::format("'{}' is not a whole number", key));
    const bool fits = value.is_number_unsigned() ? value.get<std::uint64_t>() <= std::uint64_t(INT32_MAX)
                                                 : value.get<std::int64_t>() >= INT32_MIN;
    if (!fits || value.get<std::int64_t>() < low || value.get<std::int64_t>() > high)
        refuse(fmt::format("'{}' is {}, not between {} and {}", key, value.dump(), low, high));
    return value.get<int>();
}

double ConfigReader::number(const char* key, double low, double high) const {
    const nlohmann::json& value = need(key);
    if (!value.is_number()) refuse(fmt::format("'{}' is not a number", key));
    const double result = value.get<double>();
    if (!(result >= low && result <= high))
        refuse(fmt::format("'{}' is {}, not between {:g} and {:g}", key, value.dump(), low, high));
    return result;
}

bool ConfigReader::flag(const char* key) const {
    const nlohmann::json& value = need(key);
    if (!value.is_boolean()) refuse(fmt::format("'{}' is neither true nor false", key));
    return value.get<bool>();
}

std::string ConfigReader::text(const char* key) const {
    const nlohmann::json& value = need(key);
    if (!value.is_string()) refuse(fmt::format("'{}' is not text", key));
    return value.get<std::string>();
}

std::vector<double> ConfigReader::numbers(const char* key, std::size_t count, double low, double high) const {
    const nlohmann::json& list = need(key);
    if (!list.is_array() || list.size() != count) refuse(fmt::format("'{}' is not a list of {} numbers", key, count));
    std::vector<double> result;
    for (const nlohmann::json& value : list) {
        if (!value.is_number() || !(value.get<double>() >= low && value.get<double>() <= high))
            refuse(fmt::format("'{}' holds an entry that is not a number between {:g} and {:g}", key, low, high));
        result.push_back(value.get<double>());
    }
    return result;
}

std::vector<std::string> ConfigReader::texts(const char* key) const {
    std::vector<std::string> result;
    if (!has(key)) return result;
    const nlohmann::json& list = object_.at(key);
    if (!list.is_array()) refuse(fmt::format("'{}' is not a list of names", key));
    for (const nlohmann::json& value : list) {
        if (!value.is_string()) refuse(fmt::format("'{}' is not a list of names", key));
        result.push_back(value.get<std::string>());
    }
    return result;
}

ConfigReader ConfigReader::object(const char* key) const {
    const nlohmann::json& value = need(key);
    if (!value.is_object()) refuse(fmt::format("'{}' is not an object", key));
    return ConfigReader(value, origin_ + ", " + key, converted_);
}

} // namespace kvscope
