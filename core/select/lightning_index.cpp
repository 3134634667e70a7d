#include "core/select/lightning_index.h"

#include <algorithm>
#include <cmath>

namespace kvscope::select {
namespace {

constexpr int kScoredByOne = 1024; // scored by one thread at a time

IndexerHeads headsOf(const LightningIndexer& indexer) {
    return {indexer.heads, indexer.dim, indexer.ropeDim, indexer.interleaved};
}

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
    : context_(context), config_(*context.model.config().indexer),
      keys_(context, headsOf(config_), [this](LayerId layer) { return runsIn(layer); }) {}

void LightningIndex::append(LayerId layer, RowId sequence, int first, int n, const float* input) {
    const IndexerWeights& weights = weightsOf(layer);
    float* const added = keys_.append(layer, sequence, first, n, weights.key, input);
    const Extents<int, int> keyAt(n, config_.dim);
    context_.kernels.forEach(n, [&](int i) { normalise(added + keyAt.first(i), config_, weights); });
    keys_.rotate(added, sequence, first, n, 1);
}

void LightningIndex::ask(LayerId layer, RowId sequence, int first, int n, const float* input,
                         const float* queryLatent) {
    const ModelConfig& model = context_.model.config();
    const LayerWeights& weights = context_.model.layer(int(layer));
    float* const queries = keys_.ask(layer, sequence, n);
    counts_.resize(Extents<int, int>(n, config_.heads).size());
    const LinearTarget query{weights.indexer.query, nullptr, queries, config_.heads * config_.dim, false};
    context_.kernels.linear(
        {queryLatent, n, model.latent->queryRank, weights.queryDownNorm.data(), model.latent->normEps, {&query, 1}});
    const LinearTarget count{weights.indexer.headWeight, nullptr, counts_.data(), config_.heads, false};
    context_.kernels.linear({input, n, model.hidden, nullptr, 0.f, {&count, 1}});
    keys_.rotate(queries, sequence, first, n, config_.heads);
    asked_ = sequence;
}

void LightningIndex::score(int i, int visible, std::vector<float>& scores) {
    scores.reserve(std::size_t(context_.maxTokensOf(asked_)));
    scores.resize(std::size_t(visible));
    keys_.multiply(i, visible);
    const float* const counts = counts_.data() + Extents<int, int>(i + 1, config_.heads).first(i);
    const float scale = 1 / std::sqrt(float(config_.dim)), share = 1 / std::sqrt(float(config_.heads));
    context_.kernels.forEach((visible + kScoredByOne - 1) / kScoredByOne, [&](int part) {
        const int begin = part * kScoredByOne, end = std::min(visible, begin + kScoredByOne);
        std::fill(scores.begin() + begin, scores.begin() + end, 0.f);
        for (int h = 0; h < config_.heads; ++h) {
            const float weight = counts[h] * share;
            const float* const products = keys_.products(h);
            for (int t = begin; t < end; ++t) scores[std::size_t(t)] += weight * std::max(0.f, products[t] * scale);
        }
    });
}

std::int64_t LightningIndex::keyBytes(const ModelConfig& config, std::int64_t tokens) {
    return IndexerKeys::keyBytes(headsOf(*config.indexer), layersWithIndexer(*config.indexer), tokens);
}

std::int64_t LightningIndex::scratchBytes(const ModelConfig& config, std::int64_t rows, std::int64_t tokens) {
    const IndexerHeads heads = headsOf(*config.indexer);
    return IndexerKeys::scratchBytes(heads, rows, tokens) + rows * heads.count * std::int64_t(sizeof(float));
}

} // namespace kvscope::select
