// The pages of the Compare view, one per file; compare_pages.cpp holds them together.
#pragma once

class QWidget;

namespace kvscope::ui {

class View;
class Workspace;

/// Verdicts, key numbers and locality curves of A and every run beside it.
View* makeCompareSummary(Workspace& workspace, QWidget* parent);
/// B - A of a metric as a layer x step heatmap, or layer by layer with intervals.
View* makeCompareDifference(Workspace& workspace, QWidget* parent);
/// Where the time of a step goes in every run, with differences and intervals over steps and repeats.
View* makeCompareBreakdown(Workspace& workspace, QWidget* parent);
/// Jaccard of the selected blocks against A's, per step and per layer.
View* makeCompareOverlap(Workspace& workspace, QWidget* parent);
/// The first token and the first selection that differ.
View* makeCompareDivergence(Workspace& workspace, QWidget* parent);

} // namespace kvscope::ui
