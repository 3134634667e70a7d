// Tells whether two texts of the command line mean one value, and refuses lists that name a value twice.
#pragma once

#include "base/error.h"

#include <algorithm>
#include <fmt/format.h>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace kvscope {

struct ModelConfig;

/// Refuses a list that names a value twice, which would measure the same twice.
/// @param same whether two entries mean one value, which can be written in two ways, as 0.9 and 0.90
/// @throws Error(BadInput) naming the option and the first such value
template <class Value, class Same = std::equal_to<>>
void refuseRepeated(std::string_view option, const std::vector<Value>& values, const Same& same = {}) {
    for (auto value = values.begin(); value != values.end(); ++value) {
        const auto first = std::find_if(values.begin(), value, [&](const Value& other) { return same(other, *value); });
        if (first == value) continue;
        throw Error(ErrorKind::BadInput,
                    *first == *value ? fmt::format("{} names {} twice", option, *value)
                                     : fmt::format("{} names one value twice: {} and {}", option, *first, *value),
                    "name each value once");
    }
}

/// Whether two texts are equal, or are numbers of one value: "0.9" and "0.90". Whole numbers of up to 64 bits are
/// compared exactly.
bool sameNumber(const std::string& a, const std::string& b);

/// Whether two texts name links of one bandwidth and latency: "pcie4" and "26". @throws Error(BadInput) for no link
bool sameLink(const std::string& a, const std::string& b);

/// Whether two texts mean one value of a parameter of any method: "0.9" and "0.90", "true" and "on".
/// @throws Error(BadInput) for a Boolean parameter and a text that is neither true nor false
bool sameSetting(const ModelConfig& config, const std::string& key, const std::string& a, const std::string& b);

} // namespace kvscope
