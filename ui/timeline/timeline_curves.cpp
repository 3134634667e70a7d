#include "ui/timeline/timeline_curves.h"

#include "profiler/format/counter_sample.h"
#include "ui/frame/units.h"
#include "ui/look/theme.h"
#include "ui/plots/bandwidth.h"
#include "ui/timeline/time_ticks.h"
#include "ui/timeline/timeline_colours.h"

#include <QCoreApplication>

#include <algorithm>
#include <cmath>

namespace kvscope::ui {

namespace {

using Source = GaugeInfo::Source;

QString tr(const char* text) { return QCoreApplication::translate("TimelineCurves", text); }
const Gauge& gaugeOf(const TimelineData& data, int curve) { return data.gauges[curve - StepCounters::kCount]; }
StepCounters::Counter counterOf(int curve) { return StepCounters::Counter(curve); }

QString numberText(double value) {
    const double size = std::abs(value);
    if (size >= 1e4 && size < 1e15) return formatCount(std::llround(value));
    return QString::number(value, 'g', size >= 100 ? 5 : 4);
}

/// The end of a curve: the blocks that the cache held are known as long as steps were recorded, and not after that.
std::int64_t endOf(const TimelineData& data, int curve) {
    std::int64_t from = 0, to = 0;
    const bool ends =
        gaugeOf(data, curve).info.source == Source::Residency && data.counters.timesOfAll(false, from, to);
    return ends ? to : GaugeSeries::kOpen;
}

bool isShown(const Gauge& gauge) {
    if (gauge.info.source == Source::Oracle) return gauge.series.size() > 0; // a loss of 0 says something
    return gauge.series.size() > 0 && (gauge.series.largest() > 0 || gauge.series.smallest() < 0);
}

} // namespace

CurveOrder curvesOf(const TimelineData& data) {
    CurveOrder order;
    const auto shown = [&](Source source) {
        std::vector<int> curves;
        for (std::size_t i = 0; i < data.gauges.size(); ++i)
            if (data.gauges[i].info.source == source && isShown(data.gauges[i]))
                curves.push_back(StepCounters::kCount + int(i));
        std::sort(curves.begin(), curves.end(), [&](int a, int b) {
            // "to device" before "to host", as on the tracks below: what is counted, then the name.
            return gaugeOf(data, a).info.title < gaugeOf(data, b).info.title;
        });
        return curves;
    };
    const std::vector<int> residency = shown(Source::Residency), counted = shown(Source::Interval),
                           measured = shown(Source::Oracle);
    for (int c = 0; c < StepCounters::kCount; ++c) {
        if (!data.counters.has(counterOf(c))) continue;
        if (c == StepCounters::Occupancy && !residency.empty()) continue; // known exactly
        order.above.push_back(c);
    }
    order.above.insert(order.above.end(), measured.begin(), measured.end());
    order.above.insert(order.above.end(), residency.begin(), residency.end());
    order.above.insert(order.above.end(), counted.begin(), counted.end());
    order.below = shown(Source::Held);
    return order;
}

std::string curveId(const TimelineData& data, int curve) {
    if (!isGauge(curve)) return StepCounters::info(counterOf(curve)).id;
    const GaugeInfo& info = gaugeOf(data, curve).info;
    return std::to_string(int(info.source)) + ' ' + info.track;
}

QString curveTitle(const TimelineData& data, int curve) {
    if (!isGauge(curve)) return QString::fromUtf8(StepCounters::info(counterOf(curve)).title);
    const GaugeInfo& info = gaugeOf(data, curve).info;
    const QString title = QString::fromStdString(info.title);
    return info.source == Source::Residency && data.incomplete ? tr("%1 (at least)").arg(title) : title;
}

QString curveHelp(const TimelineData& data, int curve) {
    if (!isGauge(curve)) return QString::fromUtf8(StepCounters::info(counterOf(curve)).help);
    const GaugeInfo& info = gaugeOf(data, curve).info;
    switch (info.source) {
    case Source::Residency:
        return data.incomplete ? tr("Blocks that have a slot in the sparse layers, in bytes. A lower bound: steps were "
                                    "dropped while recording")
                               : tr("Blocks that have a slot in the sparse layers, in bytes: exact, counted from every "
                                    "KV head's misses. The upper edge is all slots");
    case Source::Interval:
        return info.unit == GaugeUnit::BytesPerSecond
                   ? tr("What the GPU's own counter saw in each interval, packet headers and other programs included")
                   : tr("What was counted in each interval");
    case Source::Oracle:
        return info.track == kOracleRecall
                   ? tr("Share of the blocks with the most attention mass, as many as were selected, that were "
                        "selected: "
                        "mean over all layers, sequences and KV heads that selected in the step")
                   : tr("Share of the full attention that falls on blocks which were not selected: mean over all "
                        "layers, sequences and KV heads that selected in the step");
    case Source::Held:
        break;
    }
    return tr("As another tool recorded it; a value holds until the next one");
}

QString curveText(const TimelineData& data, int curve, double value) {
    if (!std::isfinite(value)) return QStringLiteral("–");
    if (!isGauge(curve)) {
        const QString unit = QString::fromUtf8(StepCounters::info(counterOf(curve)).unit);
        if (unit == QLatin1String("share")) return formatValue(Unit::Percent, value * 100);
        if (unit == QLatin1String("bytes/s")) return formatBandwidth(value);
        if (unit == QLatin1String("tokens")) return formatCount(std::llround(value));
        return QString::number(value, 'f', value < 100 ? 1 : 0) + QStringLiteral("/s");
    }
    const GaugeInfo& info = gaugeOf(data, curve).info;
    switch (info.unit) {
    case GaugeUnit::Bytes:
        return formatValue(Unit::Bytes, value);
    case GaugeUnit::BytesPerSecond:
        return formatBandwidth(value);
    case GaugeUnit::Percent:
        return formatValue(Unit::Percent, value);
    case GaugeUnit::Number:
        break;
    }
    return info.unitName.empty() ? numberText(value)
                                 : numberText(value) + QLatin1Char(' ') + QString::fromStdString(info.unitName);
}

QRgb curveColour(const TimelineData& data, int curve, const Theme& theme) {
    const QRgb link = theme.component[5].rgb();
    switch (curve) {
    case StepCounters::TokenRate:
        return theme.accent.rgb();
    case StepCounters::HitRate:
        return theme.ok.rgb();
    case StepCounters::ToDevice:
        return link;
    case StepCounters::ToHost:
        return mixed(link, theme.mutedText.rgb(), 0.5);
    case StepCounters::Occupancy:
    case StepCounters::KvTokens:
        return theme.component[6].rgb();
    default:
        break;
    }
    const GaugeInfo& info = gaugeOf(data, curve).info;
    if (info.source == Source::Residency) return theme.component[6].rgb();
    if (info.source == Source::Oracle)
        return info.track == kOracleRecall ? mixed(theme.ok.rgb(), theme.accent.rgb(), 0.5) : theme.danger.rgb();
    if (info.track == kPcieToDevice || info.track == kPmToDevice) return mixed(link, theme.warning.rgb(), 0.5);
    if (info.track == kPcieToHost || info.track == kPmToHost) return mixed(link, theme.mutedText.rgb(), 0.65);
    return mixed(spanColour(info.title, theme), theme.text.rgb(), 0.1);
}

std::pair<double, double> curveScale(const TimelineData& data, int curve) {
    if (!isGauge(curve)) {
        const bool share = QLatin1String(StepCounters::info(counterOf(curve)).unit) == QLatin1String("share");
        return {0, share ? 1.0 : data.counters.largest(counterOf(curve)) * 1.05};
    }
    const Gauge& gauge = gaugeOf(data, curve);
    const double low = std::min(0.0, gauge.series.smallest()), high = std::max(0.0, gauge.series.largest());
    return {low * 1.05, gauge.info.ceiling >= high ? gauge.info.ceiling * 1.02 : high * 1.05};
}

double curveLargest(const TimelineData& data, int curve) {
    return isGauge(curve) ? gaugeOf(data, curve).series.largest() : data.counters.largest(counterOf(curve));
}

bool curveRange(const TimelineData& data, int curve, std::int64_t fromNs, std::int64_t toNs, float& low, float& high) {
    if (!isGauge(curve)) return data.counters.range(counterOf(curve), fromNs, toNs, low, high);
    return fromNs < endOf(data, curve) && gaugeOf(data, curve).series.range(fromNs, toNs, low, high);
}

double curveAt(const TimelineData& data, int curve, double ns) {
    const auto at = std::int64_t(std::floor(ns));
    if (!isGauge(curve)) return data.counters.at(counterOf(curve), at);
    return at < endOf(data, curve) ? gaugeOf(data, curve).series.at(at) : std::nan("");
}

QString curveTooltip(const TimelineData& data, int curve, double ns) {
    QString text = QStringLiteral("<b>%1</b> &nbsp;%2<br>%3, %4")
                       .arg(curveTitle(data, curve).toHtmlEscaped(),
                            curveText(data, curve, curveAt(data, curve, ns)).toHtmlEscaped(),
                            tr("at %1").arg(formatTime(ns, 1'000)),
                            tr("at most %1").arg(curveText(data, curve, curveLargest(data, curve)).toHtmlEscaped()));
    if (isGauge(curve) && gaugeOf(data, curve).info.source == Source::Residency)
        text += QStringLiteral(" ") +
                tr("of %1").arg(curveText(data, curve, gaugeOf(data, curve).info.ceiling).toHtmlEscaped());
    return text + QStringLiteral("<br>") + curveHelp(data, curve).toHtmlEscaped();
}

} // namespace kvscope::ui
