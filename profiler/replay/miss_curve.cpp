#include "profiler/replay/miss_curve.h"

#include "profiler/replay/stack_distance.h"

#include <algorithm>
#include <limits>

namespace kvscope {
namespace {

/// The misses with smallest .. most slots: the compulsory ones, and the references that hit from a larger number of
/// slots on only. hitsFrom[slots]: how often `slots` was the smallest size at which a reference hits.
Numbered<std::int64_t> missesBySize(int smallest, int most, std::int64_t compulsory,
                                    const Numbered<std::int64_t>& hitsFrom) {
    Numbered<std::int64_t> misses(most - smallest + 1, compulsory);
    std::int64_t larger = 0;
    for (int slots = most; slots >= smallest; --slots) {
        misses[slots - smallest] += larger;
        if (slots < hitsFrom.count()) larger += hitsFrom[slots];
    }
    return misses;
}

/// The last entry holds for all larger sizes; no entries: 0.
std::int64_t atSize(const Numbered<std::int64_t>& misses, int size) {
    return misses.empty() ? 0 : misses[std::clamp(size, 0, misses.count() - 1)];
}

/// The curve of a cache whose requests the stack takes in their order.
template <class Stack> MissCurve curveOf(Stack& stack, const BlockVisits& visits, std::span<const std::uint8_t> cold) {
    MissCurve curve;
    curve.smallest = visits.largest();
    curve.references = visits.references();
    curve.compulsory = visits.compulsory();
    for (std::size_t request = 0; request < visits.requests(); ++request) {
        const bool isCold = !cold.empty() && cold[request] != 0;
        stack.next(request, isCold);
        if (!isCold) continue;
        curve.coldReferences += visits.counted(request);
        for (const BlockVisits::Entry& entry : visits.entered(request)) curve.coldCompulsory += entry.compulsory();
    }
    const int most = std::max(curve.smallest, int(stack.hitsFrom().size()) - 1);
    curve.misses = missesBySize(curve.smallest, most, curve.compulsory, stack.hitsFrom());
    while (curve.misses.size() > 1 && curve.misses[curve.misses.size() - 2] == curve.compulsory)
        curve.misses.pop_back();
    if (curve.coldReferences > 0) {
        curve.coldMisses = missesBySize(curve.smallest, most, curve.coldCompulsory, stack.coldHitsFrom());
        curve.coldMisses.resize(curve.misses.size());
    }
    return curve;
}

} // namespace

std::int64_t MissCurve::at(int slots) const { return atSize(misses, slots - smallest); }

double MissCurve::ratio(int slots) const {
    return references > 0 ? double(at(slots)) / double(references) : std::numeric_limits<double>::quiet_NaN();
}

MissCurve MissCurve::warm() const {
    MissCurve rest{smallest, misses, references - coldReferences, compulsory - coldCompulsory, {}, 0, 0};
    for (std::size_t i = 0; i < coldMisses.size(); ++i) rest.misses[i] -= coldMisses[i];
    return rest;
}

MissCurve& MissCurve::operator+=(const MissCurve& other) {
    MissCurve both;
    both.smallest = std::max(smallest, other.smallest);
    both.references = references + other.references;
    both.compulsory = compulsory + other.compulsory;
    const int most = std::max({both.smallest, largest(), other.largest()});
    both.misses.clear();
    for (int slots = both.smallest; slots <= most; ++slots) both.misses.push_back(at(slots) + other.at(slots));
    both.coldReferences = coldReferences + other.coldReferences;
    both.coldCompulsory = coldCompulsory + other.coldCompulsory;
    if (!coldMisses.empty() || !other.coldMisses.empty())
        for (int slots = both.smallest; slots <= most; ++slots)
            both.coldMisses.push_back(atSize(coldMisses, slots - smallest) +
                                      atSize(other.coldMisses, slots - other.smallest));
    return *this = std::move(both);
}

MissCurve missCurve(const BlockVisits& visits, CurvePolicy policy, std::span<const std::uint8_t> cold) {
    if (policy == CurvePolicy::Lru) {
        LruStack stack(visits);
        return curveOf(stack, visits, cold);
    }
    const std::vector<std::int32_t> next = visits.nextVisits();
    BeladyStack stack(visits, [&next](std::int32_t, std::size_t departure, std::int32_t) { return next[departure]; });
    return curveOf(stack, visits, cold);
}

MissCurve sum(std::span<const MissCurve> curves) {
    MissCurve total;
    for (const MissCurve& curve : curves) total += curve;
    return total;
}

} // namespace kvscope
