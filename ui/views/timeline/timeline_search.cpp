// The search of the timeline: which spans are called so, and the way from one to the next.
#include "profiler/read/span_search.h"
#include "ui/models/format.h"
#include "ui/views/timeline/timeline_view.h"

namespace kvscope::ui {

namespace {
constexpr std::size_t kNumbered = 4'000'000; // spans up to which a hit is told its number: some 20 ms

/// A stage is found by what it does as well: "attention" finds stage2.
std::string wordsOf(std::string_view component) { return meaningOf(component).toStdString(); }
} // namespace

void TimelineView::search() {
    findMatches(false);
    updateHits();
    canvas_->dataChanged();
}

void TimelineView::findMatches(bool newOnly) {
    TimelineData& held = canvas_->data();
    if (!newOnly) held.matches.clear();
    matchNewNames(held.index, tools_->searched().toStdString(), wordsOf, held.matches);
}

void TimelineView::updateHits() {
    const TimelineData& held = canvas_->data();
    const std::size_t count = matchCount(held.index, held.matches);
    const auto& selected = canvas_->scene().selected;
    const std::size_t number =
        selected && held.index.size() <= kNumbered ? matchNumber(held.index, held.matches, *selected) : 0;
    tools_->showHits(tools_->searched().trimmed().isEmpty() ? QString()
                     : count == 0                           ? tr("no span has such a name")
                     : number > 0
                         ? tr("%1 of %2").arg(formatCount(std::int64_t(number)), formatCount(std::int64_t(count)))
                     : count == 1 ? tr("1 hit")
                                  : tr("%1 hits").arg(formatCount(std::int64_t(count))));
}

void TimelineView::goToMatch(bool forward) {
    const TimelineData& held = canvas_->data();
    const TimelineScene& scene = canvas_->scene();
    if (matchCount(held.index, held.matches) == 0) return;
    std::optional<SpanRef> from;
    if (scene.selected && held.isMatch(held.index.at(*scene.selected).name)) from = scene.selected;
    const auto ns = std::int64_t(forward ? scene.window.from : scene.window.to);
    auto found =
        forward ? nextMatch(held.index, held.matches, from, ns) : previousMatch(held.index, held.matches, from, ns);
    if (!found) // round to the other end
        found = forward ? nextMatch(held.index, held.matches, std::nullopt, held.index.firstNs())
                        : previousMatch(held.index, held.matches, std::nullopt, held.index.endNs() + 1);
    if (found) choose(*found, true);
}

} // namespace kvscope::ui
