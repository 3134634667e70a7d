#include "core/select/window_products.h"

#include <algorithm>
#include <array>

namespace kvscope {

void windowProducts(const float* query, const BlockIndex& index, int dim, std::span<float> scores) {
    constexpr std::size_t kTile = BlockIndex::kTileWindows;
    for (std::size_t first = 0; first < scores.size(); first += kTile) {
        const float* tile = index.tiles()[first / kTile]; // [dim, kTile]
        std::array<float, kTile> sums{};
        for (std::size_t c = 0; c < std::size_t(dim); ++c)
            for (std::size_t w = 0; w < kTile; ++w) sums[w] += query[c] * tile[c * kTile + w];
        std::copy_n(sums.begin(), std::min(kTile, scores.size() - first), scores.begin() + std::ptrdiff_t(first));
    }
}

} // namespace kvscope
