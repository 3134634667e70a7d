// What an empty page of the Compare view offers: the other open runs, and opening another.
#pragma once

#include "ui/widgets/empty_page.h"
#include "ui/workspace.h"

namespace kvscope::ui {

/// One button per other open run, at most three, and one that opens a trace. `from` must outlive the buttons.
std::vector<EmptyAction> waysToCompare(const QWidget& from, Workspace& workspace);

} // namespace kvscope::ui
