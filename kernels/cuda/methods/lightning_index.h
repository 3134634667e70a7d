// DeepSeek sparse attention: the keys and queries of a lightning indexer, and what a query gives to each token.
#pragma once

#include "kernels/cuda/methods/indexed_blocks.h" // IndexedTokens

namespace kvscope::cuda {

/// Channels of all heads of an indexer, at most.
constexpr int kMostLightningChannels = 8192;

/// The indexer's keys of one layer: one key of `dim` channels for each token, with which all query heads are
/// multiplied. The device form of core/select/lightning_index.h.
struct LightningIndex {
    int heads = 0, dim = 0;                   // dim a multiple of 32; heads * dim at most kMostLightningChannels
    const std::int64_t* tokenFirst = nullptr; // [sequence] a sequence's first token
    __nv_bfloat16* keys = nullptr;            // [tokens, dim] of one layer
};

/// Normalises the projected keys of tokens by a LayerNorm, rotates keys and queries, rounds both to bf16, and adds
/// the keys to the indexer's.
struct LightningPlaceArgs {
    LightningIndex index;
    IndexedTokens tokens;
    const float* key = nullptr;                          // [n, dim] projected
    const float* query = nullptr;                        // [n, heads*dim] projected; null: keys alone
    const float *keyNorm = nullptr, *keyShift = nullptr; // [dim] weight and bias of the LayerNorm
    float eps = 0;
    int rotated = 0;                            // channels of a head, the first ones
    bool interleaved = false;                   // channel 2c turns with 2c + 1; else c with c + rotated/2
    const float *cos = nullptr, *sin = nullptr; // [table rows, angles], of which the first rotated/2 of a row are read
    int angles = 0;
    const std::int32_t* ropeFirst = nullptr; // [sequence] table row of a sequence's position 0
    __nv_bfloat16* queries = nullptr;        // [n, heads*dim]
};
void placeInLightningIndex(const Launch& launch, const LightningPlaceArgs& args);

/// scores[i, t] = scale * sum over heads h of weights[i, h] * max(0, q_h . k_t), of the tokens t up to token i itself.
/// Scores of later tokens keep what is there. Products and sums are float32.
struct LightningScoreArgs {
    LightningIndex index;
    IndexedTokens tokens;
    const __nv_bfloat16* queries = nullptr; // [n, heads*dim]
    const float* weights = nullptr;         // [n, heads]
    float scale = 1;
    int maxTokens = 0;             // that the tokens see at most
    float* scores = nullptr;       // [n] lists, `stride` apart
    std::int64_t stride = 0;       // at least maxTokens
    std::uint64_t* mark = nullptr; // the time at which it begins, or null
};
void scoreTokensByIndex(const Launch& launch, const LightningScoreArgs& args);

} // namespace kvscope::cuda
