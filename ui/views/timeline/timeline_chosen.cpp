// The span that is chosen on the timeline and what is said of it, and where the shared cursor is.
#include "profiler/import/import.h"
#include "ui/timeline/span_facts.h"
#include "ui/views/timeline/timeline_view.h"
#include "ui/widgets/inspector.h"

#include <QToolTip>

#include <algorithm>

namespace kvscope::ui {

namespace {
constexpr double kPromptHides = 0.5; // of the steps' time; a prompt that takes more leaves too little to see
}

void TimelineView::choose(SpanRef ref, bool reveal) {
    const TimelineSpan span = canvas_->data().index.at(ref);
    canvas_->select(ref, reveal);
    explain();
    updateHits();
    if (span.step < 0) return;
    Cursor cursor = workspace_.cursor();
    cursor.step = span.step;
    if (span.layer >= 0) cursor.layer = span.layer;
    choosing_ = true; // the span that was clicked stays under the pointer
    workspace_.setCursor(cursor);
    choosing_ = false;
}

void TimelineView::forget() {
    canvas_->select(std::nullopt);
    facts_.clear();
    panel_->showSpan({});
    explainSpan(*this, {});
    updateHits();
}

void TimelineView::showFacts(const SpanContext& context) {
    const OpenRun* run = workspace_.current();
    const TimelineScene& scene = canvas_->scene();
    if (!run || !scene.selected) return;
    const LinkKnowledge link{run->row.timing == Timing::Measured ? tr("measured") : tr("modelled"), run->row.linkGbps,
                             run->row.knows};
    facts_ = factsOf(canvas_->data(), *scene.selected, scene.flows, context, link);
    panel_->showSpan(facts_);
    makeRoomForFacts();
    explainSpan(*this, facts_);
}

/// Shows at once what the span itself knows. What another tool said of it follows from the trace.
void TimelineView::showTooltip(SpanRef ref, QPoint global) {
    QToolTip::showText(global, tooltipOf(canvas_->data(), ref), canvas_, {}, 60'000);
    const OpenRun* run = workspace_.current();
    if (!run || run->row.backend != RunBackend::Imported) return;
    const SpanPlace place = placeOfSpan(canvas_->data().index, ref);
    workspace_.query<SpanDetail>(
        this, "tooltip", run->key,
        [runId = run->key.runId, place, rows = rows_](TraceReader& reader) {
            return spanDetail(reader, runId, place, rows.get());
        },
        [this, place, global, hover = hovers_](const SpanDetail& detail) {
            if (hover != hovers_ || (detail.category.empty() && detail.args.empty())) return;
            if (const auto again = spanAtPlace(canvas_->data().index, place))
                QToolTip::showText(global, tooltipOf(canvas_->data(), *again, detail), canvas_, {}, 60'000);
        });
}

void TimelineView::explain() {
    const OpenRun* run = workspace_.current();
    if (!run || !canvas_->scene().selected) return;
    SpanContext known;
    known.kind = kindOfSpan(canvas_->data().index, *canvas_->scene().selected, run->row.prompts);
    showFacts(known);
    if (!isSpanExplained(*this)) panel_->setCurrentIndex(0); // nobody else shows it
    const TimelineSpan span = canvas_->data().index.at(*canvas_->scene().selected);
    const SpanPlace place = placeOfSpan(canvas_->data().index, *canvas_->scene().selected);
    workspace_.query<SpanContext>(
        this, "span", run->key,
        [runId = run->key.runId, place, span, rows = rows_](TraceReader& reader) {
            return readSpanContext(reader, runId, place, span.step, span.layer, rows.get());
        },
        [this, place, kind = known.kind](SpanContext context) {
            const auto& selected = canvas_->scene().selected;
            const SpanIndex& index = canvas_->data().index;
            if (!selected || !(placeOfSpan(index, *selected) == place)) return;
            canvas_->addRecordedFlows(arrowsOf(index, *selected, context.flows));
            context.kind = kind;
            showFacts(context);
        });
}

void TimelineView::cursorMoved() {
    std::int64_t from = 0, to = 0;
    if (workspace_.current() && canvas_->data().counters.timesOf(workspace_.cursor().step, from, to))
        canvas_->setCursorStep(TimeRange{double(from), double(to)});
    else
        canvas_->setCursorStep(std::nullopt);
    findHome(!choosing_);
}

/// A long prompt leaves its decode steps a few pixels: the window opens on them when the cursor stands on one.
void TimelineView::findHome(bool follow) {
    const StepCounters& counters = canvas_->data().counters;
    std::int64_t from = 0, decode = 0, to = 0;
    const bool has =
        workspace_.current() && counters.timesOfAll(false, from, to) && counters.timesOfAll(true, decode, to);
    const bool hides = has && double(decode - from) > double(to - from) * kPromptHides;
    // When a live run's prompt hides no more, the window does not go back to it.
    const bool stays = canvas_->scene().homeIsDecode && !feed_.loading();
    canvas_->setHomeIsDecode(has && (hides || stays) && workspace_.cursor().step >= counters.firstDecodeStep(), follow);
}

void TimelineView::revealCursor() {
    const auto& step = canvas_->scene().cursorStep;
    const TimeRange window = canvas_->scene().window;
    if (!step || step->meets(window)) return;
    const double size = std::max(window.size(), step->size() * 1.2);
    canvas_->zoomTo({step->from - size * 0.1, step->from + size * 0.9});
}

void TimelineView::showTime(double fromNs, double toNs) {
    const double margin = std::max(1.0, (toNs - fromNs) * 0.5);
    wanted_ = TimeRange{fromNs - margin, toNs + margin};
    showWantedTime();
}

void TimelineView::showWantedTime() {
    if (!wanted_ || !isShowing()) return;
    std::int64_t from = 0, to = 0;
    const bool read = canvas_->data().counters.timesOfAll(false, from, to) && double(to) >= wanted_->to;
    if (!read && feed_.loading()) return;
    canvas_->zoomTo(*wanted_);
    wanted_.reset();
}

void TimelineView::moveCursor(int steps, int layers) {
    Cursor cursor = workspace_.cursor();
    cursor.step += steps;
    cursor.layer += layers;
    workspace_.setCursor(cursor);
    revealCursor(); // also where the cursor could go no further
}

void TimelineView::jumpCursor(bool toEnd) {
    if (!workspace_.current()) return;
    Cursor cursor = workspace_.cursor();
    cursor.step = toEnd ? workspace_.current()->row.steps - 1 : 0;
    workspace_.setCursor(cursor);
    revealCursor();
}

void TimelineView::showDecode(bool whole) {
    const StepCounters& counters = canvas_->data().counters;
    const int first = counters.firstDecodeStep();
    std::int64_t from = 0, to = 0;
    if (first < 0 || !(whole ? counters.timesOfAll(true, from, to) : counters.timesOf(first, from, to))) return;
    const double margin = double(to - from) * (whole ? 0.01 : 0.05) + 1;
    canvas_->zoomTo({double(from) - margin, double(to) + margin});
    if (whole) return;
    Cursor cursor = workspace_.cursor();
    cursor.step = first;
    workspace_.setCursor(cursor);
}

void TimelineView::followFlow(bool forward) {
    const TimelineScene& scene = canvas_->scene();
    if (!scene.selected) return;
    for (const SpanFlow& flow : scene.flows) {
        const SpanRef& other = forward ? flow.to : flow.from;
        if (other == *scene.selected) continue;
        return choose(SpanRef(other), true);
    }
}

} // namespace kvscope::ui
