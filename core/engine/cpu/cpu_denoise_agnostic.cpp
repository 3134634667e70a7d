// LoSA with a query-agnostic share: pages of the prefix that a KV head attends to in all sparse forwards of a block,
// chosen by the attention of the block's dense first forward.
#include "core/engine/cpu/cpu_denoise_stages.h"

#include "core/diffusion/locality.h"
#include "core/engine/cpu/tile_scores.h"

namespace kvscope {

/// Chooses for every KV head the complete pages to which the block's tokens give most attention by all query heads of
/// the group together.
void CpuDenoiseStages::chooseAgnostic(LayerId layer, int row) {
    const RowId sequence = rowAt(row).sequence;
    const int first = rowAt(row).first;
    const std::size_t complete = std::size_t(first / options_.page);
    std::vector<std::vector<std::uint8_t>>& agnostic = memory(layer, sequence).agnostic;
    agnostic.assign(std::size_t(config_.kvHeads), std::vector<std::uint8_t>(complete, 0));
    if (complete == 0) return;
    for (const KvHeadId g : kvHeads()) viewPrefix(layer, sequence, g, first, headOf(row, g).prefix);
    kernels_.forEach(config_.kvHeads, [&](int i) {
        const KvHeadId g{i};
        const std::span<const KvBlockView> views = headOf(row, g).prefix;
        std::vector<float> scores(views.size() * std::size_t(options_.page));
        std::vector<double> sums(views.size(), 0.0);
        for (int token = 0; token < options_.block; ++token)
            for (int h = 0; h < config_.group(); ++h) {
                scoreTiles(passes_.rows().q + at_.query.first(row * options_.block + token, g, h), config_.headDim,
                           config_.attentionScale(), views, options_.page, scores);
                const TileWeights weights = weighTiles(std::span(scores).first(std::size_t(first)), options_.page);
                for (std::size_t page = 0; page < complete; ++page) sums[page] += weights.ofTile[page] / weights.all;
            }
        std::vector<std::int32_t> order;
        choosePages(std::vector<float>(sums.begin(), sums.begin() + std::ptrdiff_t(complete)), options_.agnosticPages,
                    agnostic[std::size_t(i)], order);
    });
}

/// @return [complete pages of the block's prefix] nonzero: the page was chosen for the block. Empty where no pages are
/// chosen so
std::span<const std::uint8_t> CpuDenoiseStages::agnosticPages(LayerId layer, RowId sequence, KvHeadId kvHead) {
    const auto& agnostic = memory(layer, sequence).agnostic;
    return agnostic.empty() ? std::span<const std::uint8_t>() : agnostic[index(kvHead)];
}

/// Sets in `chosen`, [complete pages], the pages that were chosen once for the block, and those that each query of
/// `bounds_` chooses among the others.
void CpuDenoiseStages::choosePagesOf(LayerId layer, int row, KvHeadId kvHead, std::span<std::uint8_t> chosen) {
    bounds_.choose(at_.head.offset(row, kvHead), options_.pagesPerQuery,
                   agnosticPages(layer, rowAt(row).sequence, kvHead), chosen);
}

} // namespace kvscope
