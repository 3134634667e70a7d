#include "profiler/compare/range_ranks.h"

#include <algorithm>
#include <bit>

namespace kvscope {

RangeRanks::RangeRanks(std::span<const double> series) : sorted_(series.begin(), series.end()) {
    std::sort(sorted_.begin(), sorted_.end());
    const std::size_t count = series.size();
    std::vector<std::uint32_t> ranks(count), ordered(count);
    std::transform(series.begin(), series.end(), ranks.begin(), [this](double value) { // equal values share a rank
        return std::uint32_t(std::lower_bound(sorted_.begin(), sorted_.end(), value) - sorted_.begin());
    });
    for (int bit = std::bit_width(count) - 1; bit >= 0; --bit) {
        Level& level = levels_.emplace_back();
        level.zeros.resize(count + 1);
        for (std::size_t i = 0; i < count; ++i) level.zeros[i + 1] = level.zeros[i] + (1 - (ranks[i] >> bit & 1));
        std::size_t zero = 0, one = level.zeros[count]; // in the next level the ranks without the bit come first
        for (const std::uint32_t rank : ranks) ordered[rank >> bit & 1 ? one++ : zero++] = rank;
        ranks.swap(ordered);
    }
}

double RangeRanks::smallest(std::size_t k, std::vector<Piece> pieces) const {
    std::size_t rank = 0;
    for (const Level& level : levels_) {
        std::size_t below = 0;
        for (const Piece& piece : pieces) below += level.zeros[piece.to] - level.zeros[piece.from];
        const bool above = k >= below;
        rank = rank << 1 | std::size_t(above);
        if (above) k -= below;
        const std::uint32_t ones = level.zeros.back();
        for (Piece& piece : pieces) {
            const std::uint32_t from = level.zeros[piece.from], to = level.zeros[piece.to];
            piece = above ? Piece{ones + piece.from - from, ones + piece.to - to} : Piece{from, to};
        }
    }
    return sorted_[rank];
}

} // namespace kvscope
