// Strip: percentiles of latencies over a sliding window, in milliseconds on a logarithmic axis.
#include "ui/frame/units.h"
#include "ui/frame/view.h"
#include "ui/look/theme.h"
#include "ui/plots/log_axis.h"
#include "ui/views/serving/serving_strip.h"

#include <qcustomplot.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace kvscope::ui {
namespace {

class LatencyStrip final : public ServingStrip {
public:
    void build(QCPAxisRect& panel) override {
        ttftMedian_ = curveIn(panel), tbtMedian_ = curveIn(panel), ttftHigh_ = curveIn(panel),
        tbtHigh_ = curveIn(panel);
        for (QCPGraph* graph : {ttftMedian_, tbtMedian_, ttftHigh_, tbtHigh_}) graph->setLineStyle(QCPGraph::lsLine);
        ttftBound_ = curveIn(panel), tbtBound_ = curveIn(panel);
        setLogAxis(panel.axis(QCPAxis::atLeft), View::tr("Latency (ms)"), 10);
    }

    QCPRange fill(const ServingData& data) override {
        double low = std::numeric_limits<double>::infinity(), high = 0;
        const auto place = [&](double ns) {
            if (std::isnan(ns)) return ns;
            const double ms = std::max(ns, 1e3) / 1e6; // a microsecond is the least that is drawn
            low = std::min(low, ms), high = std::max(high, ms);
            return std::log10(ms);
        };
        QVector<double> at, ttftMedian, ttftHigh, tbtMedian, tbtHigh;
        for (const LatencyPoint& point : data.latency) {
            at << point.ns;
            ttftMedian << place(point.firstToken.median), ttftHigh << place(point.firstToken.high);
            tbtMedian << place(point.gap.median), tbtHigh << place(point.gap.high);
        }
        ttftMedian_->setData(at, ttftMedian, true), ttftHigh_->setData(at, ttftHigh, true);
        tbtMedian_->setData(at, tbtMedian, true), tbtHigh_->setData(at, tbtHigh, true);
        const auto draw = [&](QCPGraph* graph, double RequestRow::*bound) {
            const double ms = data.commonBound(bound);
            graph->setVisible(ms > 0);
            if (ms > 0) graph->setData({0, data.end()}, {place(ms * 1e6), place(ms * 1e6)}, true);
        };
        draw(ttftBound_, &RequestRow::ttftBoundMs), draw(tbtBound_, &RequestRow::tbtBoundMs);
        if (high <= 0) low = 1, high = 1000;
        const double margin = std::max(0.15, 0.06 * std::log10(high / low));
        return {std::log10(low) - margin, std::log10(high) + margin};
    }

    void themed(const Theme& theme) override {
        ttftHigh_->setPen(QPen(theme.runB, 1.5)), ttftMedian_->setPen(QPen(faint(theme.runB, 0.6), 1));
        tbtHigh_->setPen(QPen(theme.runA, 1.5)), tbtMedian_->setPen(QPen(faint(theme.runA, 0.6), 1));
        for (QCPGraph* bound : {ttftBound_, tbtBound_}) bound->setPen(QPen(theme.danger, 1, Qt::DashLine));
    }
    QVector<Swatch> swatches(const Theme& theme) const override {
        return {{View::tr("TTFT"), theme.runB, Swatch::Mark::Line, {}},
                {View::tr("TBT, iteration"), theme.runA, Swatch::Mark::Line, {}},
                {View::tr("bounds"), theme.danger, Swatch::Mark::Dashes, {}}};
    }

    void addFacts(const ServingData& data, double ns, double, const Add& add) const override {
        const auto found = std::lower_bound(data.latency.begin(), data.latency.end(), ns,
                                            [](const LatencyPoint& point, double at) { return point.ns < at; });
        if (found == data.latency.end()) return;
        const auto tell = [&](const QString& name, const LatencyWindow& window) {
            if (window.samples == 0) return add(name, View::tr("none in this window"));
            add(name,
                (window.isLargest ? View::tr("largest of %1: %2") : View::tr("P99 of %1: %2"))
                        .arg(formatCount(window.samples), servingTime(window.high)) +
                    (std::isnan(window.median) ? QString() : View::tr(", median %1").arg(servingTime(window.median))));
        };
        tell(View::tr("TTFT"), found->firstToken);
        tell(View::tr("TBT"), found->gap);
        const double ttft = data.commonBound(&RequestRow::ttftBoundMs), tbt = data.commonBound(&RequestRow::tbtBoundMs);
        if (ttft > 0 && tbt > 0)
            add(View::tr("Bounds"), View::tr("TTFT %1, TBT %2").arg(servingTime(ttft * 1e6), servingTime(tbt * 1e6)));
    }

private:
    QCPGraph *ttftMedian_ = nullptr, *ttftHigh_ = nullptr, *tbtMedian_ = nullptr, *tbtHigh_ = nullptr,
             *ttftBound_ = nullptr, *tbtBound_ = nullptr;
};

} // namespace

std::unique_ptr<ServingStrip> makeLatencyStrip() { return std::make_unique<LatencyStrip>(); }

} // namespace kvscope::ui
