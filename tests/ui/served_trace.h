// A short recorded run of a server. A file of its own, because Qt's macro `slots` is a name in the engine's headers.
#pragma once

#include <string>

namespace kvscope::test {

/// Serves the same ten requests of nosa-tiny at 3.3 and at 6.7 requests a second, with Quest: two runs of a new trace,
/// whose steps hold their selected blocks.
void recordServedTrace(const std::string& path);

} // namespace kvscope::test
