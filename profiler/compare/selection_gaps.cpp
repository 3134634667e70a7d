#include "profiler/compare/selection_gaps.h"

#include "profiler/compare/overlap.h"
#include "profiler/compare/step_selections.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <fmt/format.h>
#include <limits>

namespace kvscope {
namespace {

constexpr float kNone = std::numeric_limits<float>::quiet_NaN();

bool isForced(PackedBlock block) { return block.origin() == Origin::Sink || block.origin() == Origin::Window; }

/// Scores of the blocks that a list chose by their scores.
struct ScoreRange {
    float low = kNone, high = kNone;
};

using ScoreRanges = std::array<ScoreRange, 8>; // [Origin]: what another criterion chose has scores of its own

ScoreRanges rangesOf(const SelectionRow& row) {
    ScoreRanges ranges;
    if (row.scores.size() != row.blocks.size()) return ranges;
    for (std::size_t i = 0; i < row.blocks.size(); ++i) {
        const float score = row.scores[i];
        if (isForced(row.blocks[i]) || !std::isfinite(score)) continue;
        ScoreRange& range = ranges[std::size_t(row.blocks[i].origin())];
        if (std::isnan(range.low) || score < range.low) range.low = score;
        if (std::isnan(range.high) || score > range.high) range.high = score;
    }
    return ranges;
}

DifferingBlock describe(const SelectionRow& row, std::size_t i, const ScoreRanges& ranges, bool onlyA) {
    const ScoreRange& range = ranges[std::size_t(row.blocks[i].origin())];
    DifferingBlock block{row.blocks[i].id(), onlyA, row.blocks[i].origin(), kNone, kNone, kNone};
    if (row.scores.size() != row.blocks.size() || !std::isfinite(row.scores[i])) return block;
    block.score = row.scores[i];
    if (isForced(row.blocks[i]) || std::isnan(range.low)) return block;
    block.gap = block.score - range.low;
    if (range.high > range.low) block.gapOfRange = block.gap / (range.high - range.low);
    return block;
}

/// Blocks of one of the two lists only, in the order of their ids.
void differ(const SelectionRow& a, const SelectionRow& b, std::vector<DifferingBlock>& out) {
    const ScoreRanges rangesA = rangesOf(a), rangesB = rangesOf(b);
    out.clear();
    std::size_t i = 0, k = 0;
    while (i < a.blocks.size() || k < b.blocks.size()) {
        const bool endA = i == a.blocks.size(), endB = k == b.blocks.size();
        if (!endA && !endB && a.blocks[i].id() == b.blocks[k].id())
            ++i, ++k;
        else if (endB || (!endA && a.blocks[i].id() < b.blocks[k].id()))
            out.push_back(describe(a, i++, rangesA, true));
        else
            out.push_back(describe(b, k++, rangesB, false));
    }
}

std::string count(std::int64_t number) {
    std::string text = std::to_string(number);
    for (std::ptrdiff_t at = std::ptrdiff_t(text.size()) - 3; at > 0; at -= 3) text.insert(std::size_t(at), ",");
    return text;
}

} // namespace

std::string GapSums::sentence() const {
    if (heads == 0) return "no KV head of a layer selects blocks in both runs";
    if (differing == 0) return fmt::format("all {} selected blocks are the same in both runs", count(chosen));
    std::string text = fmt::format("{} of {} selected blocks ({:.2g} %) are in one run only", count(differing),
                                   count(chosen), 100.0 * double(differing) / double(chosen));
    if (scored == 0) return text + "; no scores were recorded that say how near they were to the others";
    text += scored == differing ? fmt::format("; {} of them", count(nearTies))
                                : fmt::format("; {} of the {} with scores", count(nearTies), count(scored));
    text += " nearly tied with the last block that was chosen";
    return text;
}

std::vector<float> gapsOf(const SelectionRow& row, std::span<const std::int32_t> ids) {
    const ScoreRanges ranges = rangesOf(row);
    std::vector<float> gaps;
    std::size_t i = 0;
    for (const std::int32_t id : ids) {
        while (i < row.blocks.size() && row.blocks[i].id() < id) ++i;
        gaps.push_back(i < row.blocks.size() && row.blocks[i].id() == id ? describe(row, i, ranges, true).gap : kNone);
    }
    return gaps;
}

std::string gapsRefusal(const RunRow& a, const RunRow& b, const std::string& other) {
    if (std::string refusal = overlapRefusal(a, b, other); !refusal.empty()) return refusal;
    if (a.blockSize != b.blockSize)
        return fmt::format("blocks of A have {} tokens and those of {} {}: their numbers mean other tokens",
                           a.blockSize, other, b.blockSize);
    return {};
}

GapSums readSelectionGaps(const TraceReader& a, int runA, const TraceReader& b, int runB,
                          std::span<const StepPair> pairs,
                          const std::function<void(const HeadDifference& difference)>& visit, int layer, int sequence,
                          int kvHead) {
    GapSums sums;
    StepSelections selectionsA(a, runA), selectionsB(b, runB);
    std::vector<DifferingBlock> blocks;
    const auto counts = [&](const SelectionRow& row) {
        return !row.blocks.empty() && (layer < 0 || row.layer == layer) && (sequence < 0 || row.sequence == sequence) &&
               (kvHead < 0 || row.kvHead == kvHead);
    };
    for (const StepPair& pair : pairs) {
        const auto rowsA = selectionsA.of(pair.a), rowsB = selectionsB.of(pair.b);
        auto rowB = rowsB.begin();
        for (const SelectionRow& rowA : rowsA) {
            while (rowB != rowsB.end() && placeOf(*rowB) < placeOf(rowA)) ++rowB;
            if (rowB == rowsB.end()) break;
            if (placeOf(*rowB) != placeOf(rowA) || !counts(rowA) || !counts(*rowB)) continue;
            ++sums.heads;
            sums.chosen += std::int64_t(rowA.blocks.size() + rowB->blocks.size());
            differ(rowA, *rowB, blocks);
            if (blocks.empty()) continue;
            ++sums.differingHeads;
            for (const DifferingBlock& block : blocks) {
                ++sums.differing;
                if (std::isnan(block.gap)) continue;
                ++sums.scored;
                sums.nearTies += block.nearTie() ? 1 : 0;
            }
            if (visit) visit({pair, rowA.layer, rowA.sequence, rowA.kvHead, blocks});
        }
    }
    return sums;
}

} // namespace kvscope
