#include "core/model/layer_weights.h"

#include "base/elements.h"
#include "base/extents.h"
#include "kernels/cpu/quantised.h"

#include <cstring>
#include <fmt/format.h>

namespace kvscope {
namespace {

WeightMatrix rowsOf(const WeightMatrix& whole, int first, int rows) {
    return {RowsOf(static_cast<const std::byte*>(whole.data), rowBytes(whole.type, whole.cols))[first], whole.type,
            rows, whole.cols};
}

/// A feed-forward whose gate and partner lie in one matrix (TensorNames::gateUp). gateUp, down: of this feed-forward
/// and perhaps others; `at` counts those before it.
FeedForwardWeights cut(const WeightMatrix& gateUp, const WeightMatrix& down, int at, int width, int hidden) {
    FeedForwardWeights w;
    w.gate = rowsOf(gateUp, 2 * at * width, width);
    w.up = rowsOf(gateUp, (2 * at + 1) * width, width);
    w.down = rowsOf(down, at * hidden, hidden);
    return w;
}

FeedForwardWeights readJoined(const TensorSource& tensors, const std::string& prefix, const TensorNames& names,
                              int hidden, int width) {
    return cut(tensors.matrix(prefix + names.gateUp + ".weight", 2 * width, hidden),
               tensors.matrix(prefix + names.feedForward.down + ".weight", hidden, width), 0, width, hidden);
}

FeedForwardWeights readFeedForward(const TensorSource& tensors, const std::string& prefix,
                                   const FeedForwardNames& names, int hidden, int width, Bias bias) {
    FeedForwardWeights w;
    w.gate = tensors.matrix(prefix + names.gate + ".weight", width, hidden);
    w.up = tensors.matrix(prefix + names.up + ".weight", width, hidden);
    w.down = tensors.matrix(prefix + names.down + ".weight", hidden, width);
    w.gateBias = tensors.bias(bias, prefix + names.gate + ".bias", width);
    w.upBias = tensors.bias(bias, prefix + names.up + ".bias", width);
    w.downBias = tensors.bias(bias, prefix + names.down + ".bias", hidden);
    return w;
}

ExpertWeights readExperts(const TensorSource& tensors, const TensorNames& names, const std::string& layer,
                          const ModelConfig& c) {
    const ExpertConfig& experts = *c.experts;
    const std::string mixture = layer + names.mixture.prefix;
    ExpertWeights w;
    w.router = tensors.matrix(mixture + names.mixture.router, experts.count, c.hidden);
    if (experts.choiceBias) w.choiceBias = tensors.vector(mixture + names.mixture.choiceBias, {experts.count});
    if (!names.gateUp.empty()) {
        const std::string list = mixture + names.mixture.experts;
        const WeightMatrix gateUp = tensors.stack(list + names.gateUp, experts.count, 2 * experts.width, c.hidden),
                           down = tensors.stack(list + names.feedForward.down, experts.count, c.hidden, experts.width);
        for (int e = 0; e < experts.count; ++e) w.experts.push_back(cut(gateUp, down, e, experts.width, c.hidden));
        if (experts.sharedWidth > 0)
            w.shared = readJoined(tensors, mixture + names.mixture.shared, names, c.hidden, experts.sharedWidth);
        return w;
    }
    for (int e = 0; e < experts.count; ++e)
        w.experts.push_back(readFeedForward(tensors, fmt::format("{}{}{}.", mixture, names.mixture.experts, e),
                                            names.mixture.expert, c.hidden, experts.width, c.expertBias));
    if (experts.sharedWidth > 0)
        w.shared = readFeedForward(tensors, mixture + names.mixture.shared, names.feedForward, c.hidden,
                                   experts.sharedWidth, c.feedForwardBias);
    if (experts.sharedGate) w.sharedGate = tensors.matrix(mixture + names.mixture.sharedGate, 1, c.hidden);
    return w;
}

/// The part of the latent's way up that makes keys, per head transposed: queries take it instead of keys, so that
/// keys stay in the latent space ("absorbed").
WeightMatrix transposedKeyUp(const WeightMatrix& up, const LatentAttention& latent, int heads,
                             std::deque<std::vector<std::byte>>& owned) {
    if (isQuantised(up.type)) { // blocks run along the rows and cannot be turned: this small matrix alone becomes float
        std::vector<float> plain(Elements(up.rows, up.cols));
        const RowsOf from(static_cast<const std::byte*>(up.data), rowBytes(up.type, up.cols));
        const RowsOf to(plain.data(), up.cols);
        for (int r = 0; r < up.rows; ++r) cpu::dequantise(up.type, from[r], 0, up.cols, to[r]);
        return transposedKeyUp({plain.data(), DType::F32, up.rows, up.cols}, latent, heads, owned);
    }
    const std::size_t size = Elements(bytesOf(up.type));
    const Extents<int, int, int> fromAt(heads, latent.nopeDim + latent.valueDim, latent.rank),
        toAt(heads, latent.rank, latent.nopeDim);
    auto& bytes = owned.emplace_back(Elements(toAt.size(), size));
    const auto* from = static_cast<const std::byte*>(up.data);
    for (int h = 0; h < heads; ++h)
        for (int i = 0; i < latent.nopeDim; ++i)
            for (int r = 0; r < latent.rank; ++r)
                std::memcpy(bytes.data() + toAt.offset(h, r, i) * size, from + fromAt.offset(h, i, r) * size, size);
    return {bytes.data(), up.type, latent.rank, latent.nopeDim};
}

void readHeads(const TensorSource& tensors, const TensorNames& names, const std::string& attention,
               const ModelConfig& c, LayerWeights& w) {
    const int qWidth = c.queryHeads * c.headDim, kvWidth = c.kvHeads * c.headDim;
    w.q = tensors.matrix(attention + names.q + ".weight", qWidth, c.hidden);
    w.k = tensors.matrix(attention + names.k + ".weight", kvWidth, c.hidden);
    w.v = tensors.matrix(attention + names.v + ".weight", kvWidth, c.hidden);
    w.qBias = tensors.bias(c.attentionBias, attention + names.q + ".bias", qWidth);
    w.kBias = tensors.bias(c.attentionBias, attention + names.k + ".bias", kvWidth);
    w.vBias = tensors.bias(c.attentionBias, attention + names.v + ".bias", kvWidth);
    if (c.queryKeyNorm) {
        w.queryNorm = tensors.vector(attention + names.queryNorm, {c.headDim});
        w.keyNorm = tensors.vector(attention + names.keyNorm, {c.headDim});
    }
    w.delta = tensors.vectorIfPresent(attention + "delta.weight", {c.kvHeads, kvWidth});
    w.gain = tensors.vectorIfPresent(attention + "A", {c.kvHeads});
    for (const auto& [name, matrix] :
         {std::pair{"q_future_proj.weight", &w.forecast}, std::pair{"q_curr_proj.weight", &w.ownForecast}})
        if (tensors.has(attention + name)) *matrix = tensors.matrix(attention + name, kvWidth, c.hidden);
}

void readLatent(const TensorSource& tensors, const TensorNames& names, const std::string& attention,
                const ModelConfig& c, LayerWeights& w, std::deque<std::vector<std::byte>>& owned) {
    const LatentAttention& latent = *c.latent;
    const int qWidth = c.queryHeads * c.queryDim(), down = latent.rank + latent.ropeDim;
    if (latent.queryRank > 0) {
        w.queryDown = tensors.matrix(attention + names.latent.queryDown + ".weight", latent.queryRank, c.hidden);
        w.queryDownBias = tensors.bias(c.attentionBias, attention + names.latent.queryDown + ".bias", latent.queryRank);
        w.queryDownNorm = tensors.vector(attention + names.latent.queryDownNorm, {latent.queryRank});
        w.q = tensors.matrix(attention + names.latent.queryUp + ".weight", qWidth, latent.queryRank);
    } else {
        w.q = tensors.matrix(attention + names.q + ".weight", qWidth, c.hidden);
    }
    w.k = tensors.matrix(attention + names.latent.down + ".weight", down, c.hidden);
    w.kBias = tensors.bias(c.attentionBias, attention + names.latent.down + ".bias", down);
    w.latentNorm = tensors.vector(attention + names.latent.norm, {latent.rank});
    if (tensors.has(attention + "k_b_proj.weight")) { // GGUF: apart, and the keys' part transposed already
        w.keyUp = tensors.matrix(attention + "k_b_proj.weight", c.queryHeads * latent.rank, latent.nopeDim);
        w.valueUp = tensors.matrix(attention + "v_b_proj.weight", c.queryHeads * latent.valueDim, latent.rank);
        w.keyUp.rows = latent.rank;
        w.valueUp.rows = latent.valueDim;
        w.valueUpHeadBytes = w.valueUp.bytes();
        return;
    }
    const int perHead = latent.nopeDim + latent.valueDim;
    const WeightMatrix up =
        tensors.matrix(attention + names.latent.up + ".weight", c.queryHeads * perHead, latent.rank);
    w.keyUp = transposedKeyUp(up, latent, c.queryHeads, owned);
    const RowsOf rows(static_cast<const std::byte*>(up.data), rowBytes(up.type, up.cols));
    w.valueUp = {rows[latent.nopeDim], up.type, latent.valueDim, latent.rank};
    w.valueUpHeadBytes = Elements(perHead, rows.width());
}

IndexerWeights readIndexer(const TensorSource& tensors, const std::string& indexer, const ModelConfig& c) {
    const LightningIndexer& of = *c.indexer;
    IndexerWeights w;
    w.query = tensors.matrix(indexer + "wq_b.weight", of.heads * of.dim, c.latent->queryRank);
    w.key = tensors.matrix(indexer + "wk.weight", of.dim, c.hidden);
    w.keyNorm = tensors.vector(indexer + "k_norm.weight", {of.dim});
    w.keyShift = tensors.vector(indexer + "k_norm.bias", {of.dim});
    w.headWeight = tensors.matrix(indexer + "weights_proj.weight", of.heads, c.hidden);
    return w;
}

BlockIndexerWeights readBlockIndexer(const TensorSource& tensors, const std::string& indexer, const ModelConfig& c) {
    const BlockIndexer& of = *c.blockIndexer;
    BlockIndexerWeights w;
    w.query = tensors.matrix(indexer + "q_proj.weight", of.heads * of.dim, c.hidden);
    w.key = tensors.matrix(indexer + "k_proj.weight", of.dim, c.hidden);
    w.queryNorm = tensors.vector(indexer + "q_norm.weight", {of.dim});
    w.keyNorm = tensors.vector(indexer + "k_norm.weight", {of.dim});
    return w;
}

/// The prefix of a layer's feed-forward. Files of some families name it as they name the experts of other layers.
const std::string& feedForwardPrefix(const TensorSource& tensors, const TensorNames& names, const std::string& layer) {
    const auto isThere = [&](const std::string& prefix) {
        return tensors.has(layer + prefix + names.feedForward.gate + ".weight");
    };
    return !isThere(names.mlp) && isThere(names.mixture.prefix) ? names.mixture.prefix : names.mlp;
}

} // namespace

std::size_t LayerWeights::bytesPerToken(const ModelConfig& config) const {
    std::size_t bytes = q.bytes() + k.bytes() + v.bytes() + o.bytes() + queryDown.bytes();
    if (config.latent) bytes += Elements(config.queryHeads, keyUp.bytes() + valueUp.bytes());
    if (moe.experts.empty()) return bytes + mlp.bytes();
    return bytes + moe.router.bytes() + moe.sharedGate.bytes() + moe.shared.bytes() +
           Elements(config.experts->used, moe.experts.front().bytes());
}

LayerWeights readLayer(const TensorSource& tensors, const ModelConfig& c, int index,
                       std::deque<std::vector<std::byte>>& owned) {
    const TensorNames& names = architectureOf(c).names;
    const std::string layer = fmt::format("{}{}.", names.layers, index), attention = layer + names.attention;
    LayerWeights w;
    w.inputNorm = tensors.vector(layer + names.inputNorm, {c.hidden});
    w.postNorm = tensors.vector(layer + names.postNorm, {c.hidden});
    if (c.latent)
        readLatent(tensors, names, attention, c, w, owned);
    else
        readHeads(tensors, names, attention, c, w);
    if (c.indexer && c.indexer->runsIn(index)) w.indexer = readIndexer(tensors, attention + names.indexer, c);
    if (c.blockIndexer && c.blockIndexer->runsIn(index))
        w.blockIndexer = readBlockIndexer(tensors, attention + names.blockIndexer, c);
    w.o = tensors.matrix(attention + names.o + ".weight", c.hidden, c.queryHeads * c.outputDim());
    w.oBias = tensors.bias(c.outputBias, attention + names.o + ".bias", c.hidden);
    if (c.hasExperts(index))
        w.moe = readExperts(tensors, names, layer, c);
    else if (!names.gateUp.empty())
        w.mlp = readJoined(tensors, layer + names.mlp, names, c.hidden, c.ffn);
    else
        w.mlp = readFeedForward(tensors, layer + feedForwardPrefix(tensors, names, layer), names.feedForward, c.hidden,
                                c.ffn, c.feedForwardBias);
    if (c.normsAddOne)
        for (std::vector<float>* norm :
             {&w.inputNorm, &w.postNorm, &w.queryNorm, &w.keyNorm, &w.blockIndexer.queryNorm, &w.blockIndexer.keyNorm})
            for (float& weight : *norm) weight += 1;
    if (w.delta.empty() != w.gain.empty())
        throw Error(ErrorKind::BadInput,
                    fmt::format("{}: the eviction head of layer {} is incomplete", tensors.origin(), index),
                    "self_attn.A and self_attn.delta.weight belong together, in every layer");
    return w;
}

} // namespace kvscope
