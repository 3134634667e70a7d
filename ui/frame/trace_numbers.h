// Makes the tables of a trace and its whole timeline available as NumberWriters, with the content that `kvscope-cli
// export` writes.
#pragma once

#include "profiler/export/export.h"
#include "ui/frame/numbers.h"

#include <optional>

namespace kvscope::ui {

/// The part of a trace that is exported.
struct TracePart {
    QString path;
    int runId = 1;
    std::optional<ExportRange> range; // absent: the whole run
};

/// Writes the timeline as Chrome trace events for Perfetto's viewer: one JSON document.
NumberWriter perfettoOf(const TracePart& part);
/// Writes a table as CSV. If the table is empty, the writer throws Error(BadInput) that says why.
NumberWriter tableOf(const TracePart& part, ExportTable table);

} // namespace kvscope::ui
