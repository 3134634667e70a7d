// What the next forward computes of a canvas, as its cache or its method has it.
#pragma once

#include "core/diffusion/canvas_run.h"
#include "core/session/canvas_engine.h"

namespace kvscope {

/// The row of an unfinished sequence. Its ids are those of the run.
CanvasRow canvasRow(const CanvasOptions& options, RowId sequence, const CanvasRun& run);

} // namespace kvscope
