#include "profiler/read/span_flow.h"

#include "core/trace/stage.h"

#include <algorithm>
#include <string_view>

namespace kvscope {
namespace {

constexpr std::size_t kMostFlowsShown = 64;
constexpr std::string_view kAttention = nameOf(Stage::Stage2), kOffloading = nameOf(Stage::Offloading);

enum class Place { Host, Link, Elsewhere };

/// Spans of one step, looked for around the time of that step.
class StepSpans {
public:
    StepSpans(const SpanIndex& index, int step) : index_(index), step_(step) {
        const auto whole = spanOfStep(index, step);
        if (!whole) return;
        const TimelineSpan span = index.at(*whole);
        // Kernels of a step may begin before the host's mark and end after it, by less than a step.
        from_ = span.startNs - span.durationNs;
        to_ = span.endNs() + span.durationNs;
    }

    Place placeOf(int lane) const {
        const std::string& track = index_.tracks()[index_.lane(lane).track];
        if (track == kHostTrack) return Place::Host;
        return isLinkTrack(track, kToDeviceTrack) || isLinkTrack(track, kToHostTrack) ? Place::Link : Place::Elsewhere;
    }
    std::string_view nameOf(int name) const { return index_.names()[name]; }
    std::string_view componentOf(int name) const { return index_.components()[name]; }

    /// Calls visit(ref, span) for spans of the step and layer in lanes of one kind.
    template <class Visit> void each(Place place, int layer, Visit&& visit) const {
        for (int lane = 0; lane < index_.laneCount(); ++lane) {
            if (placeOf(lane) != place) continue;
            index_.cover(lane, from_, to_, -1, [&](const SpanBar& bar) {
                const TimelineSpan span = index_.at({lane, bar.first});
                if (span.step == step_ && span.layer == layer) visit(SpanRef{lane, bar.first}, span);
            });
        }
    }

private:
    const SpanIndex& index_;
    int step_;
    std::int64_t from_ = 0, to_ = 0;
};

} // namespace

std::optional<SpanRef> spanOfStep(const SpanIndex& index, int step) {
    const int host = index.trackOf(kHostTrack);
    for (int lane = 0; host >= 0 && lane < index.laneCount(); ++lane) {
        const SpanLane info = index.lane(lane);
        if (info.track != host || info.depth != 0) continue;
        std::uint32_t low = 0, high = info.spans; // steps follow each other, so their numbers ascend
        while (low < high) {
            const std::uint32_t middle = low + (high - low) / 2;
            if (index.at({lane, middle}).step < step)
                low = middle + 1;
            else
                high = middle;
        }
        if (low < info.spans && index.at({lane, low}).step == step) return SpanRef{lane, low};
    }
    return std::nullopt;
}

std::vector<SpanFlow> flowsOf(const SpanIndex& index, SpanRef ref) {
    std::vector<SpanFlow> flows;
    const TimelineSpan span = index.at(ref);
    if (span.step < 0) return flows;
    const StepSpans step(index, span.step);
    const Place place = step.placeOf(ref.lane);
    const std::string_view component = step.componentOf(span.name);
    const auto add = [&](SpanFlow::Kind kind, SpanRef from, SpanRef to) {
        if (flows.size() < kMostFlowsShown) flows.push_back({kind, from, to});
    };
    const bool transferred = place == Place::Link && index.names()[span.name] == kToDeviceName;
    const bool depth0 = place == Place::Host && index.lane(ref.lane).depth == 0;
    if (place == Place::Elsewhere)
        step.each(Place::Host, span.layer, [&](SpanRef host, const TimelineSpan& stage) {
            if (step.nameOf(stage.name) == component) add(SpanFlow::Kind::Launch, host, ref);
        });
    if (place == Place::Host && !depth0)
        step.each(Place::Elsewhere, span.layer, [&](SpanRef other, const TimelineSpan& kernel) {
            if (step.componentOf(kernel.name) == component) add(SpanFlow::Kind::Launch, ref, other);
        });
    if (place == Place::Host && component == kOffloading)
        step.each(Place::Link, span.layer,
                  [&](SpanRef link, const TimelineSpan&) { add(SpanFlow::Kind::Launch, ref, link); });
    if (place == Place::Link)
        step.each(Place::Host, span.layer, [&](SpanRef host, const TimelineSpan& stage) {
            if (step.nameOf(stage.name) == kOffloading) add(SpanFlow::Kind::Launch, host, ref);
        });
    // The attention over the selected blocks reads what the transfer of its layer brought.
    const auto users = [&](Place where, const auto& visit) {
        step.each(where, span.layer, [&](SpanRef user, const TimelineSpan& attention) {
            if (step.componentOf(attention.name) == kAttention) visit(user);
        });
    };
    if (transferred) {
        users(Place::Host, [&](SpanRef user) { add(SpanFlow::Kind::Transfer, ref, user); });
        users(Place::Elsewhere, [&](SpanRef user) { add(SpanFlow::Kind::Transfer, ref, user); });
    }
    if (place != Place::Link && component == kAttention)
        step.each(Place::Link, span.layer, [&](SpanRef link, const TimelineSpan& transfer) {
            if (step.nameOf(transfer.name) == kToDeviceName) add(SpanFlow::Kind::Transfer, link, ref);
        });
    std::stable_sort(flows.begin(), flows.end(), [&](const SpanFlow& a, const SpanFlow& b) {
        return index.at(a.to).startNs < index.at(b.to).startNs;
    });
    return flows;
}

SpanWait waitOf(const SpanIndex& index, SpanRef ref) {
    SpanWait wait;
    const TimelineSpan span = index.at(ref);
    if (ref.index == 0) return wait;
    wait.before = SpanRef{ref.lane, ref.index - 1};
    const std::int64_t idleSince = index.at(*wait.before).endNs();
    wait.idleNs = std::max<std::int64_t>(0, span.startNs - idleSince);
    if (wait.idleNs == 0) return wait;
    std::int64_t latest = idleSince;
    for (int lane = 0; lane < index.laneCount(); ++lane) {
        if (index.lane(lane).track == index.lane(ref.lane).track) continue;
        const std::uint32_t next = index.lowerBound(lane, span.startNs);
        // The last that began before: where spans of a lane do not overlap, the last that could have ended.
        for (std::uint32_t i = next; i > 0 && i + 2 > next; --i) {
            const std::int64_t end = index.at({lane, i - 1}).endNs();
            if (end <= span.startNs && end > latest) {
                latest = end;
                wait.lastToEnd = SpanRef{lane, i - 1};
            }
        }
    }
    return wait;
}

} // namespace kvscope
