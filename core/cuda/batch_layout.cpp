#include "core/cuda/batch_layout.h"

#include <algorithm>

namespace kvscope {

BatchLayout::BatchLayout(const ModelConfig& config, const CudaEngineOptions& options)
    : rows(int(options.maxTokens.size())), kvHeads(config.kvHeads),
      dim(config.headDim), shape{config.queryHeads, kvHeads, dim, options.spec.blockSize,
                                 config.latent ? config.valueDim() : 0},
      blockElements(cuda::blockElements(shape)) {
    const SelectionSpec& spec = options.spec;
    const int storedSequences = options.changes != nullptr ? options.changes->storedSequences() : 0;
    const Elements stored(storedSequences, kvHeads);
    for (const int tokens : options.maxTokens) {
        blocks.push_back(spec.grid.blocks(tokens));
        maxBlocks = std::max(maxBlocks, blocks.back());
        for (int g = 0; g < kvHeads; ++g) {
            const std::size_t head = blockFirst.size();
            const bool borrows = stored > 0 && head >= stored;
            blockFirst.push_back(borrows ? blockFirst[head % stored] : blocksTotal);
            windowFirst.push_back(windowsTotal);
            tokenFirst.push_back(tokensTotal);
            blocksTotal += borrows ? 0 : blocks.back();
            windowsTotal += spec.grid.windows(tokens);
            tokensTotal += std::int64_t(blocks.back()) * spec.blockSize;
        }
    }
    maxUnits = maxBlocks * (spec.blockSize / spec.unitTokens());
    const int wanted = std::max(spec.budgetBlocks() + spec.spareSlots, spec.grid.blocks(spec.denseBelowTokens));
    capacity = spec.dense ? 0 : std::min(wanted, maxBlocks);
    pieceTokens = std::max(rows, std::min(options.maxPrompt, kPieceTokens));
    selectRows = spec.sparsePrefill ? std::max(rows, std::min(options.maxPrompt, kSparsePrefillRows)) : rows;
    // A sliding window may begin and end inside a block, so it can reach one block more than its tokens fill.
    for (const LayerPlan& plan : options.plans)
        sight_.push_back(plan.window > 0 ? std::min(maxBlocks, spec.grid.blocks(plan.window) + 1) : maxBlocks);
}

std::size_t BatchLayout::partialFloats(const cuda::Launch& launch) const {
    std::vector<int> counts{std::max(capacity, 1)};
    counts.insert(counts.end(), sight_.begin(), sight_.end());
    std::size_t most = 0;
    // The attention may cut the lists of fewer rows into more parts, so fewer rows can need more memory.
    for (int n = 1; n <= std::max(rows, selectRows); ++n)
        for (const int count : counts) most = std::max(most, cuda::attentionPartialFloats(launch, shape, n, count));
    return most;
}

} // namespace kvscope
