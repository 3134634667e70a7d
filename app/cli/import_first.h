// Files of other tools open like traces; their conversion may take a while, so it happens here, with progress and
// Ctrl-C.
#pragma once

#include <string>

namespace kvscope::cli {

/// Converts `path` into the cache if it is a file to import that is not there yet. Everything else is left to
/// openTrace.
/// @throws Error as importTrace
void importFirst(const std::string& path);

} // namespace kvscope::cli
