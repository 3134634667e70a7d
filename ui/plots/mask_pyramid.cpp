#include "ui/plots/mask_pyramid.h"

#include <algorithm>
#include <cassert>
#include <limits>

namespace kvscope::ui {

void MaskPyramid::reset() {
    levels_.clear();
    scores_.clear();
    blocks_ = 0;
}

void MaskPyramid::append(const MaskChunk& chunk) {
    assert(chunk.scores.size() == chunk.cells.size() && "one score per cell, NaN where none was recorded");
    if (levels_.empty()) levels_.emplace_back();
    const std::size_t before = levels_[0].cells.size();
    levels_[0].cells.insert(levels_[0].cells.end(), chunk.cells.begin(), chunk.cells.end());
    scores_.insert(scores_.end(), chunk.scores.begin(), chunk.scores.end());
    for (std::size_t i = 1; i < chunk.offsets.size(); ++i) levels_[0].offsets.push_back(before + chunk.offsets[i]);
    for (const MaskCell& cell : chunk.cells) blocks_ = std::max(blocks_, cell.block + 1);

    for (std::size_t level = 0; levels_[level].offsets.size() - 1 >= kSpanFanOut; ++level) {
        if (levels_.size() == level + 1) levels_.emplace_back();
        const std::size_t complete = (levels_[level].offsets.size() - 1) / kSpanFanOut;
        for (std::size_t n = levels_[level + 1].offsets.size() - 1; n < complete; ++n)
            merge(levels_[level], n, levels_[level + 1]);
    }
}

void MaskPyramid::merge(const Level& from, std::size_t node, Level& into) {
    scratch_.assign(from.cells.begin() + std::ptrdiff_t(from.offsets[node * kSpanFanOut]),
                    from.cells.begin() + std::ptrdiff_t(from.offsets[(node + 1) * kSpanFanOut]));
    std::sort(scratch_.begin(), scratch_.end(), [](const MaskCell& a, const MaskCell& b) { return a.block < b.block; });
    const std::size_t start = into.cells.size();
    for (const MaskCell& cell : scratch_) {
        if (into.cells.size() > start && into.cells.back().block == cell.block)
            into.cells.back().bits = MaskBits(into.cells.back().bits | cell.bits);
        else
            into.cells.push_back(cell);
    }
    into.offsets.push_back(into.cells.size());
}

std::span<const MaskCell> MaskPyramid::cells(int step) const {
    if (step < 0 || step >= steps()) return {};
    const Level& base = levels_[0];
    return std::span(base.cells)
        .subspan(base.offsets[std::size_t(step)],
                 base.offsets[std::size_t(step) + 1] - base.offsets[std::size_t(step)]);
}

std::optional<MaskPyramid::Hit> MaskPyramid::find(int step, int block) const {
    const auto row = cells(step);
    const auto at = std::lower_bound(row.begin(), row.end(), block,
                                     [](const MaskCell& cell, int wanted) { return cell.block < wanted; });
    if (at == row.end() || at->block != block) return std::nullopt;
    return Hit{at->bits, scores_[levels_[0].offsets[std::size_t(step)] + std::size_t(at - row.begin())]};
}

std::array<int, 2> MaskPyramid::count(int block, int first, int last) const {
    std::array<int, 2> result{0, 0};
    for (int step = std::max(first, 0); step < std::min(last, steps()); ++step) {
        if (const auto hit = find(step, block)) {
            ++result[0];
            if (hit->bits & kMaskMiss) ++result[1];
        }
    }
    return result;
}

} // namespace kvscope::ui
