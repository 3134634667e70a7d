#include "profiler/replay/sampled_curve.h"

#include "profiler/replay/stack_distance.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <utility>

namespace kvscope {
namespace {

/// The blocks that left in the last `reach` requests before `request` and have not returned, the one used longest ago
/// first.
std::vector<std::int32_t> idleBefore(const BlockVisits& visits, std::size_t request, std::size_t reach) {
    std::vector<std::int32_t> idle;
    Numbered<std::uint8_t> seen(visits.blockLimit(), 0);
    for (std::size_t r = request; r > 0 && request - r < reach;) {
        --r;
        const auto left = visits.left(r);
        for (std::size_t i = left.size(); i-- > 0;)
            if (std::exchange(seen[left[i]], std::uint8_t(1)) == 0) idle.push_back(left[i]);
        for (const BlockVisits::Entry& e : visits.entered(r)) seen[e.block()] = 1;
    }
    std::reverse(idle.begin(), idle.end());
    return idle;
}

Numbered<std::int64_t> lruWindow(const BlockVisits& visits, std::size_t begin, std::size_t end,
                                 const CurveSample& sample) {
    LruStack stack(visits);
    for (const std::int32_t block : idleBefore(visits, begin, sample.reach)) stack.push(block);
    for (std::size_t request = begin; request < end; ++request) stack.next(request);
    return stack.hitsFrom();
}

/// Counts the hits of Belady's choice in the requests [begin, end). A block that is needed only after the window counts
/// as never needed again, which does not change the misses in the window.
Numbered<std::int64_t> beladyWindow(const BlockVisits& visits, std::size_t begin, std::size_t end,
                                    const CurveSample& sample) {
    const std::size_t first = begin - std::min(begin, sample.warmUp);
    Numbered<std::int32_t> nextEntry(visits.blockLimit(), BlockVisits::kNever);
    const std::size_t base = visits.leftBegin(first);
    std::vector<std::int32_t> next((end < visits.requests() ? visits.leftBegin(end) : visits.departures()) - base);
    for (std::size_t request = end; request-- > first;) {
        std::size_t departure = visits.leftBegin(request) - base;
        for (const std::int32_t block : visits.left(request)) next[departure++] = nextEntry[block];
        for (const BlockVisits::Entry& e : visits.entered(request)) nextEntry[e.block()] = std::int32_t(request);
    }
    BeladyStack stack(visits,
                      [&](std::int32_t, std::size_t departure, std::int32_t) { return next[departure - base]; });
    if (first > 0) {
        std::vector<std::int32_t> idle = idleBefore(visits, first, sample.reach);
        std::erase_if(idle, [&](std::int32_t block) { return nextEntry[block] == BlockVisits::kNever; });
        std::stable_sort(idle.begin(), idle.end(),
                         [&](std::int32_t a, std::int32_t b) { return nextEntry[a] < nextEntry[b]; });
        for (const std::int32_t block : idle) stack.place(visits.size(first - 1), block, nextEntry[block]);
    }
    for (std::size_t request = first; request < begin; ++request) stack.next(request);
    const Numbered<std::int64_t> before = stack.hitsFrom();
    for (std::size_t request = begin; request < end; ++request) stack.next(request);
    Numbered<std::int64_t> after = stack.hitsFrom();
    for (std::size_t i = 0; i < after.size(); ++i) after[i] -= before[i];
    return after;
}

} // namespace

MissCurve sampledMissCurve(std::span<const BlockVisits* const> caches, CurvePolicy policy, const CurveSample& sample) {
    MissCurve curve;
    double requests = 0;
    std::int32_t blocks = 0;
    for (const BlockVisits* cache : caches) {
        curve.smallest = std::max(curve.smallest, cache->largest());
        curve.references += cache->references();
        curve.compulsory += cache->compulsory();
        requests += double(cache->requests());
        blocks = std::max(blocks, cache->blockLimit());
    }
    const double cost =
        double(sample.window + sample.warmUp) + double(sample.reach) / 16; // reading departures takes a sixteenth
    const double stride = requests / std::max(1.0, std::floor(requests * sample.share / cost));
    std::mt19937_64 random(sample.seed);
    double at = std::uniform_real_distribution<double>(0, stride)(random);
    Numbered<double> hitsFrom(std::max(blocks, curve.smallest) + 2, 0);
    double counted = 0, offset = 0;
    for (const BlockVisits* cache : caches) {
        for (; at < offset + double(cache->requests()); at += stride) {
            const auto begin = std::min(std::size_t(at - offset), cache->requests() - 1);
            const std::size_t end = std::min(begin + sample.window, cache->requests());
            for (std::size_t request = begin; request < end; ++request) counted += cache->counted(request);
            const auto window = policy == CurvePolicy::Lru ? lruWindow(*cache, begin, end, sample)
                                                           : beladyWindow(*cache, begin, end, sample);
            for (std::size_t slots = 0; slots < window.size(); ++slots) hitsFrom[slots] += double(window[slots]);
        }
        offset += double(cache->requests());
    }
    const double scale = counted > 0 ? double(curve.references) / counted : 0;
    double larger = 0;
    curve.misses.assign(hitsFrom.count() - curve.smallest, 0);
    for (int slots = hitsFrom.count(); slots-- > curve.smallest;) {
        curve.misses[slots - curve.smallest] = curve.compulsory + std::llround(larger * scale);
        larger += hitsFrom[slots];
    }
    return curve;
}

} // namespace kvscope
