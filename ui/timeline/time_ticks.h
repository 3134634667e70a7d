// Round times for a ruler, written so that neighbours differ and none is longer than needed.
#pragma once

#include "ui/timeline/timeline_scene.h"

#include <QString>

#include <vector>

namespace kvscope::ui {

struct TimeTick {
    double ns = 0;
    QString label;
};

/// Ticks for the range, at most about one per `spacing` pixels. Far from zero and deeply zoomed, the first tick says
/// the time, and the others how much later they are: "253.1234 ms", "+20 ns".
std::vector<TimeTick> timeTicks(const TimeRange& window, int width, int spacing = 110);

/// A duration or a moment with as many digits as matter beside `precision`.
QString formatTime(double ns, double precision);

} // namespace kvscope::ui
