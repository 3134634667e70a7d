// What the writer of a run could see, as the file says; where the file does not say, as the run's rows show.
#pragma once

#include "profiler/read/trace_reader.h"
#include "profiler/sqlite/sqlite.h"

#include <span>
#include <string_view>

namespace kvscope {

/// Whether the file has table run_meta with the columns that it should have; a stranger's table of that name is passed
/// over.
bool hasRunMeta(Connection& connection);
/// Key `knows` of run_meta; else knowledgeFromRows.
Knowledge knowledgeOf(Connection& connection, int runId);
/// Traces without that key are older ones of KVScope, which know everything, or ones of another engine that left 0
/// where it knew nothing. The first decode steps tell the two apart: a selected block is a hit or a miss, so neither
/// means unknown hits; missed blocks that moved no byte mean unknown bytes; bytes without link time mean unknown times;
/// steps that took no time mean unknown step times.
Knowledge knowledgeFromRows(Connection& connection, int runId);

/// The group that a run must know for a column of the trace's views; nothing: every run knows the column.
std::optional<Known> neededByColumn(std::string_view column);
/// Puts -1 where a run does not know a number.
void hideUnknown(Knowledge knows, std::span<StepRow> rows);

} // namespace kvscope
