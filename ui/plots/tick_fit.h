// As many numbers beside a plot as it has room for.
#pragma once

class QCustomPlot;

namespace kvscope::ui {

/// From now on value axes have fewer ticks where their panel is low: labels never run into each other.
void fitTicksToRoom(QCustomPlot& plot);

} // namespace kvscope::ui
