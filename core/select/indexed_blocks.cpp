#include "core/select/indexed_blocks.h"

#include <algorithm>

namespace kvscope::select {

IndexedBlocks::IndexedBlocks(const SelectorContext& context)
    : context_(context), config_(*context.model.config().blockIndexer),
      keysAt_(context.sequences(), context.shape.layers), keys_(keysAt_.size()) {
    int longest = 0;
    for (const RowId sequence : idsUpTo<RowId>(context.sequences()))
        longest = std::max(longest, context.maxTokensOf(sequence));
    products_.reserve(Extents<int, int>(config_.heads, longest).size());
    for (const RowId sequence : idsUpTo<RowId>(context.sequences()))
        for (const LayerId layer : idsUpTo<LayerId>(context.shape.layers))
            if (runsIn(layer))
                keys_[keysAt_.offset(sequence, layer)].reserve(std::size_t(context.maxTokensOf(sequence)) *
                                                               std::size_t(config_.dim));
}

void IndexedBlocks::rotate(float* x, RowId sequence, int first, int n, int heads) {
    rows_.resize(std::size_t(n));
    for (int i = 0; i < n; ++i) rows_[std::size_t(i)] = context_.rope.first(int(sequence)) + first + i;
    RopeArgs args;
    args.x = x;
    args.n = n;
    args.heads = heads;
    args.dim = config_.dim;
    args.stride = heads * config_.dim;
    args.positions = rows_.data();
    args.cos = context_.rope.cos();
    args.sin = context_.rope.sin();
    args.rotary = context_.model.config().rope.dim;
    context_.kernels.rope(args);
}

void IndexedBlocks::append(LayerId layer, RowId sequence, int first, int n, const float* input) {
    const ModelConfig& model = context_.model.config();
    const BlockIndexerWeights& weights = weightsOf(layer);
    std::vector<float>& keys = keys_[keysAt_.offset(sequence, layer)];
    const auto dim = std::size_t(config_.dim);
    keys.resize((std::size_t(first) + std::size_t(n)) * dim);
    float* const added = keys.data() + std::size_t(first) * dim;
    const LinearTarget target{weights.key, nullptr, added, config_.dim, false};
    context_.kernels.linear({input, n, model.hidden, nullptr, 0.f, {&target, 1}});
    context_.kernels.norm({added, n, 1, config_.dim, config_.dim, weights.keyNorm.data(), model.rmsNormEps});
    rotate(added, sequence, first, n, 1);
}

void IndexedBlocks::ask(LayerId layer, RowId sequence, int first, int n, const float* input) {
    const ModelConfig& model = context_.model.config();
    const BlockIndexerWeights& weights = weightsOf(layer);
    const int width = config_.heads * config_.dim;
    queries_.resize(Extents<int, int>(n, width).size());
    const LinearTarget target{weights.query, nullptr, queries_.data(), width, false};
    context_.kernels.linear({input, n, model.hidden, nullptr, 0.f, {&target, 1}});
    context_.kernels.norm(
        {queries_.data(), n, config_.heads, config_.dim, width, weights.queryNorm.data(), model.rmsNormEps});
    rotate(queries_.data(), sequence, first, n, config_.heads);
    layer_ = layer;
    sequence_ = sequence;
}

void IndexedBlocks::multiply(int i, int visible) {
    const std::vector<float>& keys = keys_[keysAt_.offset(sequence_, layer_)];
    const Extents<int, int> queryAt(i + 1, config_.heads * config_.dim), productAt(config_.heads, visible);
    if (products_.size() < productAt.size()) products_.resize(productAt.size());
    visible_ = visible;
    // The keys are the weights of a product, so that one pass over them serves all heads.
    const WeightMatrix matrix{keys.data(), DType::F32, visible, config_.dim};
    const LinearTarget target{matrix, nullptr, products_.data(), visible, false};
    context_.kernels.linear(
        {queries_.data() + queryAt.first(i), config_.heads, config_.dim, nullptr, 0.f, {&target, 1}});
}

void IndexedBlocks::score(KvHeadId kvHead, std::vector<float>& scores) const {
    const int size = context_.spec.blockSize, head = int(kvHead) / (context_.shape.kvHeads / config_.heads);
    const float* const products = products_.data() + Extents<int, int>(config_.heads, visible_).first(head);
    scores.resize(std::size_t((visible_ + size - 1) / size));
    for (int b = 0; b < int(scores.size()); ++b)
        scores[std::size_t(b)] = *std::max_element(products + b * size, products + std::min(visible_, (b + 1) * size));
}

std::int64_t IndexedBlocks::keyBytes(const ModelConfig& config, std::int64_t tokens) {
    const BlockIndexer& indexer = *config.blockIndexer;
    return std::count(indexer.layers.begin(), indexer.layers.end(), true) * tokens * indexer.dim *
           std::int64_t(sizeof(float));
}

std::int64_t IndexedBlocks::scratchBytes(const ModelConfig& config, std::int64_t rows, std::int64_t tokens) {
    const BlockIndexer& indexer = *config.blockIndexer;
    return (rows * (indexer.heads * indexer.dim + 1) + indexer.heads * tokens) * std::int64_t(sizeof(float));
}

} // namespace kvscope::select
