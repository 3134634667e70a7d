// How far the timeline's run is read, stopped and taken up again by a person, and what follows in the background.
#include "base/host_memory.h"
#include "ui/timeline/self_time_numbers.h"
#include "ui/views/timeline/timeline_view.h"
#include "ui/widgets/loading_strip.h"

#include <algorithm>

namespace kvscope::ui {

namespace {
constexpr int kReadingRowsAtOnce =
    500'000; // a tenth of a second of a worker: another question need not wait for all of them
}

QWidget* TimelineView::makeReadingStrip() {
    strip_ = new LoadingStrip(this, tr("% of the run"));
    connect(strip_, &LoadingStrip::stopped, this, &TimelineView::stopReading);
    connect(strip_, &LoadingStrip::resumed, this, &TimelineView::readOn);
    return strip_;
}

void TimelineView::showReading() {
    const int percent = int(100 * (feed_.counting() ? feed_.countedFraction() : feed_.fraction()));
    strip_->show(feed_.paused()    ? LoadingStrip::State::Paused
                 : feed_.loading() ? LoadingStrip::State::Loading
                                   : LoadingStrip::State::Idle,
                 percent, 100);
}

void TimelineView::stopReading() {
    feed_.pause();
    showReading();
    updateNote();
    timers_.times.start(); // of what is there
}

void TimelineView::readOn() {
    feed_.resume();
    showReading();
    updateNote();
}

void TimelineView::readRows() {
    const OpenRun* run = workspace_.current();
    if (!run || readingRows_) return;
    readingRows_ = true;
    workspace_.query<bool>(
        this, "rows", run->key,
        [rows = rows_](TraceReader& reader) { return rows->readOn(reader, kReadingRowsAtOnce); },
        [this, rows = rows_](bool atEnd) {
            if (rows != rows_) return; // of the run of before
            readingRows_ = false;
            if (!atEnd) readRows();
        });
}

bool TimelineView::isComplete() const {
    return !feed_.loading() && !feed_.paused() && feed_.problem().isEmpty() && canvas_->data().index.waiting() == 0;
}

NumberWriter TimelineView::completeTimes() const {
    const OpenRun* run = workspace_.current();
    return selfTimesOf({run->key.path, run->key.runId, shownRange()}, panel_->grouping(), workspace_.filter(),
                       std::min(memoryLimit_, availableHostMemory() / 2));
}

} // namespace kvscope::ui
