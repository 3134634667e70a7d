#include "profiler/compare/overlap.h"

#include "profiler/compare/selection_gaps.h"
#include "profiler/compare/step_selections.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <fmt/format.h>
#include <limits>

namespace kvscope {
namespace {

using Blocks = std::span<const PackedBlock>;
constexpr double kNoValue = std::numeric_limits<double>::quiet_NaN();

/// The number of tokens that both selections cover. Blocks are in ascending order, so that one pass over both lists is
/// enough.
std::int64_t commonTokens(Blocks a, std::int64_t sizeA, Blocks b, std::int64_t sizeB) {
    std::int64_t common = 0;
    std::size_t i = 0, j = 0;
    while (i < a.size() && j < b.size()) {
        const std::int64_t beginA = a[i].id() * sizeA, endA = beginA + sizeA, beginB = b[j].id() * sizeB,
                           endB = beginB + sizeB;
        common += std::max<std::int64_t>(0, std::min(endA, endB) - std::max(beginA, beginB));
        endA <= endB ? ++i : ++j;
    }
    return common;
}

/// The blocks that have no token in common with the other selection.
std::vector<std::int32_t> apart(Blocks blocks, std::int64_t size, Blocks others, std::int64_t otherSize) {
    std::vector<std::int32_t> result;
    for (const PackedBlock block : blocks) {
        const std::int64_t begin = block.id() * size, end = begin + size;
        const auto other = std::partition_point(others.begin(), others.end(), [&](PackedBlock o) {
            return (std::int64_t(o.id()) + 1) * otherSize <= begin;
        });
        if (other == others.end() || other->id() * otherSize >= end) result.push_back(block.id());
    }
    return result;
}

SelectionDifference differenceOf(const StepPair& pair, double jaccard, const SelectionRow& a, int sizeA,
                                 const SelectionRow& b, int sizeB) {
    SelectionDifference first{pair,
                              a.layer,
                              a.sequence,
                              a.kvHead,
                              jaccard,
                              apart(a.blocks, sizeA, b.blocks, sizeB),
                              apart(b.blocks, sizeB, a.blocks, sizeA),
                              {},
                              {}};
    first.gapsA = gapsOf(a, first.onlyA);
    first.gapsB = gapsOf(b, first.onlyB);
    return first;
}

} // namespace

double jaccard(Blocks a, int blockSizeA, Blocks b, int blockSizeB) {
    const std::int64_t common = commonTokens(a, blockSizeA, b, blockSizeB);
    const std::int64_t all = std::int64_t(a.size()) * blockSizeA + std::int64_t(b.size()) * blockSizeB - common;
    return all > 0 ? double(common) / double(all) : kNoValue;
}

std::string overlapRefusal(const RunRow& a, const RunRow& b, const std::string& other) {
    for (const RunRow* run : {&a, &b})
        if (run->level == RecordLevel::Counters)
            return fmt::format("{} was recorded at level counters, without the selected blocks",
                               run == &a ? std::string("A") : other);
    if (a.kvHeads != b.kvHeads)
        return fmt::format("A has {} KV heads a layer and {} {}: a head of one has no counterpart in the other",
                           a.kvHeads, other, b.kvHeads);
    if (a.blockSize <= 0 || b.blockSize <= 0) return "a run has no block size";
    return {};
}

std::string coverageRefusal(const SelectionCoverage& coverage, const std::string& other) {
    if (coverage.compared > 0) return {};
    constexpr const char* kWhy = "full attention selects none, it attends to every cached block";
    if (coverage.a && coverage.b)
        return fmt::format("no KV head of a layer selects blocks in both A and {} in these steps", other);
    if (coverage.a || coverage.b)
        return fmt::format("{} has no selected blocks in these steps: {}", coverage.a ? other : "A", kWhy);
    return fmt::format("neither A nor {} has selected blocks in these steps: {}", other, kWhy);
}

OverlapRows readOverlap(const TraceReader& a, int runA, const TraceReader& b, int runB,
                        NumberedSpan<const StepPair> pairs, const Numbered<bool>& heads, int sequence) {
    const RunRow left = a.run(runA).value_or(RunRow{}), right = b.run(runB).value_or(RunRow{});
    OverlapRows result;
    result.pairs = int(pairs.size());
    result.layers = left.layers;
    const Extents<int, int> cells = result.extents();
    result.jaccard.assign(cells.size(), float(kNoValue));
    StepSelections selectionsA(a, runA), selectionsB(b, runB);
    Numbered<double> sums(left.layers);
    Numbered<int> counts(left.layers);
    for (int pair = 0; pair < result.pairs; ++pair) {
        const auto rowsA = selectionsA.of(pairs[pair].a), rowsB = selectionsB.of(pairs[pair].b);
        const auto selects = [&](const SelectionRow& row) {
            return !row.blocks.empty() && (sequence < 0 || row.sequence == sequence) &&
                   (heads.empty() || (row.kvHead < heads.count() && heads[row.kvHead]));
        };
        result.coverage.a = result.coverage.a || std::any_of(rowsA.begin(), rowsA.end(), selects);
        result.coverage.b = result.coverage.b || std::any_of(rowsB.begin(), rowsB.end(), selects);
        std::fill(sums.begin(), sums.end(), 0.);
        std::fill(counts.begin(), counts.end(), 0);
        auto rowB = rowsB.begin();
        for (const SelectionRow& rowA : rowsA) {
            while (rowB != rowsB.end() && placeOf(*rowB) < placeOf(rowA)) ++rowB;
            if (rowB == rowsB.end()) break;
            if (placeOf(*rowB) != placeOf(rowA) || rowA.layer >= left.layers) continue;
            if (!selects(rowA) || !selects(*rowB)) continue;
            const double value = jaccard(rowA.blocks, left.blockSize, rowB->blocks, right.blockSize);
            if (std::isnan(value)) continue;
            sums[rowA.layer] += value;
            ++counts[rowA.layer];
            ++result.coverage.compared;
            if (value < 1 && !result.first)
                result.first = differenceOf(pairs[pair], value, rowA, left.blockSize, *rowB, right.blockSize);
        }
        for (int layer = 0; layer < sums.count(); ++layer)
            if (counts[layer] > 0) result.jaccard[cells.offset(pair, layer)] = float(sums[layer] / counts[layer]);
    }
    return result;
}

std::vector<double> overlapPerLayer(const OverlapRows& rows, NumberedSpan<const StepPair> pairs) {
    const Extents<int, int> cells = rows.extents();
    std::vector<double> result;
    for (int layer = 0; layer < rows.layers; ++layer) {
        double sum = 0, steadySum = 0;
        int count = 0, steadyCount = 0;
        for (int pair = 0; pair < rows.pairs; ++pair) {
            const auto value = double(rows.jaccard[cells.offset(pair, layer)]);
            if (std::isnan(value)) continue;
            sum += value, ++count;
            if (pairs[pair].steady) steadySum += value, ++steadyCount;
        }
        result.push_back(steadyCount > 0 ? steadySum / steadyCount : count > 0 ? sum / count : kNoValue);
    }
    return result;
}

std::vector<double> overlapPerPair(const OverlapRows& rows) {
    const Extents<int, int> cells = rows.extents();
    std::vector<double> result;
    for (int pair = 0; pair < rows.pairs; ++pair) {
        double sum = 0;
        int count = 0;
        for (int layer = 0; layer < rows.layers; ++layer) {
            const auto value = double(rows.jaccard[cells.offset(pair, layer)]);
            if (!std::isnan(value)) sum += value, ++count;
        }
        result.push_back(count > 0 ? sum / count : kNoValue);
    }
    return result;
}

} // namespace kvscope
