// Converts files of other tools before a command opens them, because a conversion may take a while and here shows its
// progress and can be stopped by Ctrl-C.
#pragma once

#include <string>

namespace kvscope::cli {

/// Converts `path` into the cache if it is a file to import that is not there yet. Everything else is left to
/// openTrace.
/// @throws Error as importTrace
void importFirst(const std::string& path);

} // namespace kvscope::cli
