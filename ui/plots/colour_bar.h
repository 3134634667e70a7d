// The colour bar beside a heatmap, which shows the value of each colour.
#pragma once

#include <qcustomplot.h>

namespace kvscope::ui {

class PlotCanvas;
struct Theme;

/// Adds a colour bar in this cell of the plot's layout, as high as `panel`, the panel of the heatmap.
QCPColorScale* addColourBar(PlotCanvas& plot, int row, int column, QCPAxisRect* panel);
/// Sets the bar's colours: `colour` gives the colour of a share from 0 to 1.
void fillColourBar(QCPColorScale& bar, QRgb (*colour)(double share));
/// Draws the bar's axis in the style of the panel's axes.
void themeColourBar(QCPColorScale& bar, const QCPAxisRect& panel, const Theme& theme);

} // namespace kvscope::ui
