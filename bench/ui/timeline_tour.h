// Sends a timeline the events that a person's mouse would, and times each event until the timeline has painted.
#pragma once

#include <vector>

namespace kvscope::ui {
class TimelineCanvas;
}

namespace kvscope::bench {

/// Each of these functions sends one event and paints. @return milliseconds until the timeline has painted. x: in
/// pixels of the canvas.
double turnWheel(ui::TimelineCanvas& canvas, int clicks, double x);
double pressKey(ui::TimelineCanvas& canvas, int key);

/// At four places zooms in from everything to single spans, pans, and zooms out again. @return the milliseconds of each
/// frame
std::vector<double> timelineTour(ui::TimelineCanvas& canvas);

} // namespace kvscope::bench
