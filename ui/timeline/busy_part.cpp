#include "ui/timeline/busy_part.h"

#include <algorithm>
#include <limits>
#include <vector>

namespace kvscope::ui {

namespace {

// Few: that share of all spans, or so many where that is not most of a small trace.
constexpr double kFewShare = 0.001, kFewSpans = 3, kMostShare = 0.1;
constexpr double kFar = 4;             // the whole is that many times as long as what is left
constexpr std::uint32_t kExact = 4;    // spans at each end of a row that are looked at one by one
constexpr std::uint32_t kSamples = 64; // of a row's others, and of all rows' together where there are very many rows
constexpr std::uint32_t kAllSamples = 20'000, kFewestSamples = 4;

/// One span that stands for so many.
struct Sample {
    std::int64_t fromNs, toNs;
    double weight;
};

std::vector<Sample> samplesOf(const SpanIndex& index) {
    std::vector<Sample> samples;
    const std::uint32_t ofRow =
        std::clamp(kAllSamples / std::uint32_t(std::max(1, index.laneCount())), kFewestSamples, kSamples);
    for (int lane = 0; lane < index.laneCount(); ++lane) {
        const std::uint32_t spans = index.lane(lane).spans;
        const auto take = [&](std::uint32_t at, double weight) {
            const TimelineSpan span = index.at({lane, at});
            samples.push_back({span.startNs, span.endNs(), weight});
        };
        if (spans <= ofRow + 2 * kExact) {
            for (std::uint32_t at = 0; at < spans; ++at) take(at, 1);
            continue;
        }
        const std::uint32_t inner = spans - 2 * kExact;
        for (std::uint32_t at = 0; at < kExact; ++at) take(at, 1), take(spans - 1 - at, 1);
        for (std::uint32_t i = 0; i < ofRow; ++i)
            take(kExact + std::uint32_t(std::uint64_t(inner) * i / ofRow), double(inner) / ofRow);
    }
    return samples;
}

/// No span of any row touches the time between; the samples alone cannot tell.
bool isEmpty(const SpanIndex& index, std::int64_t fromNs, std::int64_t toNs) {
    for (int lane = 0; lane < index.laneCount(); ++lane) {
        const std::uint32_t next = index.lowerBound(lane, fromNs);
        if (next < index.lane(lane).spans && index.at({lane, next}).startNs < toNs) return false;
        if (next > 0 && index.at({lane, next - 1}).endNs() > fromNs) return false;
    }
    return true;
}

} // namespace

BusyPart busyPart(const SpanIndex& index) {
    std::vector<Sample> samples = samplesOf(index);
    if (samples.empty()) return {};
    std::sort(samples.begin(), samples.end(), [](const Sample& a, const Sample& b) { return a.fromNs < b.fromNs; });
    double all = 0;
    for (const Sample& sample : samples) all += sample.weight;
    const double few = std::min(std::max(kFewSpans, all * kFewShare), all * kMostShare);
    const std::size_t count = samples.size();

    // Emptiness between what began so far and what begins next; the widest near either end is where the few are cut
    // off.
    std::vector<std::int64_t> endOfFirst(count); // the latest end among the samples up to each
    for (std::size_t i = 0; i < count; ++i)
        endOfFirst[i] = std::max(samples[i].toNs, i > 0 ? endOfFirst[i - 1] : std::numeric_limits<std::int64_t>::min());
    std::size_t first = 0, last = count - 1;
    std::int64_t widest = 0;
    double weight = 0;
    for (std::size_t i = 0; i + 1 < count && (weight += samples[i].weight) <= few; ++i)
        if (const std::int64_t gap = samples[i + 1].fromNs - endOfFirst[i]; gap > widest) widest = gap, first = i + 1;
    widest = 0, weight = 0;
    for (std::size_t i = count; i-- > first + 1 && (weight += samples[i].weight) <= few;)
        if (const std::int64_t gap = samples[i].fromNs - endOfFirst[i - 1]; gap > widest) widest = gap, last = i - 1;

    const BusyPart whole{index.firstNs(), index.endNs(), false};
    const auto part = [&](bool cutsLeft, bool cutsRight) {
        return BusyPart{cutsLeft ? samples[first].fromNs : whole.fromNs, cutsRight ? endOfFirst[last] : whole.toNs,
                        true};
    };
    const auto isFar = [](const BusyPart& outer, const BusyPart& rest) {
        return double(outer.toNs) - double(outer.fromNs) >
               kFar * std::max(1.0, double(rest.toNs) - double(rest.fromNs));
    };
    const BusyPart both = part(true, true);
    const bool left = isFar(part(false, true), both) && first > 0 && isEmpty(index, endOfFirst[first - 1], both.fromNs);
    const bool right =
        isFar(part(true, false), both) && last + 1 < count && isEmpty(index, both.toNs, samples[last + 1].fromNs);
    return left || right ? part(left, right) : whole;
}

} // namespace kvscope::ui
