// The blocks that two runs on the same text select differently, and how far the score of each is from the lowest score
// that its own list chose. Where two implementations differ only in blocks whose scores nearly tie, neither is wrong.
#pragma once

#include "profiler/compare/alignment.h"

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace kvscope {

/// A block nearly ties with the last one chosen if its gap is at most this share of the range of the list's scores.
inline constexpr double kNearTie = 0.01;

struct DifferingBlock {
    std::int32_t block = 0;
    bool onlyA = false; // else only B selected it
    Origin origin = Origin::QueryAware;
    float score = 0;      // in the run that selected it; NaN: no score was recorded
    float gap = 0;        // score minus the lowest score of this list's blocks of the same origin; NaN likewise
    float gapOfRange = 0; // gap / (highest - lowest score of these blocks); NaN where the list has one score only
    bool nearTie() const { return gapOfRange <= kNearTie || gap == 0; }
};

/// One KV head whose selections differ.
struct HeadDifference {
    StepPair pair;
    int layer = 0, sequence = 0, kvHead = 0;
    std::span<const DifferingBlock> blocks; // ids ascend
};

struct GapSums {
    std::int64_t heads = 0, differingHeads = 0; // (step, layer, sequence, KV head) that select in both
    std::int64_t chosen = 0;                    // blocks that A and B select there, together
    std::int64_t differing = 0;                 // of these, in one of the two only
    std::int64_t scored = 0, nearTies = 0;      // of the differing ones
    /// "12 of 4,096 selected blocks (0.29 %) are in one run only; 11 of them nearly tied with the last one chosen".
    std::string sentence() const;
};

/// As DifferingBlock::gap, of blocks of one list. ids: ascending, blocks of the list.
std::vector<float> gapsOf(const SelectionRow& row, std::span<const std::int32_t> ids);

/// Why the ids of two runs cannot be compared one by one, a sentence without a full stop; empty: they can.
std::string gapsRefusal(const RunRow& a, const RunRow& b, const std::string& other = "B");

/// Calls `visit` for every KV head that selects in both runs, but other blocks, in order of step, layer, sequence,
/// head; the argument is valid during the call only. layer, sequence, kvHead: only this one; -1: all. Sink and window
/// blocks are always attended, so their scores do not count for the lowest score chosen.
/// @pre gapsRefusal() is empty. @throws Error(BadInput) if a selection is damaged, Error(Cancelled | Storage)
GapSums readSelectionGaps(const TraceReader& a, int runA, const TraceReader& b, int runB,
                          std::span<const StepPair> pairs,
                          const std::function<void(const HeadDifference& difference)>& visit, int layer = -1,
                          int sequence = -1, int kvHead = -1);

} // namespace kvscope
