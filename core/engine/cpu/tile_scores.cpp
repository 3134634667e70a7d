#include "core/engine/cpu/tile_scores.h"

#include <algorithm>
#include <cmath>

namespace kvscope {

void scoreTiles(const float* query, int dim, float scale, std::span<const KvBlockView> views, int tile,
                std::span<float> scores) {
    const auto channels = std::size_t(dim), size = std::size_t(tile);
    std::fill(scores.begin(), scores.end(), 0.f);
    for (std::size_t v = 0; v < views.size(); ++v)
        for (std::size_t c = 0; c < channels; ++c)
            for (std::size_t t = 0; t < size; ++t)
                scores[v * size + t] += query[c] * scale * views[v].keys[c * size + t];
}

TileWeights weighTiles(std::span<const float> scores, int tile) {
    const auto size = std::size_t(tile);
    const double most = double(*std::max_element(scores.begin(), scores.end()));
    TileWeights weights;
    weights.ofTile.assign((scores.size() + size - 1) / size, 0.0);
    for (std::size_t t = 0; t < scores.size(); ++t) {
        const double weight = std::exp(double(scores[t]) - most);
        weights.ofTile[t / size] += weight;
        weights.all += weight;
    }
    return weights;
}

} // namespace kvscope
