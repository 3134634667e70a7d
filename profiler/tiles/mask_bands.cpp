#include "profiler/tiles/mask_bands.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <utility>

namespace kvscope {

MaskBands::MaskBands(std::vector<int> starts) : starts_(std::move(starts)) {
    assert(count() <= kMost);
    if (count() <= 0) return;
    bandOf_.resize(lastBlock() - firstBlock());
    for (int band = 0; band < count(); ++band)
        std::fill_n(bandOf_.begin() + (starts_[band] - firstBlock()), width(band), std::uint16_t(band));
}

MaskBandSums::MaskBandSums(const MaskBands& bands, bool counted) : bands_(bands), counted_(counted) {
    bits_.resize(bands.count());
    rowBits_.resize(bands.bandOf().size());
    if (!counted) return;
    counts_.resize(bits_.size());
    rowSelected_.resize(rowBits_.size());
    rowMissed_.resize(rowBits_.size());
}

void MaskBandSums::clear() {
    std::fill(bits_.begin(), bits_.end(), std::uint8_t(0));
    std::fill(counts_.begin(), counts_.end(), std::uint64_t(0));
    if (!std::exchange(rows_, false)) return;
    std::fill(rowBits_.begin(), rowBits_.end(), std::uint8_t(0));
    std::fill(rowSelected_.begin(), rowSelected_.end(), 0u);
    std::fill(rowMissed_.begin(), rowMissed_.end(), 0u);
}

void MaskBandSums::foldRows() {
    if (!rows_) return;
    const auto starts = bands_.starts();
    const int count = bands_.count();
    const int base = bands_.firstBlock();
    if (counted_)
        for (int band = 0; band < count; ++band) {
            std::uint32_t selected = 0, missed = 0;
            for (int i = starts[band] - base; i < starts[band + 1] - base; ++i) {
                selected += rowSelected_[i];
                missed += rowMissed_[i];
            }
            counts_[band] += pair(selected, missed);
        }
    std::uint8_t* row = rowBits_.data();
    const int blocks = rowBits_.count();
    // Most bands have the same width, or one block more. The bits of each block and its next `window` - 1 neighbours
    // are or-ed together, for all blocks at once. A band's bits are then those at a few of its blocks, the last of
    // which may overlap the one before: a bit may be or-ed twice. Bands narrower than `window`, at the edges, are done
    // before that.
    const int window = int(std::bit_floor(unsigned(std::max((starts[count] - base) / count, 1))));
    for (int band = 0; band < count; ++band)
        if (bands_.width(band) < window)
            for (int i = starts[band] - base; i < starts[band + 1] - base; ++i) bits_[band] |= row[i];
    for (int step = 1; step < window; step *= 2)
        for (int i = 0; i + step < blocks; ++i) row[i] = std::uint8_t(row[i] | row[i + step]);
    for (int band = 0; band < count; ++band) {
        const int first = starts[band] - base, last = starts[band + 1] - base;
        if (last - first < window) continue;
        std::uint8_t bits = row[last - window];
        for (int i = first; i + window < last; i += window) bits |= row[i];
        bits_[band] |= bits;
    }
}

} // namespace kvscope
