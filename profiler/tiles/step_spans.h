// Cuts a range of steps into aligned nodes of 4^level steps, a few for each level, so that numbers of nodes add up to
// exact numbers of the range.
#pragma once

#include <cstddef>

namespace kvscope {

inline constexpr int kSpanFanOut = 4;   // all levels above n columns together then have n/3 entries
inline constexpr int kTileSteps = 4096; // 4^6 steps are a tile, which is read, built and cached as a whole

/// Calls node(level, index) for aligned nodes that together cover [first, last) exactly once. A node of `level` covers
/// the steps [index * 4^level, (index + 1) * 4^level). All of these lie in the range, so that a node's numbers stay the
/// same when the run grows.
template <class Node> void forEachSpan(int firstStep, int lastStep, std::size_t levels, Node&& node) {
    auto first = std::size_t(firstStep);
    const auto last = std::size_t(lastStep);
    std::size_t level = 0, width = 1;
    while (first < last) {
        while (level + 1 < levels && first % (width * kSpanFanOut) == 0 && first + width * kSpanFanOut <= last) {
            width *= kSpanFanOut;
            ++level;
        }
        while (first % width != 0 || first + width > last) {
            width /= kSpanFanOut;
            --level;
        }
        node(level, first / width);
        first += width;
    }
}

} // namespace kvscope
