#include "core/select/lightning_index.h"

#include <algorithm>
#include <cmath>

namespace kvscope::select {
namespace {

constexpr int kScoredByOne = 1024; // scored by one thread at a time

std::int64_t layersWithIndexer(const LightningIndexer& indexer) {
    return std::count(indexer.shared.begin(), indexer.shared.end(), false);
}

/// LayerNorm of one key in place.
void normalise(float* key, const LightningIndexer& config, const IndexerWeights& weights) {
    const auto dim = std::size_t(config.dim);
    double mean = 0, variance = 0;
    for (std::size_t c = 0; c < dim; ++c) mean += double(key[c]);
    mean /= double(dim);
    for (std::size_t c = 0; c < dim; ++c) variance += (double(key[c]) - mean) * (double(key[c]) - mean);
    const double scale = 1 / std::sqrt(variance / double(dim) + double(config.normEps));
    for (std::size_t c = 0; c < dim; ++c)
        key[c] = float((double(key[c]) - mean) * scale) * weights.keyNorm[c] + weights.keyShift[c];
}

} // namespace

LightningIndex::LightningIndex(const SelectorContext& context)
    : context_(context), config_(*context.model.config().indexer), keysAt_(context.sequences(), context.shape.layers),
      keys_(keysAt_.size()) {
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

void LightningIndex::rotate(float* x, RowId sequence, int first, int n, int heads) {
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
    args.rotary = config_.ropeDim;
    args.interleaved = config_.interleaved;
    context_.kernels.rope(args);
}

void LightningIndex::append(LayerId layer, RowId sequence, int first, int n, const float* input) {
    const IndexerWeights& weights = weightsOf(layer);
    std::vector<float>& keys = keys_[keysAt_.offset(sequence, layer)];
    const auto dim = std::size_t(config_.dim);
    keys.resize((std::size_t(first) + std::size_t(n)) * dim);
    float* const added = keys.data() + std::size_t(first) * dim;
    const LinearTarget target{weights.key, nullptr, added, config_.dim, false};
    context_.kernels.linear({input, n, context_.model.config().hidden, nullptr, 0.f, {&target, 1}});
    context_.kernels.forEach(n, [&](int i) { normalise(added + std::size_t(i) * dim, config_, weights); });
    rotate(added, sequence, first, n, 1);
}

void LightningIndex::ask(LayerId layer, RowId sequence, int first, int n, const float* input,
                         const float* queryLatent) {
    const ModelConfig& model = context_.model.config();
    const LayerWeights& weights = context_.model.layer(int(layer));
    const int width = config_.heads * config_.dim;
    queries_.resize(Extents<int, int>(n, width).size());
    counts_.resize(Extents<int, int>(n, config_.heads).size());
    const LinearTarget query{weights.indexer.query, nullptr, queries_.data(), width, false};
    context_.kernels.linear(
        {queryLatent, n, model.latent->queryRank, weights.queryDownNorm.data(), model.latent->normEps, {&query, 1}});
    const LinearTarget count{weights.indexer.headWeight, nullptr, counts_.data(), config_.heads, false};
    context_.kernels.linear({input, n, model.hidden, nullptr, 0.f, {&count, 1}});
    rotate(queries_.data(), sequence, first, n, config_.heads);
    layer_ = layer;
    sequence_ = sequence;
}

void LightningIndex::score(int i, int visible, std::vector<float>& scores) {
    const std::vector<float>& keys = keys_[keysAt_.offset(sequence_, layer_)];
    const Extents<int, int> queryAt(i + 1, config_.heads * config_.dim), countAt(i + 1, config_.heads),
        productAt(config_.heads, visible);
    if (products_.size() < productAt.size()) products_.resize(productAt.size());
    scores.reserve(std::size_t(context_.maxTokensOf(sequence_)));
    scores.resize(std::size_t(visible));
    // The keys are the weights of a product, so that one pass over them serves all heads.
    const WeightMatrix matrix{keys.data(), DType::F32, visible, config_.dim};
    const LinearTarget target{matrix, nullptr, products_.data(), visible, false};
    context_.kernels.linear(
        {queries_.data() + queryAt.first(i), config_.heads, config_.dim, nullptr, 0.f, {&target, 1}});
    const float* const counts = counts_.data() + countAt.first(i);
    const float scale = 1 / std::sqrt(float(config_.dim)), share = 1 / std::sqrt(float(config_.heads));
    context_.kernels.forEach((visible + kScoredByOne - 1) / kScoredByOne, [&](int part) {
        const int begin = part * kScoredByOne, end = std::min(visible, begin + kScoredByOne);
        std::fill(scores.begin() + begin, scores.begin() + end, 0.f);
        for (int h = 0; h < config_.heads; ++h) {
            const float weight = counts[h] * share;
            const float* const products = products_.data() + productAt.first(h);
            for (int t = begin; t < end; ++t) scores[std::size_t(t)] += weight * std::max(0.f, products[t] * scale);
        }
    });
}

std::int64_t LightningIndex::keyBytes(const ModelConfig& config, std::int64_t tokens) {
    return layersWithIndexer(*config.indexer) * tokens * config.indexer->dim * std::int64_t(sizeof(float));
}

std::int64_t LightningIndex::scratchBytes(const ModelConfig& config, std::int64_t rows, std::int64_t tokens) {
    const LightningIndexer& indexer = *config.indexer;
    const std::int64_t numbers = rows * (indexer.heads * (indexer.dim + 1) + 1) + indexer.heads * tokens;
    return numbers * std::int64_t(sizeof(float));
}

} // namespace kvscope::select
