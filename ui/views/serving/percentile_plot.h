// A panel with percentile curves of a latency: to the right the latency, upwards the share of samples that are shorter,
// on an axis that gives every further nine as much room as the one before it.
#pragma once

#include "profiler/read/served_classes.h"

#include <QColor>
#include <QPointF>
#include <QString>

#include <cstddef>
#include <optional>
#include <vector>

class QCPAxisRect;
class QCPErrorBars;
class QCPGraph;
class QCPItemText;

namespace kvscope::ui {

class PlotCanvas;
struct Theme;

class PercentilePlot {
public:
    struct Curve {
        QString name;
        std::vector<LatencySample> samples; // ascending
    };

    /// Adds a panel to the canvas, with an x axis of its own.
    PercentilePlot(PlotCanvas& canvas, int panel, QString title);

    /// boundMs: the bound on the latency; 0: there is none that all requests share.
    void setCurves(std::vector<Curve> curves, double boundMs);
    /// The curve whose percentiles are marked and whose samples can be chosen.
    void choose(std::size_t curve);
    std::size_t chosen() const { return chosen_; }
    /// The samples of the chosen curve.
    const std::vector<LatencySample>& samples() const;
    /// The sample of the chosen curve that is drawn nearest to a place; nothing: it has none.
    std::optional<std::size_t> nearest(QPointF at) const;
    /// Where a sample of the chosen curve lies, in the coordinates of the axes.
    QPointF placeOf(std::size_t sample) const;
    /// Marks a sample of the chosen curve; nothing: none is marked.
    void mark(std::optional<std::size_t> sample);
    /// The share of the chosen curve's samples within the bound; nothing: there are no samples, or no bound.
    std::optional<double> shareInTime() const;
    /// What is known of a place, in words: the curve's name, the percentile and the latency there.
    QString describe(QPointF at) const;
    void applyTheme(const Theme& theme);
    /// The colour of a curve, by its place among them.
    static QColor colourOf(const Theme& theme, std::size_t curve);

private:
    void showChosen();
    void placeBound();

    PlotCanvas& canvas_;
    QCPAxisRect* rect_;
    const int panel_;
    const QString title_;
    std::vector<Curve> curves_;
    std::vector<QCPGraph*> graphs_;
    std::size_t chosen_ = 0;
    double boundMs_ = 0;
    QCPGraph *bound_ = nullptr, *percentiles_ = nullptr;
    QCPErrorBars* intervals_ = nullptr;
    QCPItemText* boundText_ = nullptr;
};

} // namespace kvscope::ui
