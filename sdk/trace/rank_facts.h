// What a run of one rank says of itself, so that kvscope-cli merge can put the ranks side by side.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace kvscope::sdk {

/// Adds the keys rank, host and clocks of table run_meta to the rows that the caller gives, each unless it is there.
/// Adds nothing to a run without a rank. `began`: where the times of the run count from.
void addRankFacts(std::vector<std::pair<std::string, std::string>>& meta, std::optional<int> rank,
                  std::chrono::steady_clock::time_point began);

} // namespace kvscope::sdk
