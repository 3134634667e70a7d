// The curves of the timeline, whatever they come from: numbers of the steps, counters of the trace.
#pragma once

#include "ui/timeline/timeline_scene.h"

#include <QColor>

#include <string>
#include <vector>

namespace kvscope::ui {

struct Theme;

/// A curve by its number: those of the steps first (StepCounters), then TimelineData::gauges.
inline bool isGauge(int curve) { return curve >= StepCounters::kCount; }

/// The curves that have something to show, in the order of rows: above the spans what the run itself was, below them
/// what another tool sampled, which may be many.
struct CurveOrder {
    std::vector<int> above, below;
};
CurveOrder curvesOf(const TimelineData& data);

std::string curveId(const TimelineData& data, int curve); // for a trackKey
QString curveTitle(const TimelineData& data, int curve);
/// One sentence: what is drawn, and how exact it is.
QString curveHelp(const TimelineData& data, int curve);
/// A value with its unit; "–" for NaN.
QString curveText(const TimelineData& data, int curve, double value);
QRgb curveColour(const TimelineData& data, int curve, const Theme& theme);

/// The values at the lower and upper edge of the row.
std::pair<double, double> curveScale(const TimelineData& data, int curve);
double curveLargest(const TimelineData& data, int curve);
/// Finds the lowest and the highest value within [fromNs, toNs). @return false: there is no value
bool curveRange(const TimelineData& data, int curve, std::int64_t fromNs, std::int64_t toNs, float& low, float& high);
double curveAt(const TimelineData& data, int curve, double ns); // NaN: no value
/// "1.2 GB/s at 3 ms", its largest and what it is, as HTML.
QString curveTooltip(const TimelineData& data, int curve, double ns);

} // namespace kvscope::ui
