#include "profiler/read/self_time.h"

#include <algorithm>
#include <tuple>

namespace kvscope {

SelfTimeSum::SelfTimeSum(const SpanIndex& index, std::int64_t fromNs, std::int64_t toNs, SelfTimeBy by,
                         std::function<bool(const TimelineSpan&)> keep)
    : index_(index), from_(fromNs), to_(toNs), by_(by), keep_(std::move(keep)) {
    std::map<std::tuple<int, int, int>, int> laneOf; // track, depth, row
    for (int lane = 0; lane < index.laneCount(); ++lane) {
        const SpanLane info = index.lane(lane);
        laneOf[{info.track, info.depth, info.row}] = lane;
    }
    for (const auto& [place, which] : laneOf) {
        const auto& [track, depth, row] = place;
        const auto nested = row == 0 ? laneOf.find({track, depth + 1, 0}) : laneOf.end();
        Lane lane{track, which, nested == laneOf.end() ? -1 : nested->second, 0, 0, 0, 0};
        lane.next = index.lowerBound(which, from_);
        lane.end = index.lowerBound(which, to_);
        // Spans that reach into the range from before it.
        index.cover(which, from_, from_ + 1, -1,
                    [&](const SpanBar& bar) { lane.next = std::min(lane.next, bar.first); });
        if (lane.children >= 0) {
            lane.child = index.lowerBound(lane.children, from_);
            lane.childEnd = index.lowerBound(lane.children, to_);
            if (lane.child > 0) --lane.child; // the child before the range may reach into it
        }
        if (lane.next >= lane.end) continue;
        spans_ += lane.end - lane.next;
        lanes_.push_back(lane);
    }
}

bool SelfTimeSum::advance(std::size_t spans) {
    for (; at_ < lanes_.size(); ++at_) {
        Lane& lane = lanes_[at_];
        if (sums_.count() < index_.names().count()) sums_.resize(index_.names().count());
        for (; lane.next < lane.end; ++lane.next) {
            if (spans == 0) return false;
            --spans;
            ++looked_;
            add(lane, index_.at({lane.lane, lane.next}));
        }
        if (at_ + 1 == lanes_.size() || lanes_[at_ + 1].track != lane.track) closeTrack(lane.track);
    }
    return true;
}

void SelfTimeSum::add(Lane& lane, const TimelineSpan& span) {
    if (span.endNs() < from_ || (span.endNs() == from_ && span.durationNs > 0)) return;
    const auto inside = [&](std::int64_t start, std::int64_t end) {
        return std::max<std::int64_t>(0, std::min(end, to_) - std::max(start, from_));
    };
    const std::int64_t total = inside(span.startNs, span.endNs());
    std::int64_t self = total;
    while (lane.child < lane.childEnd) {
        const TimelineSpan nested = index_.at({lane.children, lane.child});
        self -= inside(std::max(nested.startNs, span.startNs), std::min(nested.endNs(), span.endNs()));
        if (nested.endNs() > span.endNs()) break; // the next one at this depth may hold the rest of it
        ++lane.child;
    }
    if (keep_ && !keep_(span)) return;
    Sum& sum = sums_[span.name];
    if (sum.spans++ == 0) named_.push_back(span.name);
    sum.totalNs += total;
    sum.selfNs += std::max<std::int64_t>(0, self);
    sum.longestNs = std::max(sum.longestNs, total);
}

void SelfTimeSum::closeTrack(int track) {
    const std::string& name = index_.tracks()[track];
    for (const int each : named_) {
        Sum& sum = sums_[each];
        const std::string& shown = (by_ == SelfTimeBy::Component ? index_.components() : index_.names())[each];
        SelfTime& row = found_[{name, shown}];
        row.track = name;
        row.name = shown;
        row.spans += sum.spans;
        row.selfNs += sum.selfNs;
        row.totalNs += sum.totalNs;
        row.longestNs = std::max(row.longestNs, sum.longestNs);
        sum = {};
    }
    named_.clear();
}

std::vector<SelfTime> SelfTimeSum::rows() const {
    std::vector<SelfTime> rows;
    rows.reserve(found_.size());
    for (const auto& [key, row] : found_) rows.push_back(row);
    std::stable_sort(rows.begin(), rows.end(),
                     [](const SelfTime& a, const SelfTime& b) { return a.selfNs > b.selfNs; });
    return rows;
}

std::vector<SelfTime> selfTimes(const SpanIndex& index, std::int64_t fromNs, std::int64_t toNs, SelfTimeBy by,
                                const std::function<bool(const TimelineSpan&)>& keep) {
    SelfTimeSum sum(index, fromNs, toNs, by, keep);
    sum.advance(sum.spans());
    return sum.rows();
}

} // namespace kvscope
