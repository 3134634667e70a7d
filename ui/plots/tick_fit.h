// Reduces the numbers and the title beside a plot to what there is room for.
#pragma once

class QCustomPlot;

namespace kvscope::ui {

/// After this call, value axes of low panels get fewer ticks, so that their labels never overlap. Titles longer than
/// their axis are shortened; the unit is the last part to go.
void fitTicksToRoom(QCustomPlot& plot);

} // namespace kvscope::ui
