#include "ui/views/serving/percentile_plot.h"

#include "core/serve/serving_metrics.h"
#include "ui/frame/units.h"
#include "ui/frame/view.h"
#include "ui/look/theme.h"
#include "ui/plots/log_axis.h"
#include "ui/plots/plot_canvas.h"
#include "ui/plots/tick_fit.h"
#include "ui/views/serving/serving_strip.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

namespace kvscope::ui {
namespace {

constexpr std::array<double, 4> kShown{0.5, 0.9, 0.99, 0.999};
constexpr double kLeastTop = 1.3, kAboveTop = 0.15, kMargin = 0.06; // in decades

/// The coordinate of a percentile. share: of the samples, that are longer
double placeOfTail(double share) { return -std::log10(share); }

/// The share of samples that are longer than this one. The longest has half of what the one before it has, so that it
/// has a place as well.
double tailOf(std::size_t sample, std::size_t count) {
    const double steps = std::max(double(count) - 1, 1.0);
    return sample + 1 == count ? 0.5 / steps : double(count - 1 - sample) / steps;
}

double placeOfNs(double ns) { return std::log10(std::max(ns, 1e3) / 1e6); } // a microsecond is the least that is drawn

QString percentileName(double p) { return QStringLiteral("P%1").arg(QString::number(100 * p, 'g', 8)); }

/// Names as many percentiles as there is room for, those that tell most of a latency first.
class PercentileTicker final : public QCPAxisTickerText {
public:
    PercentileTicker() {
        setTickCount(kMostNames);
        for (int nines = 1; nines <= 6; ++nines) addTick(nines, percentileName(1 - std::pow(10, -nines)));
        addTick(placeOfTail(0.5), percentileName(0.5));
        addTick(0, percentileName(0));
    }

protected:
    QVector<double> createTickVector(double, const QCPRange& range) override {
        const double least = range.size() / std::max(tickCount(), 1);
        QVector<double> taken;
        for (const double place : {1.0, 2.0, 3.0, 4.0, 5.0, 6.0, placeOfTail(0.5), 0.0})
            if (range.contains(place) &&
                std::none_of(taken.begin(), taken.end(), [&](double other) { return std::abs(other - place) < least; }))
                taken << place;
        std::sort(taken.begin(), taken.end());
        return taken;
    }

private:
    static constexpr int kMostNames = 16;
};

/// @return where a rising curve enters and leaves a part of the horizontal axis; none: it does not reach into it
std::optional<QCPRange> endsWithin(const QCPGraphDataContainer& curve, const QCPRange& part) {
    if (curve.isEmpty()) return std::nullopt;
    const auto first = curve.constBegin(), last = curve.constEnd() - 1;
    if (first->key > part.upper || last->key < part.lower) return std::nullopt;
    const auto valueAt = [&](double key) {
        const auto right = std::clamp(curve.findBegin(key, false), first, last);
        if (right == first || right->key <= key) return right->value;
        const auto left = right - 1;
        return left->value + (right->value - left->value) * (key - left->key) / (right->key - left->key);
    };
    return QCPRange(valueAt(part.lower), valueAt(part.upper));
}

} // namespace

PercentilePlot::PercentilePlot(PlotCanvas& canvas, int panel, QString title)
    : canvas_(canvas), rect_(canvas.addPanel(true, panel)), panel_(panel), title_(std::move(title)) {
    QCPAxis *across = rect_->axis(QCPAxis::atBottom), *up = rect_->axis(QCPAxis::atLeft);
    setLogAxis(across, View::tr("%1 (ms)").arg(title_), 10);
    up->setLabel(View::tr("Percentile"));
    up->setProperty(kShortTitle, View::tr("%ile"));
    up->setTicker(QSharedPointer<PercentileTicker>::create());
    bound_ = new QCPGraph(across, up);
    percentiles_ = new QCPGraph(across, up);
    percentiles_->setLineStyle(QCPGraph::lsNone);
    intervals_ = new QCPErrorBars(across, up);
    intervals_->setErrorType(QCPErrorBars::etKeyError);
    intervals_->setDataPlottable(percentiles_);
    intervals_->setSymbolGap(0);
    boundText_ = new QCPItemText(&canvas);
    boundText_->setClipAxisRect(rect_);
    boundText_->position->setAxisRect(rect_);
    boundText_->position->setAxes(across, up);
    boundText_->setPadding(QMargins(6, 2, 6, 2));
    canvas.setMinimumSpan(0.02, panel);
    canvas.setMinimumHeight(panel, 0.1);
    QObject::connect(&canvas, &QCustomPlot::afterLayout, boundText_, [this] { placeBound(); });
}

void PercentilePlot::setCurves(std::vector<Curve> curves, double boundMs) {
    curves_ = std::move(curves), boundMs_ = boundMs;
    chosen_ = std::min(chosen_, curves_.empty() ? 0 : curves_.size() - 1);
    while (graphs_.size() < curves_.size()) {
        graphs_.push_back(new QCPGraph(rect_->axis(QCPAxis::atBottom), rect_->axis(QCPAxis::atLeft)));
        graphs_.back()->setAntialiased(true);
    }
    double low = std::numeric_limits<double>::infinity(), high = -low, top = kLeastTop;
    for (std::size_t c = 0; c < graphs_.size(); ++c) {
        QVector<double> across, up;
        const std::size_t count = c < curves_.size() ? curves_[c].samples.size() : 0;
        for (std::size_t i = 0; i < count; ++i) {
            across << placeOfNs(curves_[c].samples[i].ns), up << placeOfTail(tailOf(i, count));
            top = std::max(top, up.back());
        }
        graphs_[c]->setData(across, up, true);
        if (count == 0) continue;
        low = std::min(low, across.front()), high = std::max(high, across.back());
    }
    top += kAboveTop;
    if (boundMs > 0) low = std::min(low, placeOfNs(boundMs * 1e6)), high = std::max(high, placeOfNs(boundMs * 1e6));
    if (low > high) low = 0, high = 3;
    bound_->setVisible(boundMs > 0);
    if (boundMs > 0) bound_->setData({placeOfNs(boundMs * 1e6), placeOfNs(boundMs * 1e6)}, {-1, top + 1}, true);
    const double margin = std::max(kMargin, 0.03 * (high - low));
    canvas_.setFullX({low - margin, high + margin}, panel_);
    canvas_.setFullY(panel_, {0, top});
    showChosen();
}

void PercentilePlot::choose(std::size_t curve) {
    if (curve >= curves_.size()) return;
    chosen_ = curve;
    showChosen();
}

const std::vector<LatencySample>& PercentilePlot::samples() const {
    static const std::vector<LatencySample> none;
    return curves_.empty() ? none : curves_[chosen_].samples;
}

void PercentilePlot::showChosen() {
    const std::vector<double> values = nanosecondsOf(samples());
    QVector<double> across, up, before, behind;
    for (const double p : kShown)
        if (const auto shown = serve::shownPercentile(values, p)) {
            across << placeOfNs(shown->value), up << placeOfTail(1 - p);
            before << across.back() - placeOfNs(shown->low), behind << placeOfNs(shown->high) - across.back();
        }
    percentiles_->setData(across, up, true);
    intervals_->setData(before, behind);
    const std::optional<double> share = shareInTime();
    boundText_->setVisible(share.has_value());
    if (share)
        boundText_->setText(View::tr("%1 of %2 within %3")
                                .arg(formatValue(Unit::Percent, 100 * *share),
                                     formatCount(std::int64_t(samples().size())), servingTime(boundMs_ * 1e6)));
    applyTheme(Theme::current());
}

/// The text stands on the side of the line where there is more room, below the curves or above them.
void PercentilePlot::placeBound() {
    const QCPAxis *across = rect_->axis(QCPAxis::atBottom), *up = rect_->axis(QCPAxis::atLeft);
    const double at = placeOfNs(boundMs_ * 1e6);
    const bool before = at > across->range().center();
    const QSize size = QFontMetrics(boundText_->font()).size(0, boundText_->text()) + QSize(12, 4); // with its padding
    const double atPixel = across->coordToPixel(at);
    const QCPRange covered(across->pixelToCoord(before ? atPixel - size.width() : atPixel),
                           across->pixelToCoord(before ? atPixel : atPixel + size.width()));
    const double low = up->pixelToCoord(rect_->bottom() - size.height());
    const double high = up->pixelToCoord(rect_->top() + size.height());
    const auto crossed = [&](auto&& reaches) {
        return std::any_of(graphs_.begin(), graphs_.end(), [&](const QCPGraph* graph) {
            const auto ends = endsWithin(*graph->data(), covered);
            return ends && reaches(*ends);
        });
    };
    const bool footTaken = crossed([&](const QCPRange& curve) { return curve.lower < low; });
    const bool topTaken = crossed([&](const QCPRange& curve) { return curve.upper > high; });
    const bool above = footTaken && !topTaken;
    // A low plot has no place that is clear; the table has the share, too.
    boundText_->setVisible(!boundText_->text().isEmpty() && bound_->visible() && !(footTaken && topTaken));
    boundText_->position->setCoords(at, above ? up->range().upper : up->range().lower);
    boundText_->setPositionAlignment((before ? Qt::AlignRight : Qt::AlignLeft) |
                                     (above ? Qt::AlignTop : Qt::AlignBottom));
}

std::optional<double> PercentilePlot::shareInTime() const {
    const std::vector<LatencySample>& all = samples();
    if (boundMs_ <= 0 || all.empty()) return std::nullopt;
    const auto late = std::upper_bound(all.begin(), all.end(), boundMs_ * 1e6,
                                       [](double bound, const LatencySample& sample) { return bound < sample.ns; });
    return double(late - all.begin()) / double(all.size());
}

QPointF PercentilePlot::placeOf(std::size_t sample) const {
    return {placeOfNs(samples()[sample].ns), placeOfTail(tailOf(sample, samples().size()))};
}

std::optional<std::size_t> PercentilePlot::nearest(QPointF at) const {
    if (samples().empty()) return std::nullopt;
    // The curve rises, so that the sample at the place's height is near, and the nearest one is among its neighbours.
    const auto count = samples().size();
    const auto distance = [&](std::size_t sample) {
        const QPointF place = placeOf(sample);
        const QCPAxis *across = rect_->axis(QCPAxis::atBottom), *up = rect_->axis(QCPAxis::atLeft);
        return std::hypot(across->coordToPixel(place.x()) - across->coordToPixel(at.x()),
                          up->coordToPixel(place.y()) - up->coordToPixel(at.y()));
    };
    const auto byHeight =
        std::size_t(std::clamp((1 - std::pow(10, -at.y())) * double(count - 1), 0.0, double(count - 1)));
    const double ns = std::pow(10, at.x()) * 1e6;
    const auto byLength =
        std::size_t(std::lower_bound(samples().begin(), samples().end(), ns,
                                     [](const LatencySample& sample, double length) { return sample.ns < length; }) -
                    samples().begin());
    std::size_t best = std::min(byLength, count - 1);
    const std::size_t from = std::min(byHeight, best), to = std::max(byHeight, best);
    // A curve that rises passes the place between the two; where many samples lie there, some of them are looked at.
    const std::size_t stride = std::max<std::size_t>((to - from) / 2000, 1);
    for (std::size_t i = from; i <= to; i += stride)
        if (distance(i) < distance(best)) best = i;
    if (distance(to) < distance(best)) best = to;
    return best;
}

void PercentilePlot::mark(std::optional<std::size_t> sample) {
    CursorMark mark;
    mark.size = 0;
    if (sample && *sample < samples().size()) mark.x = placeOf(*sample).x(), mark.y = placeOf(*sample).y();
    canvas_.overlay().setMark(rect_, mark);
    canvas_.replotOverlay();
}

QString PercentilePlot::describe(QPointF at) const {
    const auto sample = nearest(at);
    if (!sample) return {};
    const std::size_t count = samples().size();
    const QString &name = curves_[chosen_].name, latency = servingTime(samples()[*sample].ns);
    if (*sample + 1 == count)
        return View::tr("%1: %2, the longest of %3").arg(name, latency, formatCount(std::int64_t(count)));
    return View::tr("%1: %2; %3 of %4 are not longer")
        .arg(name, latency, formatValue(Unit::Percent, 100 * (1 - tailOf(*sample, count))),
             formatCount(std::int64_t(count)));
}

QColor PercentilePlot::colourOf(const Theme& theme, std::size_t curve) {
    constexpr std::array<std::size_t, 6> kComponents{0, 5, 2, 6, 10, 3};
    return curve == 0 ? theme.text : theme.component[kComponents[(curve - 1) % kComponents.size()]];
}

void PercentilePlot::applyTheme(const Theme& theme) {
    for (std::size_t c = 0; c < graphs_.size(); ++c) {
        const QColor colour = colourOf(theme, c);
        graphs_[c]->setPen(QPen(c == chosen_ ? colour : faint(colour, 0.7), c == chosen_ ? 2.2 : 1.2));
    }
    bound_->setPen(QPen(theme.danger, 1, Qt::DashLine));
    const QColor chosen = colourOf(theme, chosen_);
    percentiles_->setScatterStyle(
        QCPScatterStyle(QCPScatterStyle::ssCircle, QPen(chosen, 1.5), theme.plotBackground, 8));
    intervals_->setPen(QPen(chosen, 1.2));
    boundText_->setColor(theme.danger);
    boundText_->setFont(rect_->axis(QCPAxis::atBottom)->tickLabelFont());
}

} // namespace kvscope::ui
