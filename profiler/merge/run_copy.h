// Copies runs from one trace into another, under other numbers and on another clock.
#pragma once

#include "profiler/sqlite/sqlite.h"

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace kvscope {

struct RunCopy {
    int from = 0, to = 0; // run id in the file that is read and in the new one
    std::string name;
    std::int64_t addNs = 0;                      // to all times
    int headFirst = 0, layerFirst = 0;           // added to the numbers of KV heads and layers
    int kvHeads = 0, layers = 0, queryHeads = 0; // columns of the new run
    std::map<std::string, std::string> meta;     // rows of run_meta that replace the file's
};

/// Copies all rows of the runs, with what people wrote on them. Tables and columns that the format does not know are
/// left out, and columns that an older trace lacks are empty. The file is only read.
/// @throws Error(Storage | BadInput | Cancelled)
void copyRuns(Connection& into, const std::string& path, const std::vector<RunCopy>& runs);

} // namespace kvscope
