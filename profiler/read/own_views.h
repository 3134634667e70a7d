// The views of resources/sql/schema.sql over the tables of a file, in place of the views that the file brings: anybody
// can have written those.
#pragma once

#include "profiler/sqlite/sqlite.h"

namespace kvscope {

/// Most characters of a text that is shown as a whole: a name, a note, a span's arguments. A longer one is read as its
/// beginning with an ellipsis behind it; the rules text-length, note-length, ... of `kvscope-cli check` name it.
inline constexpr int kLongestName = 1 << 16;
/// Most characters of a run's parameters. Longer parameters are read as if there were none.
inline constexpr int kLongestParameters = 1 << 20;

/// Makes them as temporary views, which are found before the file's own. Tables that the file lacks, because it was
/// written before they existed, take part as empty ones; so do those that are no ordinary tables there.
/// The connection may make temporary objects meanwhile.
void useOwnViews(Connection& connection);

} // namespace kvscope
