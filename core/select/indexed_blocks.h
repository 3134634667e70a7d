// The block indexers of a model at work (ModelConfig::blockIndexer): the scores that a query gives to blocks of keys.
#pragma once

#include "core/select/indexer_keys.h"

namespace kvscope::select {

/// The keys of every sequence in every layer that has an indexer, and what queries make of them. Computes in float32.
class IndexedBlocks {
public:
    /// The context's model has block indexers; the context outlives this object.
    explicit IndexedBlocks(const SelectorContext& context);

    bool runsIn(LayerId layer) const { return config_.runsIn(int(layer)); }
    /// Adds the keys of n tokens, the first of which stands at position `first`. input: [n, hidden], as TokenRows has
    /// it
    void append(LayerId layer, RowId sequence, int first, int n, const float* input);
    /// Makes the queries of n tokens, the first of which stands at position `first`.
    void ask(LayerId layer, RowId sequence, int first, int n, const float* input);
    /// Multiplies the i-th query of the last call of ask with the keys at positions [0, visible).
    void multiply(int i, int visible) { keys_.multiply(i, visible); }
    /// scores[b] = the largest product of the last call of multiply with a key of block b, for the head that chooses
    /// for this KV head. May be called for several KV heads at a time.
    void score(KvHeadId kvHead, std::vector<float>& scores) const;

    /// Bytes of the keys of one sequence of `tokens` tokens, all layers.
    static std::int64_t keyBytes(const ModelConfig& config, std::int64_t tokens);
    /// Bytes of the scratch memory for prompts read in pieces of `rows` tokens, of sequences of `tokens` tokens.
    static std::int64_t scratchBytes(const ModelConfig& config, std::int64_t rows, std::int64_t tokens);

private:
    const BlockIndexerWeights& weightsOf(LayerId layer) const { return context_.model.layer(int(layer)).blockIndexer; }

    const SelectorContext& context_;
    const BlockIndexer& config_;
    IndexerKeys keys_;
};

} // namespace kvscope::select
