// What a run of one rank says of itself, so that kvscope-cli merge can put the ranks side by side.
#pragma once

#include "profiler/format/clock_reading.h"

#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace kvscope::sdk {

/// Adds the keys rank, host and clocks of table run_meta to the rows that the caller gives, each unless it is there.
/// Adds nothing to a run without a rank. `began`: where the times of the run count from.
/// @return whether the clocks are the library's to read
bool addRankFacts(std::vector<std::pair<std::string, std::string>>& meta, std::optional<int> rank,
                  std::chrono::steady_clock::time_point began);

/// The monotonic clock and UTC, read now. `began` as above.
std::vector<ClockReading> readClocks(std::chrono::steady_clock::time_point began);

} // namespace kvscope::sdk
