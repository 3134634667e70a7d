#include "app/cli/setting_options.h"

#include "base/error.h"

#include <algorithm>
#include <charconv>
#include <fmt/format.h>

namespace kvscope::cli {

std::vector<std::pair<std::string, std::string>> parseSettings(const char* option,
                                                               const std::vector<std::string>& texts) {
    std::vector<std::pair<std::string, std::string>> settings;
    for (const std::string& text : texts) {
        const auto equals = text.find('=');
        if (equals == std::string::npos || equals == 0)
            throw Error(ErrorKind::BadInput, fmt::format("cannot read {} '{}'", option, text),
                        fmt::format("write {} key=value", option));
        std::string key = text.substr(0, equals), value = text.substr(equals + 1);
        const auto before =
            std::find_if(settings.begin(), settings.end(), [&](const auto& s) { return s.first == key; });
        if (before != settings.end())
            throw Error(ErrorKind::BadInput,
                        fmt::format("{} gives '{}' twice: {} and {}", option, key, before->second, value),
                        "leave one of them out");
        settings.emplace_back(std::move(key), std::move(value));
    }
    return settings;
}

std::int64_t amountOf(const char* option, const std::string& text) {
    constexpr auto kLargest = double(std::int64_t(1) << 60); // sums of three such amounts are still whole numbers
    double value = 0;
    const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
    const std::string unit(end, text.data() + text.size());
    const struct {
        const char *full, *brief;
        int shift;
    } units[] = {{"", "", 0}, {"KiB", "K", 10}, {"MiB", "M", 20}, {"GiB", "G", 30}, {"TiB", "T", 40}};
    if (code == std::errc() && value > 0)
        for (const auto& known : units)
            if (unit == known.full || unit == known.brief) {
                const double amount = value * double(std::int64_t(1) << known.shift);
                if (amount > kLargest)
                    throw Error(ErrorKind::BadInput, fmt::format("{} '{}' is too large", option, text),
                                fmt::format("give at most {}T", kLargest / double(std::int64_t(1) << 40)));
                if (amount >= 1) return std::int64_t(amount);
            }
    throw Error(ErrorKind::BadInput, fmt::format("cannot read {} '{}'", option, text),
                "give a number with K, M, G or T, for example 4G");
}

} // namespace kvscope::cli
