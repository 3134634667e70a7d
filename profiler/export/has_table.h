// Whether a trace has a table: traces of other programs, and older ones, lack some.
#pragma once

#include "profiler/sqlite/sqlite.h"

#include <string_view>

namespace kvscope {

/// Whether the trace has a table of this name. @throws Error(Storage)
inline bool hasTable(Connection& connection, std::string_view name) {
    Statement find(connection, "SELECT 1 FROM sqlite_schema WHERE type='table' AND name=?");
    return find.bind(1, name).step();
}

} // namespace kvscope
