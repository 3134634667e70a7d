// The views of resources/sql/schema.sql over the tables of a file, in place of the views that the file brings: anybody
// can have written those.
#pragma once

#include "profiler/sqlite/sqlite.h"

namespace kvscope {

/// Makes them as temporary views, which are found before the file's own. Tables that the file lacks, because it was
/// written before they existed, take part as empty ones; so do those that are no ordinary tables there.
/// The connection may make temporary objects meanwhile.
void useOwnViews(Connection& connection);

} // namespace kvscope
