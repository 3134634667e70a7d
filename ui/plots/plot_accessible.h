// What a screen reader hears of a plot: a chart with its name, how it is used, and the values under the cursor.
#pragma once

namespace kvscope::ui {

/// Once per program; more calls do nothing.
void makePlotsAccessible();

} // namespace kvscope::ui
