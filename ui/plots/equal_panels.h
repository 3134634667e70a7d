// Panels that stand above each other and show quantities of equal weight are equally high.
#pragma once

#include <QList>

class QCPAxisRect;
class QCustomPlot;

namespace kvscope::ui {

/// After this call the panels share the height of their rows so that what they draw on is equally high, though the last
/// one has numbers and a title below it. Each panel stands in a row of the plot's layout of its own; rows of other
/// things have their own heights.
void keepEquallyHigh(QCustomPlot& plot, const QList<QCPAxisRect*>& panels);

} // namespace kvscope::ui
