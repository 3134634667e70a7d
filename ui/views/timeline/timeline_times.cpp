// Where the time of the measured range, or of what is shown, went. Millions of spans take a second to add up: a few
// milliseconds of it between two frames, so that a person pans and zooms meanwhile.
#include "ui/views/timeline/timeline_view.h"

#include "ui/frame/run_names.h"
#include "ui/models/format.h"
#include "ui/timeline/chosen_places.h"

#include <QElapsedTimer>

#include <cmath>

namespace kvscope::ui {

namespace {
constexpr std::size_t kTimesUnasked = 400'000; // spans in view that are added up again and again while more arrive
constexpr std::size_t kTimesAtOnce = 400'000;  // in one go; more are added up on a worker
constexpr int kSliceMs = 5;
constexpr int kTimesPatienceMs = 300;        // a table that comes sooner needs no word before it
constexpr std::size_t kSpansAtOnce = 10'000; // well under a millisecond
constexpr std::size_t kSettledAtOnce = 60'000;
} // namespace

SelfTimeSum TimelineView::timesOf(const TimeRange& range) const {
    const TimelineData& held = canvas_->data();
    std::function<bool(const TimelineSpan&)> keep;
    if (held.filter.active()) keep = [&filter = held.filter](const TimelineSpan& span) { return filter.keeps(span); };
    return {held.index, std::int64_t(std::floor(range.from)), std::int64_t(std::ceil(range.to)), panel_->grouping(),
            keep};
}

bool TimelineView::takesLong() const {
    return timesOf(canvas_->scene().range.value_or(canvas_->scene().window)).spans() > kTimesAtOnce;
}

void TimelineView::beginTimes() const {
    const TimeRange range = canvas_->scene().range.value_or(canvas_->scene().window);
    sum_.emplace(SumUnderWay{timesOf(range), range, canvas_->data().index.moves(), {}});
    sum_->since.start();
}

void TimelineView::showTimes() {
    beginTimes();
    const OpenRun* run = workspace_.current();
    const bool grows = feed_.loading() || (run && isGrowing(*run));
    if (!canvas_->scene().range && grows && sum_->times.spans() > kTimesUnasked) {
        panel_->showTimesHint(
            tr("%1 spans are shown, and more arrive. Shift and drag over a range to see where its time "
               "went, or zoom in.")
                .arg(formatCount(std::int64_t(sum_->times.spans()))));
        sum_.reset();
        return;
    }
    addTimes();
}

void TimelineView::addTimes() {
    if (!sum_) return;
    if (sum_->moves != canvas_->data().index.moves()) return showTimes(); // places mean other spans now
    QElapsedTimer slice;
    slice.start();
    bool done = false;
    do done = sum_->times.advance(kSpansAtOnce);
    while (!done && slice.elapsed() < kSliceMs);
    if (done) {
        presentTimes();
        sum_.reset();
        return;
    }
    if (sum_->since.elapsed() > kTimesPatienceMs) // before that the table keeps the times of a moment ago
        panel_->showTimesProgress(tr("Adding up %1 spans: %2 %.")
                                      .arg(formatCount(std::int64_t(sum_->times.spans())))
                                      .arg(int(100.0 * double(sum_->times.looked()) / double(sum_->times.spans()))));
    timers_.slice.start();
}

void TimelineView::presentTimes() const {
    panel_->showTimes(sum_->times.rows(), sum_->range, canvas_->scene().range.has_value());
}

void TimelineView::settle(bool whole) {
    SpanIndex& index = canvas_->data().index;
    const ChosenPlaces chosen(*canvas_);
    const std::uint64_t moves = index.moves();
    QElapsedTimer slice;
    slice.start();
    bool more = false;
    do more = index.settle(kSettledAtOnce, whole || !feed_.loading());
    while (more && (whole || slice.elapsed() < kSliceMs));
    if (moves != index.moves()) {
        chosen.restore(*canvas_);
        updateHits(); // the number of the chosen hit is found by counting the spans before it
        canvas_->dataChanged();
        if (!canvas_->scene().range && !timers_.times.isActive()) timers_.times.start();
    }
    updateNote();
    if (more) timers_.settle.start();
}

} // namespace kvscope::ui
