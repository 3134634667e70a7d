// Compares the selections of two runs: the Jaccard index of their blocks, and where they differ first.
#pragma once

#include "base/extents.h"
#include "base/indexed.h"
#include "profiler/compare/alignment.h"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace kvscope {

/// The Jaccard index |A and B| / |A or B| of two selections, whose ids ascend. Counted in tokens where
/// block sizes differ. NaN if both are empty.
double jaccard(std::span<const PackedBlock> a, int blockSizeA, std::span<const PackedBlock> b, int blockSizeB);

/// One KV head whose selections differ. Where block sizes differ, blocks have the numbers of their own run, and only
/// blocks without a token in common with the other selection are listed.
struct SelectionDifference {
    StepPair pair;
    int layer = 0, sequence = 0, kvHead = 0;
    double jaccard = 0;
    std::vector<std::int32_t> onlyA, onlyB;
    /// Of each of these blocks: its score minus the lowest score that its list chose; NaN: no score was recorded.
    std::vector<float> gapsA, gapsB;
};

/// Whether there were selections to compare, among the KV heads that the filter counts.
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
    /// [pair][layer] mean Jaccard index over every (sequence, KV head) that selects in both runs; NaN: none does.
    std::vector<float> jaccard;
    Extents<int, int> extents() const { return Extents<int, int>(pairs, layers); } // of jaccard
    std::optional<SelectionDifference> first; // in order of step, layer, sequence, KV head
    SelectionCoverage coverage;
};

/// Why the selections of two runs cannot be compared, a sentence without a full stop; empty: they can. other: the name
/// of b in the sentence.
std::string overlapRefusal(const RunRow& a, const RunRow& b, const std::string& other = "B");

/// heads[h]: whether KV head h counts; empty: all count. sequence: only this one counts; -1: all that both runs have.
/// `pairs` are in ascending order.
/// @throws Error(BadInput) if a selection is damaged, Error(Cancelled | Storage)
OverlapRows readOverlap(const TraceReader& a, int runA, const TraceReader& b, int runB,
                        NumberedSpan<const StepPair> pairs, const Numbered<bool>& heads = {}, int sequence = -1);

/// Means of an overlap for each layer and for each pair; NaN where nothing is defined. Only steady pairs count in the
/// means of a layer, unless there are none.
std::vector<double> overlapPerLayer(const OverlapRows& rows, NumberedSpan<const StepPair> pairs);
std::vector<double> overlapPerPair(const OverlapRows& rows);

} // namespace kvscope
