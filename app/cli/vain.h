// Options that would change nothing are refused rather than ignored.
#pragma once

#include "app/terminal/options.h"
#include "base/error.h"

#include <algorithm>
#include <fmt/format.h>
#include <initializer_list>
#include <string>
#include <vector>

namespace kvscope::cli {

/// Refuses these options where they are given and `vain` holds. why: behind "has no effect", e.g. "with --prompts 0"
/// @throws Error(BadInput) naming the first of them
void refuseVain(bool vain, const Options& command, std::initializer_list<const char*> options, const std::string& why);

/// Refuses a list that names a value twice, which would measure the same twice.
/// @throws Error(BadInput) naming the option and the first such value
template <class Value> void refuseRepeated(const char* option, const std::vector<Value>& values) {
    for (auto value = values.begin(); value != values.end(); ++value)
        if (std::find(values.begin(), value, *value) != value)
            throw Error(ErrorKind::BadInput, fmt::format("{} names {} twice", option, *value), "name each value once");
}

} // namespace kvscope::cli
