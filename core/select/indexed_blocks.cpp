#include "core/select/indexed_blocks.h"

#include <algorithm>

namespace kvscope::select {
namespace {

IndexerHeads headsOf(const ModelConfig& config) {
    return {config.blockIndexer->heads, config.blockIndexer->dim, config.rope.dim, false};
}

} // namespace

IndexedBlocks::IndexedBlocks(const SelectorContext& context)
    : context_(context), config_(*context.model.config().blockIndexer),
      keys_(context, headsOf(context.model.config()), [this](LayerId layer) { return runsIn(layer); }) {}

void IndexedBlocks::append(LayerId layer, RowId sequence, int first, int n, const float* input) {
    const BlockIndexerWeights& weights = weightsOf(layer);
    float* const added = keys_.append(layer, sequence, first, n, weights.key, input);
    context_.kernels.norm(
        {added, n, 1, config_.dim, config_.dim, weights.keyNorm.data(), context_.model.config().rmsNormEps});
    keys_.rotate(added, sequence, first, n, 1);
}

void IndexedBlocks::ask(LayerId layer, RowId sequence, int first, int n, const float* input) {
    const ModelConfig& model = context_.model.config();
    const BlockIndexerWeights& weights = weightsOf(layer);
    const int width = config_.heads * config_.dim;
    float* const queries = keys_.ask(layer, sequence, n);
    const LinearTarget target{weights.query, nullptr, queries, width, false};
    context_.kernels.linear({input, n, model.hidden, nullptr, 0.f, {&target, 1}});
    context_.kernels.norm({queries, n, config_.heads, config_.dim, width, weights.queryNorm.data(), model.rmsNormEps});
    keys_.rotate(queries, sequence, first, n, config_.heads);
}

void IndexedBlocks::score(KvHeadId kvHead, std::vector<float>& scores) const {
    const int size = context_.spec.blockSize, head = int(kvHead) / (context_.shape.kvHeads / config_.heads);
    const int visible = keys_.visible();
    const float* const products = keys_.products(head);
    scores.resize(Elements((visible + size - 1) / size));
    for (int b = 0; b < int(scores.size()); ++b)
        scores[std::size_t(b)] = *std::max_element(products + b * size, products + std::min(visible, (b + 1) * size));
}

std::int64_t IndexedBlocks::keyBytes(const ModelConfig& config, std::int64_t tokens) {
    const std::vector<bool>& layers = config.blockIndexer->layers;
    return IndexerKeys::keyBytes(headsOf(config), std::count(layers.begin(), layers.end(), true), tokens);
}

std::int64_t IndexedBlocks::scratchBytes(const ModelConfig& config, std::int64_t rows, std::int64_t tokens) {
    return IndexerKeys::scratchBytes(headsOf(config), rows, tokens);
}

} // namespace kvscope::select
