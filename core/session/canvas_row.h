// Decides which tokens of a canvas the next forward computes, and what they attend to, by the options of its cache or
// its method.
#pragma once

#include "core/diffusion/canvas_run.h"
#include "core/session/canvas_engine.h"

namespace kvscope {

/// The row of a sequence that is not finished. The row's ids are those of the run, which must outlive the row.
CanvasRow canvasRow(const CanvasOptions& options, RowId sequence, const CanvasRun& run);

} // namespace kvscope
