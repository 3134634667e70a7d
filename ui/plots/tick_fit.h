// As many numbers beside a plot, and as much of its title, as it has room for.
#pragma once

class QCustomPlot;

namespace kvscope::ui {

/// From now on value axes have fewer ticks where their panel is low: labels never run into each other. Titles that
/// are longer than their axis are shortened, the unit last.
void fitTicksToRoom(QCustomPlot& plot);

} // namespace kvscope::ui
