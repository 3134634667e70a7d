#include "profiler/replay/miss_curve.h"

#include "profiler/replay/stack_distance.h"

#include <algorithm>
#include <limits>

namespace kvscope {
namespace {

/// Makes the misses at every size. hitsFrom[slots]: how often `slots` was the smallest size at which a reference hits.
MissCurve fromDistances(const BlockVisits& visits, const std::vector<std::int64_t>& hitsFrom) {
    MissCurve curve;
    curve.smallest = visits.largest();
    curve.references = visits.references();
    curve.compulsory = visits.compulsory();
    const int most = std::max(curve.smallest, int(hitsFrom.size()) - 1);
    curve.misses.assign(std::size_t(most - curve.smallest) + 1, curve.compulsory);
    std::int64_t larger = 0;
    for (int slots = most; slots >= curve.smallest; --slots) {
        curve.misses[std::size_t(slots - curve.smallest)] += larger;
        if (std::size_t(slots) < hitsFrom.size()) larger += hitsFrom[std::size_t(slots)];
    }
    while (curve.misses.size() > 1 && curve.misses[curve.misses.size() - 2] == curve.compulsory)
        curve.misses.pop_back();
    return curve;
}

template <class Stack> std::vector<std::int64_t> distances(Stack& stack, const BlockVisits& visits) {
    for (std::size_t request = 0; request < visits.requests(); ++request) stack.next(request);
    return stack.hitsFrom();
}

} // namespace

std::int64_t MissCurve::at(int slots) const {
    const auto index = std::size_t(std::max(0, slots - smallest));
    return misses[std::min(index, misses.size() - 1)];
}

double MissCurve::ratio(int slots) const {
    return references > 0 ? double(at(slots)) / double(references) : std::numeric_limits<double>::quiet_NaN();
}

MissCurve& MissCurve::operator+=(const MissCurve& other) {
    MissCurve both;
    both.smallest = std::max(smallest, other.smallest);
    both.references = references + other.references;
    both.compulsory = compulsory + other.compulsory;
    const int most = std::max({both.smallest, largest(), other.largest()});
    both.misses.clear();
    for (int slots = both.smallest; slots <= most; ++slots) both.misses.push_back(at(slots) + other.at(slots));
    return *this = std::move(both);
}

MissCurve missCurve(const BlockVisits& visits, CurvePolicy policy) {
    if (policy == CurvePolicy::Lru) {
        LruStack stack(visits);
        return fromDistances(visits, distances(stack, visits));
    }
    const std::vector<std::int32_t> next = visits.nextVisits();
    BeladyStack stack(visits, [&next](std::int32_t, std::size_t departure, std::int32_t) { return next[departure]; });
    return fromDistances(visits, distances(stack, visits));
}

MissCurve sum(std::span<const MissCurve> curves) {
    MissCurve total;
    for (const MissCurve& curve : curves) total += curve;
    return total;
}

} // namespace kvscope
