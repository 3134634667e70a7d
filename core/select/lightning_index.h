// The lightning indexers of a model at work (ModelConfig::indexer): the scores that a query gives to tokens.
#pragma once

#include "core/select/indexer_keys.h"

#include <vector>

namespace kvscope::select {

/// The keys of every sequence in every layer that has an indexer, and what queries make of them. Computes in float32.
class LightningIndex {
public:
    /// The context's model has indexers; the context outlives this object.
    explicit LightningIndex(const SelectorContext& context);

    /// Whether the layer has an indexer. One without attends to what the layer before it chose.
    bool runsIn(LayerId layer) const { return config_.runsIn(int(layer)); }
    /// Adds the keys of n tokens, the first of which stands at position `first`. input: [n, hidden], as TokenRows has
    /// it
    void append(LayerId layer, RowId sequence, int first, int n, const float* input);
    /// Makes the queries of n tokens and what their heads count. queryLatent: [n, queryRank], as TokenRows has it.
    void ask(LayerId layer, RowId sequence, int first, int n, const float* input, const float* queryLatent);
    /// Scores the tokens at positions [0, visible) for the i-th query of the last call of ask:
    ///   scores[t] = sum over heads h of weight_h * max(0, q_h . k_t / sqrt(dim)) / sqrt(heads)
    void score(int i, int visible, std::vector<float>& scores);

    /// Bytes of the keys of one sequence of `tokens` tokens, all layers.
    static std::int64_t keyBytes(const ModelConfig& config, std::int64_t tokens);
    /// Bytes of the scratch memory for prompts read in pieces of `rows` tokens, of sequences of `tokens` tokens.
    static std::int64_t scratchBytes(const ModelConfig& config, std::int64_t rows, std::int64_t tokens);

private:
    const IndexerWeights& weightsOf(LayerId layer) const { return context_.model.layer(int(layer)).indexer; }

    const SelectorContext& context_;
    const LightningIndexer& config_;
    IndexerKeys keys_;
    std::vector<float> counts_; // [n, heads], what each head of a query of the last call of ask counts
    RowId asked_{};             // the row of that call
};

} // namespace kvscope::select
