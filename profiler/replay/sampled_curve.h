// Miss curves from a sample, for what must answer at once.
#pragma once

#include "profiler/replay/miss_curve.h"

#include <cstdint>
#include <span>

namespace kvscope {

/// How much of the requests is looked at, and where.
struct CurveSample {
    double share = 0.01; // of the work that the exact curve is; at least one window is taken
    int window = 192;    // requests counted in a row
    int warmUp = 96;     // requests before them that only bring the cache of Belady's choice into its state
    int reach = 1024;    // requests before those, of which only the blocks that leave are read
    std::uint64_t seed = 1;
};

/// An estimate of the sum of the exact curves. Windows are spread evenly over all requests of all caches, from a random
/// start. Compulsory misses and references are exact.
/// Hashed sampling of blocks (SHARDS) is for caches of many thousands of blocks; a KV head has hundreds, of which one
/// percent is nothing.
MissCurve sampledMissCurve(std::span<const BlockVisits* const> caches, CurvePolicy policy,
                           const CurveSample& sample = {});

} // namespace kvscope
