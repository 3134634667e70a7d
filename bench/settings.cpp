#include "bench/settings.h"

#include "base/error.h"

#include <algorithm>
#include <charconv>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <string_view>

namespace kvscope::bench {
namespace {

template <class Number> Number parse(const char* key, const std::string& text) {
    Number value{};
    const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (code != std::errc() || end != text.data() + text.size())
        throw Error(ErrorKind::BadInput, fmt::format("--set {}={} is not a number", key, text), "write a plain number");
    return value;
}

} // namespace

SettingsReader::SettingsReader(const Settings& settings, std::initializer_list<const char*> known)
    : settings_(settings) {
    for (const auto& [key, value] : settings)
        if (std::find_if(known.begin(), known.end(), [&](std::string_view name) { return name == key; }) == known.end())
            throw Error(ErrorKind::BadInput, fmt::format("this benchmark has no setting '{}'", key),
                        fmt::format("known settings: {}", fmt::join(known, ", ")));
}

std::string SettingsReader::text(const char* key, const std::string& fallback) const {
    const auto found = settings_.find(key);
    return found == settings_.end() ? fallback : found->second;
}

int SettingsReader::integer(const char* key, int fallback, int least, int most) const {
    const auto found = settings_.find(key);
    if (found == settings_.end()) return fallback;
    const int value = parse<int>(key, found->second);
    if (value < least || value > most)
        throw Error(ErrorKind::BadInput, fmt::format("--set {}={} is out of range", key, value),
                    fmt::format("choose {} to {}", least, most));
    return value;
}

double SettingsReader::number(const char* key, double fallback) const {
    const auto found = settings_.find(key);
    return found == settings_.end() ? fallback : parse<double>(key, found->second);
}

bool SettingsReader::flag(const char* key, bool fallback) const {
    const std::string value = text(key, fallback ? "true" : "false");
    if (value != "true" && value != "false")
        throw Error(ErrorKind::BadInput, fmt::format("--set {}={} is neither true nor false", key, value),
                    "write true or false");
    return value == "true";
}

} // namespace kvscope::bench
