#include "profiler/compare/difference.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace kvscope {
namespace {

constexpr float kUndefined = std::numeric_limits<float>::quiet_NaN();
constexpr std::size_t kFewestPairs = 10; // with fewer pairs, resampling says nothing

/// Reads the wanted steps of a run, a row of all layers for each.
std::vector<float> readSide(const TraceReader& reader, int runId, Metric metric, const ReadFilter& filter, int sequence,
                            const std::vector<int>& steps, int layers) {
    const Extents<int, int> cells(int(steps.size()), layers);
    std::vector<float> values(cells.size(), kUndefined);
    if (steps.empty()) return values;
    const StepMatrix matrix = filteredLayers(reader, runId, metric, sequence, filter, steps.front(), steps.back());
    for (std::size_t pair = 0; pair < steps.size(); ++pair) {
        const int column = steps[pair] - matrix.firstStep;
        if (column < 0 || column >= matrix.steps) continue; // a live run does not have this step yet
        for (int layer = 0; layer < std::min(layers, matrix.rows); ++layer)
            values[cells.offset(int(pair), layer)] = matrix.at(column, layer);
    }
    return values;
}

} // namespace

PairMatrix readPairs(const TraceReader& a, int runA, const TraceReader& b, int runB, Metric metric,
                     const ReadFilter& filter, std::span<const StepPair> pairs, int sequence) {
    ReadFilter cells = filter; // without its steps: the pairs say which steps are read
    cells.steps.clear();
    cells.text.clear();
    PairMatrix matrix;
    matrix.pairs = int(pairs.size());
    matrix.layers = a.run(runA).value_or(RunRow{}).layers;
    std::vector<int> left, right;
    for (const StepPair& pair : pairs) left.push_back(pair.a), right.push_back(pair.b);
    matrix.a = readSide(a, runA, metric, cells, sequence, left, matrix.layers);
    matrix.b = readSide(b, runB, metric, cells, sequence, right, matrix.layers);
    return matrix;
}

std::vector<LayerDelta> layerDeltas(const PairMatrix& matrix, NumberedSpan<const StepPair> pairs, double confidence,
                                    std::uint64_t seed) {
    const Extents<int, int> cells = matrix.extents();
    std::vector<LayerDelta> result;
    for (int layer = 0; layer < matrix.layers; ++layer) {
        std::vector<double> left, right;
        const auto collect = [&](bool steadyOnly) {
            left.clear(), right.clear();
            for (int pair = 0; pair < matrix.pairs; ++pair) {
                if (steadyOnly && !pairs[pair].steady) continue;
                if (std::isnan(matrix.difference(pair, layer))) continue;
                const std::size_t at = cells.offset(pair, layer);
                left.push_back(double(matrix.a[at])), right.push_back(double(matrix.b[at]));
            }
        };
        collect(true);
        if (left.empty()) collect(false);
        LayerDelta& delta = result.emplace_back();
        delta.layer = layer;
        delta.pairs = int(left.size());
        constexpr double nan = std::numeric_limits<double>::quiet_NaN();
        if (left.empty()) {
            delta.a = delta.b = nan;
            delta.delta = {nan, nan, nan};
            continue;
        }
        const double n = double(left.size());
        delta.a = std::accumulate(left.begin(), left.end(), 0.) / n;
        delta.b = std::accumulate(right.begin(), right.end(), 0.) / n;
        std::vector<double> apart(left.size());
        for (std::size_t i = 0; i < left.size(); ++i) apart[i] = right[i] - left[i];
        if (apart.size() < kFewestPairs)
            delta.delta = {delta.b - delta.a, nan, nan};
        else
            delta.delta = BlockBootstrap(apart.size(), bootstrapBlockLength(apart), confidence, seed).mean(apart);
    }
    return result;
}

} // namespace kvscope
