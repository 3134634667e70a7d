// Miss curves estimated from a sample of the requests, for questions that must be answered at once.
#pragma once

#include "profiler/replay/miss_curve.h"

#include <cstdint>
#include <span>

namespace kvscope {

/// How many requests are sampled, and how.
struct CurveSample {
    double share = 0.01;      // share of the exact curve's work to spend; at least one window is sampled
    std::size_t window = 192; // consecutive requests whose hits are counted
    std::size_t warmUp = 96;  // requests before a window that only fill the cache of Belady's choice
    std::size_t reach = 1024; // requests before these of which only the departures are read
    std::uint64_t seed = 1;
};

/// Estimates the sum of the exact curves. Windows are spread evenly over all requests of all caches, from a random
/// start. Compulsory misses and references are exact. Sampling blocks by a hash (SHARDS) would not do: it is for caches
/// of many thousands of blocks, and one percent of a KV head's hundreds of blocks is too few.
MissCurve sampledMissCurve(std::span<const BlockVisits* const> caches, CurvePolicy policy,
                           const CurveSample& sample = {});

} // namespace kvscope
