#include "ui/frame/units.h"
#include "ui/look/theme.h"
#include "ui/plots/legend_strip.h"
#include "ui/plots/plot_canvas.h"
#include "ui/plots/tick_fit.h"
#include "ui/views/cache/cache_plots.h"

#include <QCoreApplication>

#include <algorithm>
#include <cmath>

namespace kvscope::ui {

namespace {

QString tr(const char* text) { return QCoreApplication::translate("CacheView", text); }

/// Labels at powers of two of what the axis holds the logarithm of.
class PowerTicker final : public QCPAxisTicker {
public:
    PowerTicker() { setTickCount(8); }

protected:
    double getTickStep(const QCPRange& range) override {
        return range.size() > 2.5 ? std::max(1.0, std::round(range.size() / (tickCount() + 2)))
                                  : QCPAxisTicker::getTickStep(range);
    }
    int getSubTickCount(double) override { return 0; }
    QString getTickLabel(double tick, const QLocale&, QChar, int) override {
        return QString::number(std::exp2(tick), 'g', 4);
    }
};

double rate(double tokens, double ns) { return ns > 0 ? tokens * 1e9 / ns : std::numeric_limits<double>::quiet_NaN(); }

/// "12.3" where whole numbers would say too little.
QString rateText(double perSecond) { return formatValue(Unit::Count, perSecond) + tr(" tokens/s"); }

} // namespace

SpeedPlot::SpeedPlot(PlotCanvas& canvas, int panel, int group)
    : canvas_(canvas), panel_(panel), group_(group), rect_(canvas.panels()[panel]) {
    const auto add = [this](bool line) {
        auto* graph = new QCPGraph(rect_->axis(QCPAxis::atBottom), rect_->axis(QCPAxis::atLeft));
        graph->setAntialiased(true);
        if (!line) graph->setLineStyle(QCPGraph::lsNone);
        return graph;
    };
    compute_ = add(true);
    link_ = add(true);
    predicted_ = add(true);
    ahead_ = add(true);
    recorded_ = add(false);
    asked_ = add(false);
    for (QCPGraph* mark : {recorded_, asked_}) mark->setLayer(QStringLiteral("axes")); // over the line that is dragged
    handle_ = new QCPItemStraightLine(&canvas_);
    handle_->setClipAxisRect(rect_);
    for (QCPItemPosition* position : handle_->positions()) {
        position->setAxisRect(rect_);
        position->setAxes(rect_->axis(QCPAxis::atBottom), rect_->axis(QCPAxis::atLeft));
    }
    setAxis(axis_);
}

void SpeedPlot::setAxis(Axis axis) {
    axis_ = axis;
    if (axis_ == Axis::Size) {
        setIntegerAxis(rect_->axis(QCPAxis::atBottom), tr("Predicted speed by cache size (block slots)"));
        rect_->axis(QCPAxis::atBottom)->setProperty(kShortTitle, tr("Cache size (slots)"));
        canvas_.setMinimumSpan(2, group_);
    } else {
        rect_->axis(QCPAxis::atBottom)->setLabel(tr("Predicted speed by link bandwidth (GB/s)"));
        rect_->axis(QCPAxis::atBottom)->setProperty(kShortTitle, tr("Link (GB/s)"));
        rect_->axis(QCPAxis::atBottom)->setTicker(QSharedPointer<PowerTicker>::create());
        canvas_.setMinimumSpan(0.25, group_);
    }
    setAhead({});
    if (!scene_.whatIf) return;
    show(scene_);
    canvas_.showAllX(group_);
}

QCPRange SpeedPlot::bandwidths(const WhatIfQuestion& question, const WhatIfQuestion& recorded) {
    const double low = std::min({question.gbps, recorded.gbps, 2.0}),
                 high = std::max({question.gbps, recorded.gbps, 256.0});
    return {std::floor(xOf(low)), std::ceil(xOf(high))};
}

void SpeedPlot::show(const CacheScene& scene) {
    scene_ = scene;
    showLines();
    const WhatIf& whatIf = *scene_.whatIf;
    const WhatIfQuestion& question = scene_.question;
    const double x = axis_ == Axis::Size ? question.size : xOf(question.gbps);
    handle_->point1->setCoords(x, 0);
    handle_->point2->setCoords(x, 1);
    canvas_.setHandle(panel_, x);
    asked_->data()->clear();
    if (scene_.answer) asked_->setData({x}, {scene_.answer->tokensPerSecond()}, true);
    recorded_->data()->clear();
    const bool comparable = !whatIf.trace().shared && (axis_ == Axis::Bandwidth || whatIf.hasRecordedCache());
    if (comparable)
        recorded_->setData({axis_ == Axis::Size ? double(whatIf.trace().run.deviceSlots) : xOf(whatIf.recorded().gbps)},
                           {whatIf.recordedRates().tokensPerSecond()}, true);
    if (question.layersAhead == 0) setAhead({});
    applyTheme(Theme::current());
}

void SpeedPlot::showLines() {
    const WhatIf& whatIf = *scene_.whatIf;
    const RateSums recorded = whatIf.recordedRates();
    const double ceiling = rate(recorded.tokens, recorded.computeNs);
    QCPRange range;
    QVector<double> xs, predicted, link;
    const auto add = [&](double x, const ReplayConfig& config) { // on demand: nothing is loaded ahead
        const RateSums sums = rateSums(config, coldSteps());
        xs << x;
        predicted << sums.tokensPerSecond();
        link << rate(sums.tokens, double(sums.exposedNs));
    };
    if (axis_ == Axis::Size) {
        const double first = whatIf.smallestSlots(), last = std::max(whatIf.largestSlots(), whatIf.smallestSlots() + 1);
        range = {first - (last - first) * 0.02, last + (last - first) * 0.02};
        for (const WhatIfAnswer& answer : whatIf.overSizes(scene_.question, false))
            add(answer.config.cacheBlocks, answer.config);
    } else {
        range = bandwidths(scene_.question, whatIf.recorded());
        WhatIfQuestion question = scene_.question;
        question.layersAhead = 0;
        for (int i = 0; i < kPoints; ++i) {
            const double x = range.lower + range.size() * i / (kPoints - 1);
            question.gbps = gbpsOf(x);
            if (const auto answer = whatIf.answer(question)) add(x, answer->config);
        }
    }
    predicted_->setData(xs, predicted, true);
    link_->setData(xs, link, true);
    predicted_->setScatterStyle(axis_ == Axis::Size ? QCPScatterStyle(QCPScatterStyle::ssDisc, 4) : QCPScatterStyle());
    compute_->setData({range.lower, range.upper}, {ceiling, ceiling}, true);
    canvas_.setFullX(range, group_);
    canvas_.setFullY(panel_, {0, ceiling > 0 ? ceiling * 1.12 : 1});
    canvas_.setMinimumHeight(panel_, ceiling > 0 ? ceiling / 1000 : 1);
    setUnitAxis(rect_->axis(QCPAxis::atLeft), tr("Tokens/s"), Unit::Fraction);
    rect_->axis(QCPAxis::atLeft)->setProperty(kShortTitle, tr("tok/s"));
}

void SpeedPlot::setAhead(const QVector<QPointF>& line) {
    QVector<double> xs, ys;
    for (const QPointF& point : line) {
        xs << point.x();
        ys << point.y();
    }
    ahead_->setData(xs, ys, true);
}

void SpeedPlot::applyTheme(const Theme& theme) {
    const QColor policy = policyColour(theme, scene_.question.policy);
    const bool ahead = scene_.question.layersAhead > 0;
    predicted_->setPen(QPen(policy, ahead ? 1.3 : 2.4));
    ahead_->setPen(QPen(theme.accent, 2.4));
    compute_->setPen(QPen(theme.ok, 1.3, Qt::DashLine));
    link_->setPen(QPen(theme.miss, 1.3, Qt::DashLine));
    recorded_->setScatterStyle(QCPScatterStyle(QCPScatterStyle::ssDiamond, QPen(theme.text, 1.8), Qt::NoBrush, 17));
    asked_->setScatterStyle(
        QCPScatterStyle(QCPScatterStyle::ssCircle, QPen(theme.plotBackground, 1.5), ahead ? theme.accent : policy, 11));
    handle_->setPen(QPen(theme.accent, 1.6));
}

QVector<Swatch> SpeedPlot::swatches(const Theme& theme) const {
    QVector<Swatch> swatches{{tr("compute only"), theme.ok, Swatch::Mark::Dashes, {}},
                             {tr("transfer only"), theme.miss, Swatch::Mark::Dashes, {}}};
    if (scene_.question.layersAhead > 0) swatches << Swatch{tr("loading ahead"), theme.accent, Swatch::Mark::Line, {}};
    return swatches;
}

QString SpeedPlot::tooltip(double x) const {
    WhatIfQuestion question = scene_.question;
    if (axis_ == Axis::Size)
        question.size = std::clamp(int(std::lround(x)), scene_.whatIf->smallestSlots(), scene_.whatIf->largestSlots());
    else
        question.gbps = gbpsOf(x);
    const auto answer = scene_.whatIf->answer(question);
    if (!answer) return {};
    const RateSums sums = rateSums(answer->config, coldSteps());
    const int left = coldSteps() == ColdSteps::LeftOut ? scene_.whatIf->coldStepCount() : 0;
    const double steps = std::max(1, int(scene_.whatIf->trace().steps.size()) - left);
    const QString at = axis_ == Axis::Size ? tr("%1 block slots").arg(formatCount(question.size))
                                           : tr("%1 GB/s").arg(formatValue(Unit::Fraction, question.gbps));
    return tr("<b>%1, %2</b><br>%3 <b>%4</b> (predicted)<br>Per step: compute %5 (measured), exposed transfer %6 "
              "(modelled)")
               .arg(at, QString::fromStdString(question.policy), answer->estimated ? QStringLiteral("≈") : QString(),
                    rateText(answer->tokensPerSecond()), formatValue(Unit::Nanoseconds, sums.computeNs / steps),
                    formatValue(Unit::Nanoseconds, double(sums.exposedNs) / steps)) +
           tr("<p>Dashed: tokens/s if there were only compute, or only exposed transfer. ◇: recorded, %1. Click or "
              "drag "
              "the line to ask.</p>")
               .arg(scene_.whatIf->trace().run.timing == Timing::Measured ? tr("measured")
                                                                          : tr("compute measured and link modelled"));
}

QString SpeedPlot::csv() const {
    if (!scene_.whatIf) return {};
    const bool size = axis_ == Axis::Size;
    const QCPRange visible = canvas_.visibleX(group_);
    const std::pair<const char*, const QCPGraph*> series[] = {{"predicted", predicted_},
                                                              {"predicted_loading_ahead", ahead_},
                                                              {"compute_alone", compute_},
                                                              {"exposed_transfer_alone", link_},
                                                              {"recorded", recorded_}};
    QString csv;
    for (const auto& [name, graph] : series) {
        const CsvSeries rows{"predicted_speed", size ? "block slots" : "GB/s", "tokens/s", QLatin1String(name)};
        for (const QCPGraphData& point : *graph->data())
            if (visible.contains(point.key) && std::isfinite(point.value))
                csv += rows.row(size ? point.key : gbpsOf(point.key), point.value);
    }
    return csv;
}

} // namespace kvscope::ui
