// What a screen reader hears of a plot: a chart with its name, how it is used, and the values under the cursor.
#pragma once

namespace kvscope::ui {

/// Once per program; more calls do nothing.
void makePlotsAccessible();

/// Property of a PlotCanvas: the values under the cursor as plain text.
inline constexpr char kCursorTextProperty[] = "cursorText";

} // namespace kvscope::ui
