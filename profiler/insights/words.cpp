#include "profiler/insights/words.h"

#include <cmath>
#include <fmt/format.h>

namespace kvscope::words {

std::string ms(double ns) {
    const double us = ns / 1e3;
    if (us < 999.5) return fmt::format("{:.3g} us", us);
    return us < 1e6 ? fmt::format("{:.3g} ms", us / 1e3) : fmt::format("{:.4g} s", us / 1e6);
}

std::string percent(double share) {
    const double value = 100 * share;
    return value >= 9.95 || value == 0 ? fmt::format("{:.0f} %", value) : fmt::format("{:.1f} %", value);
}

std::string count(double number) {
    std::string digits = fmt::format("{:.0f}", std::abs(number));
    for (int at = int(digits.size()) - 3; at > 0; at -= 3) digits.insert(std::size_t(at), ",");
    return (number < 0 ? "-" : "") + digits;
}

std::string bytes(double number) {
    const double kib = number / 1024;
    if (kib < 1000) return fmt::format("{:.3g} KiB", kib);
    return kib < 1000 * 1024 ? fmt::format("{:.3g} MiB", kib / 1024) : fmt::format("{:.3g} GiB", kib / 1024 / 1024);
}

std::string many(std::int64_t number, const std::string& what) {
    return count(double(number)) + " " + what + (number == 1 ? "" : "s");
}

} // namespace kvscope::words
