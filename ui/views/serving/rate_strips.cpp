// Strips: what was counted in intervals of a serving run, as rates, and how many requests were in the system.
#include "ui/frame/units.h"
#include "ui/frame/view.h"
#include "ui/look/theme.h"
#include "ui/plots/bandwidth.h"
#include "ui/plots/plot_canvas.h"
#include "ui/plots/tick_fit.h"
#include "ui/views/serving/serving_strip.h"

#include <qcustomplot.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <utility>
#include <vector>

namespace kvscope::ui {
namespace {

constexpr double kRoomAbove = 1.08; // of the largest value
constexpr double kFill = 0.25;      // opacity under the first curve
constexpr double kWaitingFill = 0.4;

// Three colours that readers of every sight tell apart in both themes, and that of prompts in the view Serving.
QColor blue(const Theme& theme) { return theme.resource[0]; }
QColor yellow(const Theme& theme) { return theme.resource[1]; }
QColor red(const Theme& theme) { return theme.miss; }
QColor ofPrompts(const Theme& theme) { return theme.runB; }

/// One curve of a strip.
struct RateSeries {
    QString name;
    QColor (*colour)(const Theme&) = nullptr;
    double (*count)(const RateInterval&) = nullptr; // in an interval; NaN: nothing is known of it
};

class RateStrip final : public ServingStrip {
public:
    enum class Of { Things, Bytes };
    RateStrip(QString title, Of of, std::vector<RateSeries> series)
        : title_(std::move(title)), of_(of), series_(std::move(series)) {}

    void build(QCPAxisRect& panel) override {
        panel_ = &panel;
        for (std::size_t i = 0; i < series_.size(); ++i) graphs_.push_back(curveIn(panel));
    }

    QCPRange fill(const ServingData& data) override {
        const ServingRates& rates = data.rates;
        double most = 0;
        for (const RateInterval& interval : rates.intervals)
            for (const RateSeries& series : series_)
                if (const double rate = rates.perSecond(series.count(interval)); rate > most) most = rate;
        if (of_ == Of::Bytes)
            scale_ = std::find_if(std::begin(kScales), std::end(kScales) - 1,
                                  [&](const Scale& each) { return most >= each.factor; });
        QVector<double> starts;
        for (std::size_t i = 0; i <= rates.intervals.size(); ++i) starts << double(i) * rates.lengthNs;
        for (std::size_t s = 0; s < series_.size(); ++s) {
            QVector<double> values;
            bool any = s == 0; // what never happened has no curve and no name, but for the first
            for (const RateInterval& interval : rates.intervals) {
                values << rates.perSecond(series_[s].count(interval)) / factor();
                any |= values.back() > 0;
            }
            if (values.isEmpty()) starts.clear();
            if (!values.isEmpty()) values << double(values.back()); // a step reaches to the next point
            graphs_[s]->setData(starts, values, true);
            graphs_[s]->setVisible(any);
        }
        return {0, most > 0 ? most / factor() * kRoomAbove : 1};
    }

    void nameAxis() override {
        QCPAxis* axis = panel_->axis(QCPAxis::atLeft);
        if (of_ == Of::Bytes)
            setUnitAxis(axis, QStringLiteral("%1 (%2)").arg(title_, QLatin1String(scale_->name)), Unit::Fraction);
        else
            setUnitAxis(axis, title_, Unit::Fraction);
        axis->ticker()->setTickCount(3);
    }

    void themed(const Theme& theme) override {
        for (std::size_t i = 0; i < series_.size(); ++i) {
            graphs_[i]->setPen(QPen(series_[i].colour(theme), 1.5));
            if (i == 0) graphs_[i]->setBrush(faint(series_[i].colour(theme), kFill));
        }
    }

    QVector<Swatch> swatches(const Theme& theme) const override {
        QVector<Swatch> swatches;
        for (std::size_t i = 0; i < series_.size(); ++i)
            if (graphs_[i]->visible())
                swatches << Swatch{series_[i].name, series_[i].colour(theme), Swatch::Mark::Line, {}};
        return swatches;
    }

    void addFacts(const ServingData& data, double ns, double, const Add& add) const override {
        const ServingRates& rates = data.rates;
        if (rates.intervals.empty()) return;
        const std::size_t place = rates.placeOf(ns);
        add(View::tr("Interval"),
            View::tr("%1 to %2")
                .arg(servingTime(double(place) * rates.lengthNs), servingTime(double(place + 1) * rates.lengthNs)));
        for (const RateSeries& series : series_) {
            const double count = series.count(rates.intervals[place]);
            if (std::isnan(count)) continue;
            add(series.name,
                of_ == Of::Bytes
                    ? View::tr("%1 (%2)").arg(formatBandwidth(rates.perSecond(count)), servingBytes(count))
                    : View::tr("%1 a second (%2)")
                          .arg(formatValue(Unit::Fraction, rates.perSecond(count)), formatValue(Unit::Count, count)));
        }
    }

private:
    struct Scale {
        double factor;
        const char* name;
    };
    static constexpr Scale kScales[] = {{1e9, "GB/s"}, {1e6, "MB/s"}, {1e3, "kB/s"}, {1, "B/s"}};
    double factor() const { return of_ == Of::Bytes ? scale_->factor : 1; }

    const QString title_;
    const Of of_;
    const std::vector<RateSeries> series_;
    const Scale* scale_ = std::end(kScales) - 1; // of bytes
    QCPAxisRect* panel_ = nullptr;
    std::vector<QCPGraph*> graphs_; // by series
};

class InSystemStrip final : public ServingStrip {
public:
    void build(QCPAxisRect& panel) override {
        panel_ = &panel;
        inside_ = curveIn(panel), waiting_ = curveIn(panel);
    }

    QCPRange fill(const ServingData& data) override {
        inSystem_ = requestsInSystem(data.rows.requests);
        QVector<double> at, inside, starts, waiting;
        double most = 1;
        for (const auto& [ns, number] : inSystem_) {
            at << ns, inside << number;
            most = std::max(most, double(number));
        }
        if (!at.isEmpty()) at << std::max(at.back(), data.end()), inside << double(inside.back());
        for (const IterationRow& row : data.rows.iterations) {
            starts << double(row.startNs), waiting << double(row.waiting + row.paused);
            most = std::max(most, waiting.back());
        }
        if (!starts.isEmpty()) starts << double(data.rows.iterations.back().endNs()), waiting << double(waiting.back());
        inside_->setData(at, inside, true), waiting_->setData(starts, waiting, true);
        return {0, most * kRoomAbove};
    }

    void nameAxis() override {
        setUnitAxis(panel_->axis(QCPAxis::atLeft), View::tr("Requests"), Unit::Count);
        panel_->axis(QCPAxis::atLeft)->setProperty(kShortTitle, View::tr("Req."));
        panel_->axis(QCPAxis::atLeft)->ticker()->setTickCount(3);
    }
    void themed(const Theme& theme) override {
        inside_->setPen(QPen(blue(theme), 1.5));
        waiting_->setPen(QPen(yellow(theme), 1)), waiting_->setBrush(faint(yellow(theme), kWaitingFill));
    }
    QVector<Swatch> swatches(const Theme& theme) const override {
        return {{View::tr("in the system"), blue(theme), Swatch::Mark::Line, {}},
                {View::tr("wait or paused"), faint(yellow(theme), kWaitingFill), Swatch::Mark::Fill, {}}};
    }

    void addFacts(const ServingData&, double ns, double, const Add& add) const override {
        const auto next = std::upper_bound(inSystem_.begin(), inSystem_.end(), ns,
                                           [](double at, const auto& change) { return at < change.first; });
        add(View::tr("In the system"), formatCount(next == inSystem_.begin() ? 0 : std::prev(next)->second));
    }

private:
    QCPAxisRect* panel_ = nullptr;
    QCPGraph *inside_ = nullptr, *waiting_ = nullptr;
    std::vector<std::pair<double, int>> inSystem_;
};

double arrivedOf(const RateInterval& interval) { return double(interval.arrived); }
double finishedOf(const RateInterval& interval) { return double(interval.finished); }
double lostOf(const RateInterval& interval) { return double(interval.lost); }
double tokensOf(const RateInterval& interval) { return double(interval.tokens); }
double promptsOf(const RateInterval& interval) { return double(interval.promptTokens); }
double loadedOf(const RateInterval& interval) { return interval.loadedBytes; }
double toDeviceOf(const RateInterval& interval) {
    return interval.pcie ? double(interval.pcie->countedToDevice) : std::numeric_limits<double>::quiet_NaN();
}
double toHostOf(const RateInterval& interval) {
    return interval.pcie ? double(interval.pcie->countedToHost) : std::numeric_limits<double>::quiet_NaN();
}

} // namespace

std::unique_ptr<ServingStrip> makeRequestRateStrip() {
    return std::make_unique<RateStrip>(View::tr("Requests (per s)"), RateStrip::Of::Things,
                                       std::vector<RateSeries>{{View::tr("arrived"), blue, arrivedOf},
                                                               {View::tr("finished"), yellow, finishedOf},
                                                               {View::tr("refused or failed"), red, lostOf}});
}
std::unique_ptr<ServingStrip> makeInSystemStrip() { return std::make_unique<InSystemStrip>(); }
std::unique_ptr<ServingStrip> makeTokenRateStrip() {
    return std::make_unique<RateStrip>(View::tr("Tokens (per s)"), RateStrip::Of::Things,
                                       std::vector<RateSeries>{{View::tr("tokens made"), blue, tokensOf}});
}
std::unique_ptr<ServingStrip> makePromptRateStrip() {
    return std::make_unique<RateStrip>(View::tr("Tokens (per s)"), RateStrip::Of::Things,
                                       std::vector<RateSeries>{{View::tr("prompt tokens read"), ofPrompts, promptsOf}});
}
std::unique_ptr<ServingStrip> makeLinkRateStrip() {
    return std::make_unique<RateStrip>(View::tr("Link"), RateStrip::Of::Bytes,
                                       std::vector<RateSeries>{{View::tr("blocks loaded"), red, loadedOf},
                                                               {View::tr("PCIe to device"), blue, toDeviceOf},
                                                               {View::tr("PCIe to host"), yellow, toHostOf}});
}

} // namespace kvscope::ui
