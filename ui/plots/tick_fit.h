// Reduces the numbers and the titles around a plot to what there is room for.
#pragma once

class QCustomPlot;

namespace kvscope::ui {

/// The property of an axis that holds a shorter title, for where the whole one would be cut.
inline constexpr const char* kShortTitle = "kvscopeShortTitle";

/// After this call, axes of low and of narrow panels get fewer ticks, so that their labels never overlap: up an axis by
/// the height of a line, across it by what the labels measure. An axis gets back the ticks that its owner asked for as
/// soon as there is room. Titles longer than their axis are shortened; the unit is the last part to go.
void fitTicksToRoom(QCustomPlot& plot);

} // namespace kvscope::ui
