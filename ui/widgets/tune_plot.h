// The plot of the tuning dialog: how good each measured candidate's answers are against the time of its step, where its
// time was predicted, and the front of those that no other candidate beats in both.
#pragma once

#include "profiler/tune/tune.h"

#include <QObject>

class QCPErrorBars;
class QCPGraph;

namespace kvscope::ui {

class LegendStrip;
class PlotCanvas;
struct Theme;

class TunePlot final : public QObject {
    Q_OBJECT
public:
    explicit TunePlot(QObject* parent);

    /// Belongs to the layout that it is added to.
    PlotCanvas* canvas() const { return plot_; }
    /// Null: nothing is shown.
    void show(const TuneResult* result);
    void applyTheme(const Theme& theme);

private:
    PlotCanvas* plot_ = nullptr;
    LegendStrip* legend_ = nullptr;
    QCPGraph *measured_ = nullptr, *predicted_ = nullptr, *front_ = nullptr, *chosen_ = nullptr, *floorLine_ = nullptr;
    QCPErrorBars* intervals_ = nullptr;
};

} // namespace kvscope::ui
