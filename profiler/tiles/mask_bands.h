// Neighbouring blocks of a mask taken together, as a line of pixels does that stands for several: what a range of steps
// holds of every such band, without a detour over the single blocks.
#pragma once

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
    int count() const { return starts_.empty() ? 0 : int(starts_.size()) - 1; }
    /// Number of blocks.
    int width(int band) const { return starts_[std::size_t(band) + 1] - starts_[std::size_t(band)]; }
    /// The blocks of all bands: [firstBlock, lastBlock).
    int firstBlock() const { return count() > 0 ? starts_.front() : 0; }
    int lastBlock() const { return count() > 0 ? starts_.back() : 0; }
    /// Of every block from firstBlock on.
    std::span<const std::uint16_t> bandOf() const { return bandOf_; }
    std::span<const int> starts() const { return starts_; }

    static constexpr int kMost = 1 << 16; // bands: more than any screen has lines

private:
    std::vector<int> starts_;
    std::vector<std::uint16_t> bandOf_;
};

/// What a range of steps holds of every band. Filled by MaskPyramid::bands; its memory serves one range after the
/// other.
class MaskBandSums {
public:
    /// `counted`: how often, too; else only the bits. `bands` must outlive it.
    MaskBandSums(const MaskBands& bands, bool counted);

    /// Of band i: the bits of all its cells, and, if counted, how many cells there are and how many of them missed.
    std::uint8_t bits(int band) const { return bits_[std::size_t(band)]; }
    std::uint32_t selected(int band) const { return std::uint32_t(counts_[std::size_t(band)]); }
    std::uint32_t missed(int band) const { return std::uint32_t(counts_[std::size_t(band)] >> 32); }

private:
    friend class MaskPyramid;
    friend class MaskTile;
    static constexpr std::uint64_t pair(std::uint32_t selected, std::uint32_t missed) {
        return std::uint64_t(missed) << 32 | selected;
    }
    void clear();
    void foldRows(); // what came block by block, into the bands

    const MaskBands& bands_;
    bool counted_ = false, rows_ = false; // rows_: some of it came block by block
    std::vector<std::uint8_t> bits_;
    std::vector<std::uint64_t> counts_; // selected below, missed above
    std::vector<std::uint8_t> rowBits_; // by block from firstBlock on
    std::vector<std::uint32_t> rowSelected_, rowMissed_;
};

} // namespace kvscope
