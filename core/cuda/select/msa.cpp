// MSA on the GPU (core/select/msa.cpp): the block indexer's keys are kept as bf16 for every token; steps and prompts
// score blocks by them.
#include "core/cuda/batch_layout.h"
#include "core/cuda/device_selector.h"
#include "kernels/cuda/methods/indexed_blocks.h"

#include <algorithm>

namespace kvscope {
namespace {

class MsaOnDevice final : public DeviceSelector {
public:
    explicit MsaOnDevice(const DeviceSelectorContext& context)
        : context_(context), indexer_(*context.config.blockIndexer), keys_(context.layers.size()) {}

    void plan(DeviceArena& arena) override {
        std::size_t tokens = 0;
        for (const int most : context_.maxTokens)
            tokens += Elements(context_.spec.grid.blocks(most), context_.spec.blockSize);
        for (const LayerId layer : keys_.ids())
            if (context_.layers[layer].sparse)
                arena.plan(keys_[layer], {tokens, indexer_.dim}, {"index_keys", "the indexer's keys", Holds::Index});
        const int rows = std::max(context_.rows(), std::min(context_.pieceTokens, BatchLayout::kSparsePrefillRows));
        arena.plan(projected_, {rows, projectedWidth()}, "the indexer's queries");
        arena.plan(queries_, {rows, indexer_.heads, indexer_.dim}, "the indexer's queries");
        arena.plan(scores_, {rows, context_.shape.kvHeads, context_.maxBlocks}, "selections");
    }

    void append(const DeviceStep& step) override { place(step.layer, step.x, tokensOf(step)); }
    void choose(const DeviceStep& step, cuda::SelectArgs& args) override {
        score(step.layer, tokensOf(step), context_.maxBlocks, step.stage1Mark, args);
        args.marks.pooling = step.poolingMark;
    }
    void choosePrompt(const DevicePromptPiece& piece, cuda::SelectArgs& args) override {
        const cuda::IndexedTokens tokens{piece.n, args.position, nullptr, true, int(piece.sequence)};
        place(piece.layer, piece.x, tokens);
        score(piece.layer, tokens, context_.spec.grid.blocks(piece.first + piece.n), nullptr, args);
    }

private:
    int projectedWidth() const { return (indexer_.heads + 1) * indexer_.dim; }
    cuda::IndexedTokens tokensOf(const DeviceStep& step) const { return {context_.rows(), step.position, step.active}; }
    cuda::IndexedBlocks indexOf(LayerId layer) const {
        return {
            indexer_.heads, indexer_.dim, context_.shape.kvHeads, context_.shape.blockSize, context_.tables.tokenFirst,
            keys_[layer]};
    }

    /// Makes the queries of the tokens, and their keys. x: [tokens.n, hidden]
    void place(LayerId layer, const float* x, const cuda::IndexedTokens& tokens) {
        const ModelConfig& config = context_.config;
        const DeviceLayer& weights = context_.weights.layers[layer];
        context_.linear->run(weights.blockIndexer.projection, x, config.hidden, tokens.n,
                             {weights.inputNorm, config.streamNormEps()},
                             {projected_, projectedWidth(), false, nullptr, nullptr});
        cuda::IndexedKeysArgs args;
        args.index = indexOf(layer);
        args.tokens = tokens;
        args.projected = projected_;
        args.queryNorm = weights.blockIndexer.queryNorm;
        args.keyNorm = weights.blockIndexer.keyNorm;
        args.eps = config.rmsNormEps;
        args.rotated = config.rope.dim;
        args.cos = context_.tables.ropeCos;
        args.sin = context_.tables.ropeSin;
        args.angles = context_.shape.dim / 2;
        args.ropeFirst = context_.tables.ropeFirst;
        args.queries = queries_;
        cuda::placeIndexedKeys(context_.launch, args);
    }
    /// blocks: that the tokens see at most
    void score(LayerId layer, const cuda::IndexedTokens& tokens, int blocks, std::uint64_t* mark,
               cuda::SelectArgs& select) {
        cuda::IndexedScoreArgs args;
        args.index = indexOf(layer);
        args.tokens = tokens;
        args.queries = queries_;
        args.blocks = std::min(blocks, context_.maxBlocks);
        args.maxBlocks = context_.maxBlocks;
        args.scores = scores_;
        args.mark = mark;
        cuda::scoreIndexedBlocks(context_.launch, args);
        select.score = cuda::SelectArgs::Score::Given;
        select.givenScores = scores_;
    }

    const DeviceSelectorContext context_;
    const BlockIndexer& indexer_;
    PerLayer<__nv_bfloat16*> keys_; // [tokens, dim] each; null where a layer attends to everything
    // Of the tokens that were placed last: [tokens, (heads + 1)*dim], [tokens, heads*dim], [tokens, kvHeads, maxBlocks]
    float *projected_ = nullptr, *queries_ = nullptr, *scores_ = nullptr;
};

} // namespace

std::unique_ptr<DeviceSelector> msaOnDevice(const ParameterValues&, const DeviceSelectorContext& context) {
    return std::make_unique<MsaOnDevice>(context);
}

} // namespace kvscope
