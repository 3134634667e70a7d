// A short recorded run of a server. A file of its own, because Qt's macro `slots` is a name in the engine's headers.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace kvscope::test {

/// Serves the same ten requests of nosa-tiny at 3.3 and at 6.7 requests a second, with Quest: two runs of a new trace,
/// whose steps hold their selected blocks. knobs: of the scheduler; faster: both rates are so many times higher.
/// together: the ten come within three milliseconds, and the rates are those of their repetitions.
void recordServedTrace(const std::string& path, const std::vector<std::pair<std::string, std::string>>& knobs = {},
                       double faster = 1, bool together = false);

} // namespace kvscope::test
