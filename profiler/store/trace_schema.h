// The tables and views of a trace file that is about to be written.
#pragma once

#include "profiler/sqlite/sqlite.h"

namespace kvscope::trace {

/// Makes the tables and views in an empty file. @throws Error(Storage | Unsupported)
void createSchema(Connection& connection);

/// Tests that runs can be added to the file: it is a trace of this format's version, and its tables are ordinary ones.
/// @throws Error(Storage) naming the file
void verifySchema(Connection& connection);

/// Makes the tables, views and columns that the file lacks. They came later than the format and are optional, so that a
/// file without them is no older version. @throws Error(Storage)
void completeSchema(Connection& connection);

} // namespace kvscope::trace
