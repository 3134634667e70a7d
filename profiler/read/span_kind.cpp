#include "profiler/read/span_kind.h"

#include <algorithm>
#include <vector>

namespace kvscope {

std::optional<SpanKind> kindOfSpan(const SpanIndex& index, SpanRef ref, std::size_t most) {
    const TimelineSpan span = index.at(ref);
    const int track = index.lane(ref.lane).track;
    std::size_t all = 0;
    for (int lane = 0; lane < index.laneCount(); ++lane)
        if (index.lane(lane).track == track) all += index.lane(lane).spans;
    if (all > most) return std::nullopt;
    std::vector<std::int64_t> lengths;
    for (int lane = 0; lane < index.laneCount(); ++lane) {
        if (index.lane(lane).track != track) continue;
        for (std::uint32_t i = 0; i < index.lane(lane).spans; ++i) {
            const TimelineSpan other = index.at({lane, i});
            // Step 0 is the prefill: the same stages, on thousands of tokens.
            if (other.name == span.name && (other.step > 0) == (span.step > 0)) lengths.push_back(other.durationNs);
        }
    }
    if (lengths.size() < 2) return std::nullopt;
    SpanKind kind;
    kind.spans = lengths.size();
    for (const std::int64_t length : lengths) kind.shorter += length < span.durationNs ? 1u : 0u;
    const auto [shortest, longest] = std::minmax_element(lengths.begin(), lengths.end());
    kind.shortestNs = *shortest;
    kind.longestNs = *longest;
    const auto nth = [&](std::size_t rank) { // without sorting: a track may have a million of them
        std::nth_element(lengths.begin(), lengths.begin() + std::ptrdiff_t(rank), lengths.end());
        return lengths[rank];
    };
    kind.medianNs = nth((lengths.size() - 1) / 2);
    kind.percentile99Ns = nth((lengths.size() * 99 + 99) / 100 - 1);
    return kind;
}

} // namespace kvscope
