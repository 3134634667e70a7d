// Latencies of a serving run over time: percentiles of the requests and tokens of a sliding window.
#pragma once

#include "profiler/read/serving.h"

#include <cstdint>
#include <vector>

namespace kvscope {

/// One latency in one window. Times are in nanoseconds; NaN: too few samples lie in the window.
struct LatencyWindow {
    std::int64_t samples = 0;
    double median = 0;     // of at least 20 samples, so that ten lie on each side
    double high = 0;       // the 99th percentile, or the largest sample; of at least one
    bool isLargest = true; // high is the largest sample: of fewer than 1,000 samples, fewer than ten lie beyond the
                           // 99th percentile
};

/// The latencies of a window that ends at `ns`. A time to the first token counts at the moment of that token, a gap
/// between two tokens at the moment of the later one.
struct LatencyPoint {
    double ns = 0;
    LatencyWindow firstToken, gap;
};

/// The points of `count` windows, each `windowNs` long, whose ends divide [0, endNs] evenly; the last one ends at
/// endNs. Percentiles are linear between order statistics. gaps: in the order of their times.
std::vector<LatencyPoint> latencyOverTime(const std::vector<RequestRow>& requests, const std::vector<TokenGap>& gaps,
                                          double endNs, double windowNs, int count);

} // namespace kvscope
