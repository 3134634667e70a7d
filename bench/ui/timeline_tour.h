// Drives a timeline as a person would, event by event, and times what each of them takes until it is painted.
#pragma once

#include <vector>

namespace kvscope::ui {
class TimelineCanvas;
}

namespace kvscope::bench {

/// One event and the painting of what it changed, in milliseconds; x in pixels of the canvas.
double turnWheel(ui::TimelineCanvas& canvas, int clicks, double x);
double pressKey(ui::TimelineCanvas& canvas, int key);

/// Milliseconds per frame of zooming in at four places, panning there, and coming out again: what is drawn goes from
/// everything to single spans.
std::vector<double> timelineTour(ui::TimelineCanvas& canvas);

} // namespace kvscope::bench
