// Shared by the pages of the Compare view: the runs that they show, the buttons of an empty page, and the note about
// runs that grow.
#pragma once

#include "ui/frame/empty_page.h"
#include "ui/frame/numbers.h"
#include "ui/frame/run_names.h"
#include "ui/frame/workspace.h"

namespace kvscope::ui {

/// B, C, ...: the runs beside the shown one. Empty: nothing to compare with.
std::vector<const OpenRun*> othersOf(const Workspace& workspace);
/// The number of sequences that A and all others have.
int commonSequences(const Workspace& workspace);
/// Whether some run of the comparison is being recorded.
bool someGrow(const Workspace& workspace);
/// Whether the run is live and its description has not reached its file, so that nothing can be read of it yet.
bool notThereYet(const OpenRun& run);
/// "B: NOSA has no decode step yet" of the first run that is not there yet; empty: all are.
QString waitsFor(const Workspace& workspace);
/// "So far: 120 steps of A, which is still being recorded." for every run that grows; empty: none does.
QString soFarNote(const Workspace& workspace);
/// "A first look at 498 evenly spread decode steps ...": while the others are being read.
QString glanceNote(int steps);
/// A writer for pages that show a first look: it throws Error(BadInput), which says that numbers to keep are made of
/// all steps.
NumberWriter refusedFirstLook();

/// Buttons of an empty page: one for each other open run, at most three, and one that opens a trace. `from` must
/// outlive the buttons.
std::vector<EmptyAction> waysToCompare(const QWidget& from, Workspace& workspace);

} // namespace kvscope::ui
