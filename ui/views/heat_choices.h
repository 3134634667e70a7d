// What views that show a heatmap beside its means let a person choose, and how they put a choice on the plot.
#pragma once

#include "ui/frame/units.h"

class QComboBox;
class QCPColorScale;
class QCPRange;

namespace kvscope::ui {

class Margins;

/// The entries of a picker of Aggregate: what a pixel shows that covers several steps.
void addAggregates(QComboBox& picker);
/// The entries of a picker of ColourRange: from which to which value the colours go.
void addColourRanges(QComboBox& picker);
/// The colours of the heatmap go over these values: its scale and the axes of the means beside it show that.
void showColourRange(const QCPRange& values, Unit unit, QCPColorScale& bar, Margins& margins);

} // namespace kvscope::ui
