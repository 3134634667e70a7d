#include "profiler/read/self_time.h"

#include <algorithm>
#include <map>
#include <tuple>

namespace kvscope {
namespace {

struct Sum {
    std::uint32_t spans = 0;
    std::int64_t selfNs = 0, totalNs = 0, longestNs = 0;
};

/// The part of a span inside the range.
std::int64_t inside(const SpanBar& bar, std::int64_t from, std::int64_t to) {
    return std::max<std::int64_t>(0, std::min(bar.endNs, to) - std::max(bar.startNs, from));
}

/// Adds a lane's spans to `sums` by name; `children` is the lane nested in it, or -1.
void add(const SpanIndex& index, int lane, int children, std::int64_t from, std::int64_t to,
         const std::function<bool(const IndexedSpan&)>& keep, std::vector<Sum>& sums) {
    std::uint32_t child = children < 0 ? 0 : index.lowerBound(children, from);
    const std::uint32_t childEnd = children < 0 ? 0 : index.lowerBound(children, to);
    if (child > 0) --child; // one may reach into the range from before it
    index.cover(lane, from, to, -1, [&](const SpanBar& bar) {
        const std::int64_t total = inside(bar, from, to);
        std::int64_t self = total;
        while (child < childEnd) {
            const IndexedSpan nested = index.at({children, child});
            const std::int64_t begin = std::max({nested.startNs, bar.startNs, from});
            self -= std::max<std::int64_t>(0, std::min({nested.endNs(), bar.endNs, to}) - begin);
            if (nested.endNs() > bar.endNs) break; // the next one at this depth may hold the rest of it
            ++child;
        }
        if (keep && !keep(index.at({lane, bar.first}))) return;
        Sum& sum = sums[std::size_t(bar.name)];
        ++sum.spans;
        sum.totalNs += total;
        sum.selfNs += std::max<std::int64_t>(0, self);
        sum.longestNs = std::max(sum.longestNs, total);
    });
}

} // namespace

std::string_view componentOf(std::string_view name) {
    const auto colon = name.find(": ");
    return colon == std::string_view::npos ? name : name.substr(0, colon);
}

std::vector<SelfTime> selfTimes(const SpanIndex& index, std::int64_t fromNs, std::int64_t toNs, SelfTimeBy by,
                                const std::function<bool(const IndexedSpan&)>& keep) {
    std::map<std::tuple<int, int, int>, int> laneOf; // track, depth, row
    for (int lane = 0; lane < index.laneCount(); ++lane) {
        const SpanLane info = index.lane(lane);
        laneOf[{info.track, info.depth, info.row}] = lane;
    }
    std::map<std::pair<std::string_view, std::string_view>, SelfTime> found;
    std::vector<Sum> sums;
    for (int track = 0; track < int(index.tracks().size()); ++track) {
        sums.assign(index.names().size(), {});
        for (const auto& [place, lane] : laneOf) {
            const auto& [itsTrack, depth, row] = place;
            if (itsTrack != track) continue;
            const auto nested = row == 0 ? laneOf.find({track, depth + 1, 0}) : laneOf.end();
            add(index, lane, nested == laneOf.end() ? -1 : nested->second, fromNs, toNs, keep, sums);
        }
        for (std::size_t name = 0; name < sums.size(); ++name) {
            const Sum& sum = sums[name];
            if (sum.spans == 0) continue;
            const std::string_view full = index.names()[name];
            const std::string_view shown = by == SelfTimeBy::Component ? componentOf(full) : full;
            SelfTime& row = found[{index.tracks()[std::size_t(track)], shown}];
            row.track = index.tracks()[std::size_t(track)];
            row.name = shown;
            row.spans += sum.spans;
            row.selfNs += sum.selfNs;
            row.totalNs += sum.totalNs;
            row.longestNs = std::max(row.longestNs, sum.longestNs);
        }
    }
    std::vector<SelfTime> rows;
    for (auto& [key, row] : found) rows.push_back(std::move(row));
    std::stable_sort(rows.begin(), rows.end(),
                     [](const SelfTime& a, const SelfTime& b) { return a.selfNs > b.selfNs; });
    return rows;
}

} // namespace kvscope
