// When a window or a view has nothing more to read.
#pragma once

#include "ui/frame/run_checks.h"
#include "ui/frame/workspace.h"

namespace kvscope::ui {

/// Whether all reads are answered and all open runs were tested. When rows of a run break rules of the format, its
/// views are told at the end of the test and read once more, which would otherwise happen in the middle of what a test
/// does.
inline bool isSettled(const Workspace& workspace) { return workspace.idle() && !RunChecks::of(workspace).busy(); }

} // namespace kvscope::ui
