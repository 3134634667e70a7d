// How alike two runs select: Jaccard of their blocks, and where they part first.
#pragma once

#include "profiler/compare/alignment.h"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace kvscope {

/// |A and B| / |A or B| of two selections, ascending block ids, counted in tokens where block sizes differ; NaN if both
/// are empty.
double jaccard(std::span<const std::int32_t> a, int blockSizeA, std::span<const std::int32_t> b, int blockSizeB);

/// One KV head that selected differently. Where block sizes differ, blocks stand in their own run's numbers and only
/// those are listed that share no token with the other selection.
struct SelectionDifference {
    StepPair pair;
    int layer = 0, sequence = 0, kvHead = 0;
    double jaccard = 0;
    std::vector<std::int32_t> onlyA, onlyB;
};

/// What there was to lay over each other, of the KV heads that count.
struct SelectionCoverage {
    bool a = false, b = false; // some KV head of A, of B, has selected blocks
    std::int64_t compared = 0; // (pair, layer, sequence, KV head) that selected in both
    void add(const SelectionCoverage& other) {
        a |= other.a;
        b |= other.b;
        compared += other.compared;
    }
};

/// Why nothing was compared, a sentence without a full stop; empty: something was. `other`: what it calls b.
std::string coverageRefusal(const SelectionCoverage& coverage, const std::string& other = "B");

struct OverlapRows {
    int pairs = 0, layers = 0;
    /// Mean Jaccard over the (sequence, KV head) that selected in both runs, [pair][layer]; NaN: none did.
    std::vector<float> jaccard;
    std::optional<SelectionDifference> first; // in order of step, layer, sequence, KV head
    SelectionCoverage coverage;
};

/// Why the selections of two runs cannot be laid over each other, a sentence without a full stop; empty: they can.
/// `other`: what it calls b.
std::string overlapRefusal(const RunRow& a, const RunRow& b, const std::string& other = "B");

/// KV heads for which `heads` is false do not count; empty: all count. `sequence`: the only one that counts; -1: all
/// that both runs have. `pairs` ascend.
/// @throws Error(BadInput) if a selection is damaged, Error(Cancelled | Storage)
OverlapRows readOverlap(const TraceReader& a, int runA, const TraceReader& b, int runB, std::span<const StepPair> pairs,
                        const std::vector<bool>& heads = {}, int sequence = -1);

/// Means over the pairs, and over the layers, of an overlap; NaN where nothing is defined. Only steady pairs count in
/// the means per layer, unless there is none.
std::vector<double> overlapPerLayer(const OverlapRows& rows, std::span<const StepPair> pairs);
std::vector<double> overlapPerPair(const OverlapRows& rows);

} // namespace kvscope
