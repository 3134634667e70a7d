// Where a line of pixels stands for several neighbouring blocks of a mask, these blocks are a band. This file adds up
// what a range of steps selects of every band, without going through single blocks.
#pragma once

#include "base/indexed.h"

#include <cstdint>
#include <span>
#include <vector>

namespace kvscope {

/// Band i holds the blocks [starts[i], starts[i + 1]); blocks outside all bands are left out.
class MaskBands {
public:
    MaskBands() = default;
    /// `starts` ascends strictly and has one entry more than there are bands.
    explicit MaskBands(std::vector<int> starts);
    int count() const { return starts_.empty() ? 0 : starts_.count() - 1; }
    /// Number of blocks.
    int width(int band) const { return starts_[band + 1] - starts_[band]; }
    /// The blocks of all bands: [firstBlock, lastBlock).
    int firstBlock() const { return count() > 0 ? starts_.front() : 0; }
    int lastBlock() const { return count() > 0 ? starts_.back() : 0; }
    /// The band of every block from firstBlock on.
    std::span<const std::uint16_t> bandOf() const { return bandOf_; }
    NumberedSpan<const int> starts() const { return starts_; }

    static constexpr int kMost = 1 << 16; // most bands: more than any screen has lines

private:
    Numbered<int> starts_;
    Numbered<std::uint16_t> bandOf_; // [block - firstBlock]
};

/// The bits and counts of every band over a range of steps. MaskPyramid::bands fills it; it can be used for one range
/// after the other and keeps its memory.
class MaskBandSums {
public:
    /// counted: also counts how often blocks were selected; else only the bits are kept. `bands` must outlive this
    /// object.
    MaskBandSums(const MaskBands& bands, bool counted);

    /// The bits of all cells of a band, and, if counted, how many of its cells were selected and how many of these
    /// missed.
    std::uint8_t bits(int band) const { return bits_[band]; }
    std::uint32_t selected(int band) const { return std::uint32_t(counts_[band]); }
    std::uint32_t missed(int band) const { return std::uint32_t(counts_[band] >> 32); }

private:
    friend class MaskPyramid;
    friend class MaskTile;
    static constexpr std::uint64_t pair(std::uint32_t selected, std::uint32_t missed) {
        return std::uint64_t(missed) << 32 | selected;
    }
    void clear();
    void foldRows(); // adds the sums of single blocks to those of their bands

    const MaskBands& bands_;
    bool counted_ = false, rows_ = false; // rows_: the sums of some tile are by block, in rowBits_
    Numbered<std::uint8_t> bits_;         // [band]
    Numbered<std::uint64_t> counts_;      // [band] selected in the lower half of the bits, missed in the upper half
    Numbered<std::uint8_t> rowBits_;      // [block - firstBlock]
    Numbered<std::uint32_t> rowSelected_, rowMissed_;
};

} // namespace kvscope
