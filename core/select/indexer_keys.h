// What the indexers of a model keep, whether they choose tokens (lightning_index.h) or blocks (indexed_blocks.h): one
// small key for each cached token, the queries of some tokens, and the products of a query with the keys.
#pragma once

#include "base/indexed.h"
#include "core/select/selector.h"

#include <functional>
#include <vector>

namespace kvscope::select {

/// The heads of an indexer.
struct IndexerHeads {
    int count = 0;            // query heads; all of them share the one key of a token
    int dim = 0;              // channels of a query head and of a key
    int rotary = 0;           // channels of them that are rotated, the first ones; 0: all
    bool interleaved = false; // as RopeArgs has it
};

/// Keys of every sequence in every layer that has an indexer, kept from call to call. All numbers are float32.
class IndexerKeys {
public:
    /// `runsIn` says which layers have an indexer. The context outlives this object.
    IndexerKeys(const SelectorContext& context, const IndexerHeads& heads, const std::function<bool(LayerId)>& runsIn);

    /// Multiplies the inputs of n tokens, the first of which stands at position `first`, with `weights` [dim, hidden],
    /// and keeps the products behind the keys of the tokens before. input: [n, hidden]. @return the products, [n, dim]:
    /// the caller norms and rotates them in place, which makes keys of them
    float* append(LayerId layer, RowId sequence, int first, int n, const WeightMatrix& weights, const float* input);
    /// @return room for the queries of n tokens, [n, heads, dim], which the caller writes and which multiply reads
    /// until the next call of ask
    float* ask(LayerId layer, RowId sequence, int n);
    /// Rotates x [n, heads, dim] in place, which belongs to n tokens, the first of which stands at position `first`.
    void rotate(float* x, RowId sequence, int first, int n, int heads);

    /// Multiplies the i-th query of the last call of ask with the keys at positions [0, visible).
    void multiply(int i, int visible);
    /// How many keys the last call of multiply has multiplied.
    int visible() const { return visible_; }
    /// Products of the last call of multiply for one query head: [visible].
    const float* products(int head) const { return products_.data() + productsAt(visible_).first(head); }

    /// Bytes of the keys of one sequence of `tokens` tokens in `layers` layers.
    static std::int64_t keyBytes(const IndexerHeads& heads, std::int64_t layers, std::int64_t tokens);
    /// Bytes of the queries of prompts that are read in pieces of `rows` tokens, and of the products for sequences of
    /// `tokens` tokens.
    static std::int64_t scratchBytes(const IndexerHeads& heads, std::int64_t rows, std::int64_t tokens);

private:
    Extents<int, int> productsAt(int visible) const { return Extents<int, int>(heads_.count, visible); }

    const SelectorContext& context_;
    const IndexerHeads heads_;
    const Extents<RowId, LayerId> keysAt_;
    std::vector<std::vector<float>> keys_; // [sequence, layer][token, dim]; reserved, so that no step allocates
    std::vector<float> queries_;           // [n, heads, dim] of the last call of ask, which was for this layer and row:
    LayerId layer_{};
    RowId sequence_{};
    std::vector<float> products_; // [heads, visible_]
    int visible_ = 0;
    Numbered<std::int32_t> rows_; // of the tables of the rotation
};

} // namespace kvscope::select
