#include "profiler/read/span_kind.h"

#include <algorithm>
#include <vector>

namespace kvscope {

std::optional<SpanKind> kindOfSpan(const SpanIndex& index, SpanRef ref, const PromptSteps& prompts, std::size_t most) {
    const TimelineSpan span = index.at(ref);
    const int track = index.lane(ref.lane).track;
    std::size_t all = 0;
    for (int lane = 0; lane < index.laneCount(); ++lane)
        if (index.lane(lane).track == track) all += index.lane(lane).spans;
    if (all > most) return std::nullopt;
    const StepReads reads = prompts.reads(std::max(span.step, 0)); // spans of no step are compared with those of step 0
    std::vector<std::int64_t> lengths;
    for (int lane = 0; lane < index.laneCount(); ++lane) {
        if (index.lane(lane).track != track) continue;
        for (std::uint32_t i = 0; i < index.lane(lane).spans; ++i) {
            const TimelineSpan other = index.at({lane, i});
            // A step that reads prompts has the same stages, on thousands of tokens.
            if (other.name == span.name && prompts.reads(std::max(other.step, 0)) == reads)
                lengths.push_back(other.durationNs);
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
