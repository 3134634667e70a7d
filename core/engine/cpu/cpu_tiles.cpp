#include "core/engine/cpu/cpu_tiles.h"

#include "core/diffusion/locality.h"
#include "core/engine/cpu/tile_scores.h"

#include <algorithm>
#include <cmath>

namespace kvscope {

CpuTiles::CpuTiles(Kernels& kernels, const ModelConfig& config, const DenoiseOptions& options, int sequences)
    : kernels_(kernels), config_(config), options_(options),
      scale_(options.scaledByHeads ? float(1 / std::sqrt(double(config.queryHeads))) : config.attentionScale()),
      attention_(kernels, {config.queryHeads, config.queryHeads, config.headDim, config.valueDim(), options.page,
                           config.attentionScale()}),
      maskAt_(sequences, config.layers), masks_(maskAt_.size()) {}

void CpuTiles::make(LayerId layer, RowId sequence, const float* q, int prefix,
                    const std::function<std::span<const KvBlockView>(KvHeadId)>& viewsOf) {
    TileMask& mask = masks_[maskAt_.offset(sequence, layer)];
    const int rows = rowsOf(options_);
    mask.begin(config_.queryHeads, rows, prefix, options_.page);
    kernels_.forEach(config_.queryHeads * rows, [&](int i) {
        const int head = i / rows, row = i % rows;
        mask.choose(head, row, attention(q, head, row, prefix, viewsOf(KvHeadId{head / config_.group()})),
                    options_.budget);
    });
}

std::vector<float> CpuTiles::attention(const float* q, int head, int row, int prefix,
                                       std::span<const KvBlockView> views) const {
    std::vector<double> sums(views.size(), 0.0);
    std::vector<float> scores(views.size() * std::size_t(options_.page));
    const int end = std::min(options_.block, (row + 1) * options_.page);
    const Extents<int, int, int> queryAt(options_.block, config_.queryHeads, config_.headDim);
    for (int token = row * options_.page; token < end; ++token) {
        const float* const query = q + queryAt.first(token, head);
        scoreTiles(query, config_.headDim, scale_, views, options_.page, scores);
        const TileWeights weights = weighTiles(std::span(scores).first(std::size_t(prefix)), options_.page);
        for (std::size_t v = 0; v < sums.size(); ++v) sums[v] += weights.ofTile[v] / weights.all;
    }
    return {sums.begin(), sums.end()};
}

void CpuTiles::unite(LayerId layer, RowId sequence, KvHeadId kvHead, std::span<std::uint8_t> chosen) const {
    const TileMask& of = mask(layer, sequence);
    const int first = int(kvHead) * config_.group(); // of the group's query heads
    for (int head = first; head < first + config_.group(); ++head)
        for (int row = 0; row < of.rows(); ++row) {
            const auto kept = of.row(head, row);
            for (std::size_t tile = 0; tile < kept.size(); ++tile) chosen[tile] |= kept[tile];
        }
}

void CpuTiles::clear() {
    work_.clear();
    used_ = 0;
}

void CpuTiles::list(LayerId layer, RowId sequence, KvHeadId kvHead, const float* q, std::span<const KvBlockView> views,
                    float* out, float* sums) {
    const TileMask& of = mask(layer, sequence);
    const std::size_t count = std::size_t(config_.group() * of.rows());
    if (views_.size() < used_ + count) views_.resize(used_ + count);
    const int firstHead = int(kvHead) * config_.group(); // of the group's query heads
    for (int head = firstHead; head < firstHead + config_.group(); ++head)
        for (int row = 0; row < of.rows(); ++row) {
            std::vector<KvBlockView>& own = views_[used_++];
            own.clear();
            const auto kept = of.row(head, row);
            for (std::size_t tile = 0; tile < kept.size(); ++tile)
                if (kept[tile] != 0) own.push_back(views[tile]);
            const int first = row * options_.page, end = std::min(options_.block, first + options_.page);
            work_.push_back({q, KvHeadId{head}, allTokens(end) & ~allTokens(first), {}, out, sums});
        }
}

void CpuTiles::run() {
    for (std::size_t i = 0; i < work_.size(); ++i) work_[i].views = views_[i];
    attention_.run(work_);
}

} // namespace kvscope
