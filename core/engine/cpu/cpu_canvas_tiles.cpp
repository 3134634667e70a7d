#include "core/engine/cpu/cpu_canvas_tiles.h"

#include "core/diffusion/locality.h"
#include "core/engine/cpu/tile_scores.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace kvscope {
namespace {

constexpr int kQueriesTogether = 64; // that attend together

int tilesOf(int tokens, int tile) { return (tokens + tile - 1) / tile; }

/// Adds the softmax of the scores from `first` on, summed over each tile, to `sums`.
void addShares(std::span<const float> scores, int first, int tile, std::vector<double>& sums) {
    const std::vector<double> ofTile = weighTiles(scores.subspan(std::size_t(first)), tile).ofTile;
    const double all = std::accumulate(ofTile.begin(), ofTile.end(), 0.0);
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += ofTile[i] / all;
}

} // namespace

CpuCanvasTiles::CpuCanvasTiles(Kernels& kernels, const ModelConfig& config, const CanvasOptions& options,
                               std::span<const int> prompts, std::span<const int> tokens)
    : kernels_(kernels), config_(config), options_(options), prompts_(prompts.begin(), prompts.end()),
      tokens_(tokens.begin(), tokens.end()),
      scale_(options.scaledByHeads ? float(1 / std::sqrt(double(config.queryHeads))) : config.attentionScale()),
      attention_(kernels, {config.queryHeads, config.queryHeads, config.headDim, config.valueDim(), options.tile,
                           config.attentionScale()}),
      maskAt_(int(tokens.size()), config.layers), masks_(maskAt_.size()) {}

std::int64_t CpuCanvasTiles::bytes(const ModelConfig& config, const CanvasOptions& options,
                                   std::span<const int> tokens) {
    std::int64_t masks = 0, longest = 0;
    for (const int each : tokens) {
        const std::int64_t tiles = tilesOf(each, options.tile);
        masks += tiles * tiles * config.queryHeads * config.layers;
        longest = std::max<std::int64_t>(longest, each);
    }
    return masks + longest * config.queryHeads * (config.headDim + config.valueDim() + 1) * std::int64_t(sizeof(float));
}

void CpuCanvasTiles::make(LayerId layer, RowId sequence, const float* q,
                          std::span<const std::vector<KvBlockView>> views) {
    TileMask& mask = masks_[maskAt_.offset(sequence, layer)];
    const int tokens = tokens_[index(sequence)], rows = tilesOf(tokens, options_.tile);
    mask.begin(config_.queryHeads, rows, tokens, options_.tile);
    kernels_.forEach(config_.queryHeads * rows, [&](int i) {
        const int head = i / rows, row = i % rows;
        const Shares shares = sharesOf(q, head, row, sequence, views[std::size_t(head / config_.group())]);
        mask.chooseOnCanvas(head, row, shares.all, shares.generated, options_.select);
    });
}

CpuCanvasTiles::Shares CpuCanvasTiles::sharesOf(const float* q, int head, int row, RowId sequence,
                                                std::span<const KvBlockView> views) const {
    const int tokens = tokens_[index(sequence)], generated = firstGenerated(sequence);
    std::vector<double> all(views.size(), 0.0), ofGenerated(views.size() - std::size_t(generated), 0.0);
    std::vector<float> scores(views.size() * std::size_t(options_.tile));
    const std::span<const float> ofTokens(scores.data(), std::size_t(tokens));
    const int end = std::min(tokens, (row + 1) * options_.tile);
    const Extents<int, int, int> queryAt(tokens, config_.queryHeads, config_.headDim);
    for (int token = row * options_.tile; token < end; ++token) {
        const float* const query = q + queryAt.first(token, head);
        scoreTiles(query, config_.headDim, scale_, views, options_.tile, scores);
        addShares(ofTokens, 0, options_.tile, all);
        addShares(ofTokens, generated * options_.tile, options_.tile, ofGenerated);
    }
    return {{all.begin(), all.end()}, {ofGenerated.begin(), ofGenerated.end()}};
}

void CpuCanvasTiles::attend(LayerId layer, RowId sequence, const float* q,
                            std::span<const std::vector<KvBlockView>> views, float* out, float* sums) {
    const TileMask& of = mask(layer, sequence);
    const int tokens = tokens_[index(sequence)];
    const Extents<int, int> listAt(config_.queryHeads, of.rows());
    const QueryExtents queryAt(tokens, config_.kvHeads, config_.group(), config_.headDim),
        outAt(tokens, config_.kvHeads, config_.group(), config_.valueDim());
    const Extents<int, int> sumAt(tokens, config_.queryHeads);
    views_.resize(listAt.size());
    work_.clear();
    for (int head = 0; head < config_.queryHeads; ++head)
        for (int row = 0; row < of.rows(); ++row) {
            std::vector<KvBlockView>& own = views_[listAt.offset(head, row)];
            own.clear();
            const auto kept = of.row(head, row);
            for (std::size_t tile = 0; tile < kept.size(); ++tile)
                if (kept[tile] != 0) own.push_back(views[std::size_t(head / config_.group())][tile]);
            const int end = std::min(tokens, (row + 1) * options_.tile);
            for (int first = row * options_.tile; first < end; first += kQueriesTogether)
                work_.push_back({q + queryAt.first(first), KvHeadId{head},
                                 allTokens(std::min(kQueriesTogether, end - first)), own, out + outAt.first(first),
                                 sums + sumAt.first(first)});
        }
    attention_.run(work_);
}

std::vector<std::int32_t> CpuCanvasTiles::united(LayerId layer, RowId sequence, KvHeadId kvHead) const {
    const TileMask& of = mask(layer, sequence);
    const int first = int(kvHead) * config_.group(); // of the group's query heads
    std::vector<std::int32_t> tiles;
    for (int tile = 0; tile < of.tiles(); ++tile) {
        bool kept = false;
        for (int head = first; head < first + config_.group(); ++head)
            for (int row = 0; row < of.rows(); ++row) kept |= of.row(head, row)[std::size_t(tile)] != 0;
        if (kept) tiles.push_back(tile);
    }
    return tiles;
}

} // namespace kvscope
