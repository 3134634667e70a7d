// What kvscope-cli export writes, for whoever writes numbers in the desktop: tables of a trace and its whole timeline.
#pragma once

#include "profiler/export/export.h"
#include "ui/frame/numbers.h"

#include <optional>

namespace kvscope::ui {

/// What of a trace is exported.
struct TracePart {
    QString path;
    int runId = 1;
    std::optional<ExportRange> range; // absent: the whole run
};

/// The timeline as Chrome trace events, for Perfetto's viewer: one JSON document.
NumberWriter perfettoOf(const TracePart& part);
/// A table as CSV; where there is nothing in it, the writer throws Error(BadInput) saying why.
NumberWriter tableOf(const TracePart& part, ExportTable table);

} // namespace kvscope::ui
