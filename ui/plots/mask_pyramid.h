// A sparse block x step mask with exact "any" over ranges of steps. Up to 100,000 steps of 4,096 blocks, of which each
// step selects a few hundred: stored as lists, never as a dense matrix.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace kvscope::ui {

/// Why and how a block was selected: one bit per origin (bit = Origin's value), one for "missed by some selection", one
/// for "hit by some". Ranges of steps are the bitwise or.
using MaskBits = std::uint8_t;
inline constexpr int kMaskOrigins = 5;
inline constexpr MaskBits kMaskMiss = 1u << 5;
inline constexpr MaskBits kMaskHit = 1u << 6;

struct MaskCell {
    std::int32_t block = 0;
    MaskBits bits = 0;
    bool operator==(const MaskCell&) const = default;
};

/// A run of steps as lists: cells of step i are cells[offsets[i] .. offsets[i + 1]), ascending by block.
struct MaskChunk {
    std::vector<std::size_t> offsets{0};
    std::vector<MaskCell> cells;
    std::vector<float> scores; // like cells; NaN: not recorded
    void endStep() { offsets.push_back(cells.size()); }
    int steps() const { return int(offsets.size()) - 1; }
};

class MaskPyramid {
public:
    void reset();
    void append(const MaskChunk& chunk);
    int steps() const { return levels_.empty() ? 0 : int(levels_[0].offsets.size()) - 1; }
    /// Largest block id seen plus one.
    int blocks() const { return blocks_; }

    std::span<const MaskCell> cells(int step) const;
    struct Hit {
        MaskBits bits;
        float score;
    };
    std::optional<Hit> find(int step, int block) const;

    /// Calls visit(block, bits) for list entries of [first, last); a block may be named more than once: or the bits.
    template <class Visit> void forEach(int first, int last, Visit&& visit) const;
    /// Number of steps in [first, last) that select `block`, and of those that missed it. O(steps), for tooltips.
    std::array<int, 2> count(int block, int first, int last) const;

private:
    struct Level {
        std::vector<std::size_t> offsets{0};
        std::vector<MaskCell> cells;
    };
    void merge(const Level& from, std::size_t node, Level& into);

    std::vector<Level> levels_;
    std::vector<float> scores_;
    std::vector<MaskCell> scratch_;
    int blocks_ = 0;
};

} // namespace kvscope::ui

#include "ui/plots/step_spans.h"

namespace kvscope::ui {

template <class Visit> void MaskPyramid::forEach(int first, int last, Visit&& visit) const {
    if (first < 0) first = 0;
    if (last > steps()) last = steps();
    if (first >= last) return;
    forEachSpan(std::size_t(first), std::size_t(last), int(levels_.size()), [&](int level, std::size_t index) {
        const Level& nodes = levels_[std::size_t(level)];
        for (std::size_t i = nodes.offsets[index]; i < nodes.offsets[index + 1]; ++i)
            visit(nodes.cells[i].block, nodes.cells[i].bits);
    });
}

} // namespace kvscope::ui
