// The scale of colours beside a heatmap.
#pragma once

#include <qcustomplot.h>

namespace kvscope::ui {

class PlotCanvas;
struct Theme;

/// In a cell of the plot's layout, as high as the heatmap's panel.
QCPColorScale* addColourBar(PlotCanvas& plot, int row, int column, QCPAxisRect* panel);
/// `colour`: of a share from 0 to 1.
void fillColourBar(QCPColorScale& bar, QRgb (*colour)(double share));
/// Its axis as those of the panel.
void themeColourBar(QCPColorScale& bar, const QCPAxisRect& panel, const Theme& theme);

} // namespace kvscope::ui
