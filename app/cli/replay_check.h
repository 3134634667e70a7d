// Output of replay --check: predictions beside what really happened.
#pragma once

#include "profiler/replay/check.h"

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

namespace kvscope::cli {

struct CheckReport {
    std::string model;
    /// The recorded configuration, run again: its difference from the recording is what the machine (clock rate, load)
    /// changes without any prediction. Empty if the recorded run had no cache.
    std::optional<CheckedConfig> control;
    std::vector<CheckedConfig> configs;
    bool exact() const;
};

void printChecked(const CheckReport& report, const RunRow& run);
nlohmann::ordered_json checkedJson(const CheckReport& report, const RunRow& run);

} // namespace kvscope::cli
