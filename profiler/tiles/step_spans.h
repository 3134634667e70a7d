// Exact aggregation over any range of steps: a range is cut into aligned nodes of 4^level steps, a few per level.
#pragma once

#include <cstddef>

namespace kvscope {

inline constexpr int kSpanFanOut = 4;   // a pyramid above n columns then costs n/3 more
inline constexpr int kTileSteps = 4096; // 4^6 steps are read, built and kept together: the topmost group of a tile

/// Calls node(level, index) for aligned nodes that together cover [first, last) exactly once. A node of `level` covers
/// steps [index * 4^level, (index + 1) * 4^level). Only complete nodes are named, so a growing run needs no repair.
template <class Node> void forEachSpan(std::size_t first, std::size_t last, int levels, Node&& node) {
    int level = 0;
    std::size_t width = 1;
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
