// The weights of one layer, as a configuration asks for them, from whatever file holds the tensors.
#pragma once

#include "core/model/architecture.h"
#include "kernels/kernels.h"

#include <cstddef>
#include <deque>
#include <initializer_list>
#include <string>
#include <vector>

namespace kvscope {

/// Where tensors come from: asked by the names of a Hugging Face checkpoint, answers with checked shapes.
class TensorSource {
public:
    virtual ~TensorSource() = default;
    /// The file, for messages.
    virtual const std::string& origin() const = 0;
    virtual bool has(const std::string& name) const = 0;
    /// A view, valid as long as the model. @throws Error(BadInput | Unsupported) naming the tensor
    virtual WeightMatrix matrix(const std::string& name, int rows, int cols) const = 0;
    /// `count` matrices that lie behind each other in one tensor, as one of count * rows rows; otherwise as `matrix`.
    virtual WeightMatrix stack(const std::string& name, int count, int rows, int cols) const = 0;
    /// A copy of a vector as float32, with the same checks.
    virtual std::vector<float> vector(const std::string& name, std::initializer_list<std::int64_t> shape) const = 0;
    std::vector<float> vectorIfPresent(const std::string& name, std::initializer_list<std::int64_t> shape) const {
        return has(name) ? vector(name, shape) : std::vector<float>();
    }
    /// Empty where the configuration says that there is none, whatever the file holds.
    std::vector<float> bias(Bias rule, const std::string& name, int length) const {
        if (rule == Bias::None) return {};
        return rule == Bias::All ? vector(name, {length}) : vectorIfPresent(name, {length});
    }
};

/// A gated feed-forward: down(silu(gate x) * up x). Biases are empty when the checkpoint has none.
struct FeedForwardWeights {
    WeightMatrix gate, up, down;
    std::vector<float> gateBias, upBias, downBias;
    std::size_t bytes() const { return gate.bytes() + up.bytes() + down.bytes(); }
};

struct ExpertWeights {
    WeightMatrix router;           // [experts, hidden]
    std::vector<float> choiceBias; // [experts], or empty
    std::vector<FeedForwardWeights> experts;
    FeedForwardWeights shared; // without rows when there is none
    WeightMatrix sharedGate;   // [1, hidden]; without rows when there is none
};

/// A layer's lightning indexer (ModelConfig::indexer). Without rows where a layer has none.
struct IndexerWeights {
    WeightMatrix query;                   // [heads*dim, queryRank], of the queries' normalised latent
    WeightMatrix key;                     // [dim, hidden]
    std::vector<float> keyNorm, keyShift; // [dim] weight and bias of the keys' LayerNorm
    WeightMatrix headWeight;              // [heads, hidden]: what each query head counts
};

/// A layer's block indexer (ModelConfig::blockIndexer). Without rows where a layer has none.
struct BlockIndexerWeights {
    WeightMatrix query;                    // [heads*dim, hidden]
    WeightMatrix key;                      // [dim, hidden]
    std::vector<float> queryNorm, keyNorm; // [dim]
};

struct LayerWeights {
    std::vector<float> inputNorm, postNorm; // [hidden]
    /// Heads: q [queryHeads*headDim, hidden], k and v [kvHeads*headDim, hidden], o [hidden, queryHeads*headDim].
    /// Latent attention: q [queryHeads*queryDim, hidden or queryRank], k [rank + ropeDim, hidden], no v,
    /// o [hidden, queryHeads*valueDim].
    WeightMatrix q, k, v, o;
    std::vector<float> qBias, kBias, vBias, oBias; // empty when the checkpoint has none
    std::vector<float> queryNorm, keyNorm;         // [headDim]; empty without query and key norms
    // Latent attention
    WeightMatrix queryDown;                          // [queryRank, hidden]; without rows when queries have no latent
    std::vector<float> queryDownBias, queryDownNorm; // [queryRank]
    std::vector<float> latentNorm;                   // [rank]
    WeightMatrix keyUp;   // of head 0, [rank, nopeDim]: takes a query into the latent space; heads follow each other
    WeightMatrix valueUp; // of head 0, [valueDim, rank]
    std::size_t valueUpHeadBytes = 0; // from one head's to the next one's
    IndexerWeights indexer;
    BlockIndexerWeights blockIndexer;
    FeedForwardWeights mlp; // without rows in a layer of experts
    ExpertWeights moe;      // without experts in a layer that has none
    // NOSA eviction head; empty when absent
    std::vector<float> delta; // [kvHeads, kvHeads*headDim]
    std::vector<float> gain;  // [kvHeads], "A"
    // SparDA forecast heads; without rows when absent
    WeightMatrix forecast, ownForecast; // [kvHeads*headDim, hidden]: for the next layer; of layer 0 for itself

    /// Read by one decode step of one token.
    std::size_t bytesPerToken(const ModelConfig& config) const;
};

/// Reads layer `index`. `owned` keeps what had to be rearranged (the transposed keyUp), as long as the model lives.
/// @throws Error(BadInput | Unsupported) naming the tensor
LayerWeights readLayer(const TensorSource& tensors, const ModelConfig& config, int index,
                       std::deque<std::vector<std::byte>>& owned);

} // namespace kvscope
