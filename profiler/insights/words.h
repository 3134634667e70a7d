// Numbers in the sentences of the insights.
#pragma once

#include <cstdint>
#include <string>

namespace kvscope::words {

std::string ms(double ns);         // "12.3 ms", "45 us"
std::string percent(double share); // of 0..1: "31 %", "4.2 %"
std::string count(double number);  // "12,345"
std::string bytes(double number);  // "12.5 MiB"
/// "1 step", "3 steps"
std::string many(std::int64_t number, const std::string& what);

} // namespace kvscope::words
