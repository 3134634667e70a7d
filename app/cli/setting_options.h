// Options of the form key=value: the parameters of a method (--set) and the knobs of the scheduler (--knob).
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace kvscope::cli {

/// Keys and values in the order in which they were given. @param option as the command line writes it, for messages
/// @throws Error(BadInput) for a text without a key or without '=', and for a key that is given twice
std::vector<std::pair<std::string, std::string>> parseSettings(const char* option,
                                                               const std::vector<std::string>& texts);

} // namespace kvscope::cli
