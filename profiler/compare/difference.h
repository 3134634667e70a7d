// One metric of two runs, compared step by step and layer by layer.
#pragma once

#include "base/extents.h"
#include "base/indexed.h"
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
    Extents<int, int> extents() const { return Extents<int, int>(pairs, layers); } // of a and of b
    float difference(int pair, int layer) const { // b - a; NaN where either is undefined
        const std::size_t at = extents().offset(pair, layer);
        return b[at] - a[at];
    }
};

/// `pairs` are in ascending order. The filter's layers, KV heads and component are applied to both runs; its steps and
/// text are not used. sequence: only this one counts; -1: all. A trace has no times of single sequences (NaN).
/// @throws Error as TraceReader::layerMatrix
PairMatrix readPairs(const TraceReader& a, int runA, const TraceReader& b, int runB, Metric metric,
                     const ReadFilter& filter, std::span<const StepPair> pairs, int sequence = -1);

/// One layer of A compared with the same layer of B: means over the pairs for which both are defined.
struct LayerDelta {
    int layer = 0, pairs = 0; // 0 pairs: everything is NaN
    double a = 0, b = 0;
    Interval delta; // b - a; low and high are NaN with fewer than 10 pairs
};

/// Means leave out the first decode step and steps that open a block, unless no others are left.
std::vector<LayerDelta> layerDeltas(const PairMatrix& matrix, NumberedSpan<const StepPair> pairs,
                                    double confidence = 0.95, std::uint64_t seed = 1);

} // namespace kvscope
