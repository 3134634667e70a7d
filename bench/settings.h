// The key=value settings of a benchmark, checked.
#pragma once

#include "bench/bench.h"

#include <initializer_list>
#include <string>

namespace kvscope::bench {

/// Every read @throws Error(BadInput) naming the setting.
class SettingsReader {
public:
    /// Refuses keys that are not known.
    SettingsReader(const Settings& settings, std::initializer_list<const char*> known);
    std::string text(const char* key, const std::string& fallback) const;
    int integer(const char* key, int fallback, int least, int most) const;
    double number(const char* key, double fallback) const;
    bool flag(const char* key, bool fallback) const;

private:
    const Settings& settings_;
};

} // namespace kvscope::bench
