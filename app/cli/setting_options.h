// Options of the form key=value, which are the parameters of a method (--set) and the knobs of the scheduler (--knob),
// and options that are amounts of memory.
#pragma once

#include "core/session/option_text.h" // listedValues

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace kvscope::cli {

/// Keys and values in the order in which they were given. @param option as the command line writes it, for messages
/// @throws Error(BadInput) for a text without a key or without '=', and for a key that is given twice
std::vector<std::pair<std::string, std::string>> parseSettings(const char* option,
                                                               const std::vector<std::string>& texts);

/// Reads a number with a binary unit: "4G", "512MiB", "32K". @param option as the command line writes it, for messages
/// @throws Error(BadInput)
std::int64_t amountOf(const char* option, const std::string& text);

} // namespace kvscope::cli
