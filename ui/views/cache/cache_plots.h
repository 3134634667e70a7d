// The what-if plots: misses against cache size, predicted speed against link or size, working set and locality. Each
// class owns what it draws in its panel; the view tells them what to show.
#pragma once

#include "ui/models/what_if.h"

#include <qcustomplot.h>

#include <array>

namespace kvscope::ui {

struct Theme;
struct Swatch;
class PlotCanvas;

/// The data that all plots show.
struct CacheScene {
    std::shared_ptr<const WhatIf> whatIf; // null: nothing
    WhatIfQuestion question;
    std::optional<WhatIfAnswer> answer;
    PoolScope scope;
};

QColor policyColour(const Theme& theme, const std::string& policy);
/// One row of a plot's CSV.
struct CsvSeries {
    const char *plot, *xUnit, *unit;
    QString series;
    QString row(double x, double value) const; // plot,series,x,x_unit,value,unit
};

/// Misses per reference against slots: a line per policy, Belady's bound shaded, the recorded cache as a point.
class MissPlot {
public:
    MissPlot(PlotCanvas& canvas, int panel);
    void show(const CacheScene& scene);
    void applyTheme(const Theme& theme);
    QVector<Swatch> swatches(const Theme& theme) const;
    QString tooltip(int size) const;
    QString csv() const;

private:
    static constexpr std::array<int, 3> kMarkedWindows{4, 12, 64};
    QCPGraph* add(int width, Qt::PenStyle style = Qt::SolidLine);
    void showWorkingSets(double foot);
    void placeWords();

    PlotCanvas& canvas_;
    int panel_;
    QCPAxisRect* rect_;
    std::vector<QCPGraph*> policies_; // in the order of replayPolicies()
    QCPGraph *floor_, *recorded_, *asked_, *windows_;
    QCPItemStraightLine* handle_;
    QCPItemText* bound_;
    std::array<QCPItemText*, 3> windowNames_{};
    CacheScene scene_;
};

/// Predicted tokens/s against link bandwidth (as log2 of GB/s) or cache size, below what compute and link alone allow.
class SpeedPlot {
public:
    enum class Axis { Bandwidth, Size };
    SpeedPlot(PlotCanvas& canvas, int panel, int group);
    void setAxis(Axis axis);
    Axis axis() const { return axis_; }
    void show(const CacheScene& scene);
    /// The line of loading ahead, made on a worker: x as on the axis, tokens/s. Empty: none.
    void setAhead(const QVector<QPointF>& line);
    void applyTheme(const Theme& theme);
    QVector<Swatch> swatches(const Theme& theme) const;
    QString tooltip(double x) const;
    QString csv() const;

    static double xOf(double gbps) { return std::log2(gbps); }
    static double gbpsOf(double x) { return std::exp2(x); }
    static constexpr int kPoints = 97; // of a line over the bandwidths
    static QCPRange bandwidths(const WhatIfQuestion& question, const WhatIfQuestion& recorded);

private:
    void showLines();

    PlotCanvas& canvas_;
    int panel_, group_;
    Axis axis_ = Axis::Bandwidth;
    QCPAxisRect* rect_;
    QCPGraph *predicted_, *ahead_, *compute_, *link_, *recorded_, *asked_;
    QCPItemStraightLine* handle_;
    CacheScene scene_;
};

/// Mean blocks of a head's last w selections against w, and the share kept from d steps ago against d.
class LocalityPlots {
public:
    LocalityPlots(PlotCanvas& canvas, int workingSetPanel, int keptPanel, int group);
    void show(const CacheScene& scene);
    void applyTheme(const Theme& theme);
    QString tooltip(bool kept, int steps) const;
    QString csv() const;

private:
    PlotCanvas& canvas_;
    int panels_[2], group_;
    QCPGraph* graphs_[2];
    std::optional<LocalityProfile> profile_;
};

} // namespace kvscope::ui
