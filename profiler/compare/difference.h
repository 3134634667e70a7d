// One metric of two runs laid over each other, step by step and layer by layer.
#pragma once

#include "profiler/compare/alignment.h"
#include "profiler/compare/bootstrap.h"
#include "profiler/read/filtered.h"

#include <cstdint>
#include <span>
#include <vector>

namespace kvscope {

/// Values of both runs, [pair][layer]; NaN where undefined.
struct PairMatrix {
    int pairs = 0, layers = 0;
    std::vector<float> a, b;
    float difference(int pair, int layer) const { // b - a; NaN where either is undefined
        const auto at = std::size_t(pair) * std::size_t(layers) + std::size_t(layer);
        return b[at] - a[at];
    }
};

/// `pairs` ascend. The filter's layers, KV heads and component hold for both runs; its steps and text are not looked
/// at. `sequence`: the only one that counts, -1: all; times are not known of single sequences (NaN).
/// @throws Error as TraceReader::layerMatrix
PairMatrix readPairs(const TraceReader& a, int runA, const TraceReader& b, int runB, Metric metric,
                     const ReadFilter& filter, std::span<const StepPair> pairs, int sequence = -1);

/// One layer of A against the same of B, mean over the pairs that are defined in both.
struct LayerDelta {
    int layer = 0, pairs = 0; // 0 pairs: everything is NaN
    double a = 0, b = 0;
    Interval delta; // b - a; with fewer than 10 pairs low and high are NaN: too few to say
};

/// Averages leave out the first decode step and those that open a block, unless nothing else is left.
std::vector<LayerDelta> layerDeltas(const PairMatrix& matrix, std::span<const StepPair> pairs, double confidence = 0.95,
                                    std::uint64_t seed = 1);

} // namespace kvscope
