// Tells screen readers about plots: that a plot is a chart, its name, how to use it, and the values under the cursor.
#pragma once

namespace kvscope::ui {

/// Call it once per program; further calls do nothing.
void makePlotsAccessible();

} // namespace kvscope::ui
