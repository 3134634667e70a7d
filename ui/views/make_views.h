// Declares the functions that make the views, one per file. registry.cpp lists them.
#pragma once

class QWidget;

namespace kvscope::ui {

class View;
class Workspace;

View* makeLocalityView(Workspace& workspace, QWidget* parent);
View* makeSelectionView(Workspace& workspace, QWidget* parent);
View* makeDenoisingView(Workspace& workspace, QWidget* parent);
View* makeServingView(Workspace& workspace, QWidget* parent);
View* makeRatesView(Workspace& workspace, QWidget* parent);
View* makeSloView(Workspace& workspace, QWidget* parent);
View* makeCapacityView(Workspace& workspace, QWidget* parent);
View* makeTransfersView(Workspace& workspace, QWidget* parent);
View* makeCacheView(Workspace& workspace, QWidget* parent);
View* makeBreakdownView(Workspace& workspace, QWidget* parent);
View* makeRooflineView(Workspace& workspace, QWidget* parent);
View* makeTimelineView(Workspace& workspace, QWidget* parent);
View* makeCompareView(Workspace& workspace, QWidget* parent);
View* makeWaterfallView(Workspace& workspace, QWidget* parent);
View* makeRanksView(Workspace& workspace, QWidget* parent);
View* makeInsightsView(Workspace& workspace, QWidget* parent);
View* makeRunsView(Workspace& workspace, QWidget* parent);
View* makeSqlView(Workspace& workspace, QWidget* parent);

} // namespace kvscope::ui
