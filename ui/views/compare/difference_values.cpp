#include "ui/views/compare/difference_values.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <limits>
#include <string>

namespace kvscope::ui {
namespace {

constexpr float kNoValue = std::numeric_limits<float>::quiet_NaN();

/// [KV head] whether it counts; empty: all count.
Numbered<bool> countedHeads(const DifferenceRequest& request) {
    Numbered<bool> counted;
    if (!request.filter.kvHeads.all())
        for (int head = 0; head < request.kvHeads; ++head) counted.push_back(request.filter.hasKvHead(head));
    return counted;
}

} // namespace

DifferenceChunk readDifference(const DifferenceRequest& request, const TraceReader& a, const TraceReader& b,
                               NumberedSpan<const StepPair> pairs) {
    DifferenceChunk chunk;
    if (request.overlap) {
        OverlapRows rows =
            readOverlap(a, request.runA, b, request.runB, pairs, countedHeads(request), request.sequence);
        chunk.layers = rows.layers;
        chunk.coverage = rows.coverage;
        chunk.values = std::move(rows.jaccard);
    } else {
        PairMatrix matrix =
            readPairs(a, request.runA, b, request.runB, request.metric, request.read, pairs, request.sequence);
        chunk.layers = matrix.layers;
        chunk.values.reserve(matrix.a.size());
        for (std::size_t i = 0; i < matrix.a.size(); ++i) {
            matrix.a[i] = float(double(matrix.a[i]) * request.factor);
            matrix.b[i] = float(double(matrix.b[i]) * request.factor);
            chunk.values.push_back(matrix.b[i] - matrix.a[i]);
        }
        chunk.a = std::move(matrix.a);
        chunk.b = std::move(matrix.b);
    }
    if (pairs.empty()) return chunk;
    const auto passes = stepsThatPass(a, request.runA, request.read, pairs.front().a, pairs.back().a);
    const Extents<int, int> cells(int(pairs.size()), chunk.layers);
    for (int pair = 0; pair < cells.length(0); ++pair)
        for (int layer = 0; layer < chunk.layers; ++layer) {
            if (passes[pairs[pair].a - pairs.front().a] && request.filter.hasLayer(layer)) continue;
            const std::size_t at = cells.offset(pair, layer);
            chunk.values[at] = kNoValue;
            if (!chunk.a.empty()) chunk.a[at] = chunk.b[at] = kNoValue;
        }
    return chunk;
}

NumberWriter differenceNumbers(DifferenceValues values, std::vector<StepPair> pairs, QCPRange visible, bool overlap,
                               bool byToken) {
    return [values = std::move(values), pairs = std::move(pairs), visible, overlap, byToken](NumberSink& sink) {
        std::string lines = byToken ? "position,step_a,step_b" : "step,step_a,step_b";
        for (int layer = 0; layer < values.layers(); ++layer) lines += fmt::format(",layer {}", layer);
        sink.add(lines += '\n');
        for (std::size_t i = 0; i < pairs.size(); ++i) {
            const StepPair& pair = pairs[i];
            if (!visible.contains(pair.at)) continue;
            lines = fmt::format("{},{},{}", pair.at, pair.a, pair.b);
            for (int layer = 0; layer < values.layers(); ++layer) {
                const auto [a, b] = values.at(int(i), layer);
                const double value = overlap ? a : b - a;
                lines += std::isnan(value) ? std::string(",") : fmt::format(",{:.9g}", value);
            }
            sink.add(lines += '\n');
        }
    };
}

} // namespace kvscope::ui
