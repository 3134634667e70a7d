// A tile of a selection mask: which blocks were selected at up to 4,096 steps, and for every aligned group of 4, 16,
// ... steps which blocks any step selected, how often, and how often they missed. A group that selects few blocks is a
// list, one that selects most blocks a dense row. Groups of 16 steps and more also have rows of bits, because adding up
// their lists would take too long for a picture. 6 to 21 bytes per selected block, 9 to 10 where steps resemble each
// other (docs/heatmaps.md).
#pragma once

#include "base/indexed.h"
#include "kernels/packed_block.h"
#include "profiler/tiles/mask_bands.h"
#include "profiler/tiles/step_spans.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace kvscope {

/// Why a block was selected, and whether it had a slot: one bit per origin (bit number = Origin's value), one bit for
/// "missed in some step", one for "hit in some step". The bits of several steps are or-ed.
using MaskBits = std::uint8_t;
inline constexpr int kMaskOrigins = 5;
inline constexpr MaskBits kMaskMiss = 1u << 5;
inline constexpr MaskBits kMaskHit = 1u << 6;
inline constexpr int kMaskBits = 7;
inline constexpr std::int32_t kMaxMaskBlock = (1 << (32 - kMaskBits)) - 1; // more blocks than any context has

/// A block and its bits in one word, as tiles and their cache files hold it. A PackedBlock has one origin; the bits of
/// a cell may be those of several steps.
class MaskCell {
public:
    constexpr MaskCell() = default;
    /// block: 0 .. kMaxMaskBlock
    constexpr MaskCell(std::int32_t block, MaskBits bits) : word_(std::uint32_t(block) << kMaskBits | bits) {}
    /// What one step says of the block. knowsHits: SelectionRow::knowsHits
    constexpr MaskCell(PackedBlock block, bool knowsHits)
        : MaskCell(block.id(), MaskBits(1u << unsigned(block.origin()) | (!knowsHits    ? 0u
                                                                          : block.hit() ? unsigned(kMaskHit)
                                                                                        : unsigned(kMaskMiss)))) {}

    constexpr int block() const { return int(word_ >> kMaskBits); }
    constexpr MaskBits bits() const { return MaskBits(word_ & ((1u << kMaskBits) - 1)); }
    constexpr bool missed() const { return (word_ & kMaskMiss) != 0; }
    constexpr void add(MaskBits bits) { word_ |= bits; }
    friend constexpr bool operator==(MaskCell, MaskCell) = default;

private:
    std::uint32_t word_ = 0;
};

/// Consecutive steps as lists: step i has cells[offsets[i] .. offsets[i + 1]), in ascending order of blocks.
struct MaskChunk {
    Numbered<std::size_t> offsets{0}; // [step]
    std::vector<MaskCell> cells;
    void endStep() { offsets.push_back(cells.size()); }
    std::span<const MaskCell> cellsOf(int step) const {
        const std::size_t first = offsets[step];
        return std::span(cells).subspan(first, offsets[step + 1] - first);
    }
    int steps() const { return offsets.count() - 1; }
};

/// How often blocks were selected and missed in a range of steps.
struct MaskCounts {
    NumberedSpan<std::uint32_t> selected, missed; // [block]
};

class MaskTile {
public:
    MaskTile() = default;
    explicit MaskTile(const MaskChunk& chunk) { append(chunk); }
    int steps() const { return offsets_.count() - 1; }
    /// Largest block id plus one.
    int blocks() const { return blocks_; }
    std::size_t bytes() const;
    /// The bits of all cells, or-ed.
    MaskBits anyBits() const;

    /// Appends steps. A tile has at most kTileSteps in all.
    void append(const MaskChunk& chunk);
    void append(const MaskTile& more);
    /// Called when no more steps will come. Turns lists into dense rows where rows are smaller or faster.
    void seal();

    std::span<const MaskCell> cells(int step) const;
    std::optional<MaskBits> find(int step, int block) const;

    // These add up the steps [first, last) of the tile into arrays of at least blocks() entries.
    void addBits(int first, int last, NumberedSpan<MaskBits> bits) const;
    void addCounts(int first, int last, MaskCounts counts) const;
    void addBands(int first, int last, MaskBandSums& sums) const;
    /// How many of the steps select `block`, and how many of these missed it.
    std::array<int, 2> count(int block, int first, int last) const;
    /// The same numbers added up over all blocks. O(1)
    std::array<std::int64_t, 2> count(int first, int last) const;

    /// save: the tile as bytes for the cache. load: a sealed tile from such bytes. @return null if the bytes are no
    /// tile
    std::vector<std::byte> save() const;
    static std::shared_ptr<MaskTile> load(std::span<const std::byte> bytes);

private:
    struct GroupCell {
        MaskCell cell;
        std::uint16_t selected = 0, missed = 0;
    };
    struct Level { // complete groups
        std::vector<std::uint32_t> offsets{0};
        std::vector<GroupCell> cells;                // lists, unless the counts are rows
        std::uint64_t width = 0;                     // blocks in a row; 0: there are only lists
        std::vector<MaskBits> bits;                  // rows
        std::vector<std::uint16_t> selected, missed; // rows, or empty
        bool listed() const { return selected.empty(); }
    };
    class Merger;
    std::size_t levels() const { return upper_.size() + 1; }
    void grow();
    bool valid() const;
    static int blockOf(MaskCell cell) { return cell.block(); }
    static int blockOf(const GroupCell& cell) { return cell.cell.block(); }
    std::span<const GroupCell> cellsOf(const Level& level, std::size_t group) const;
    template <class Cell> static const Cell* atOrAfter(const Cell* first, const Cell* last, int block);
    template <class Cell> static const Cell* lookUp(std::span<const Cell> cells, int block);

    Numbered<std::uint32_t> offsets_{0}; // of step i: cells_[offsets_[i] .. offsets_[i + 1])
    std::vector<MaskCell> cells_;        // ascending by block within a step
    Numbered<std::uint32_t> missed_{0};  // missed before step i
    std::vector<Level> upper_;           // upper_[l - 1] holds groups of 4^l steps
    std::int32_t blocks_ = 0;
    bool sealed_ = false;
};

} // namespace kvscope
