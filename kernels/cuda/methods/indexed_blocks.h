// MiniMax sparse attention: the keys and queries of a block indexer, and what a query gives to each block of keys.
#pragma once

#include "kernels/cuda/device/check.h"

#include <cstdint>
#include <cuda_bf16.h>

namespace kvscope::cuda {

/// The indexer's keys of one layer: one key of `dim` channels for each token, with which all query heads are
/// multiplied. The device form of core/select/indexed_blocks.h.
struct IndexedBlocks {
    int heads = 0, dim = 0;         // query heads, channels; dim a multiple of 8; heads * dim at most 8192
    int kvHeads = 0, blockSize = 0; // each query head serves kvHeads/heads KV heads that follow each other
    /// [sequence*kvHeads] as in DeviceIndex; element sequence*kvHeads is kvHeads times the sequence's first token.
    const std::int64_t* tokenFirst = nullptr;
    __nv_bfloat16* keys = nullptr; // [tokens, dim]
};

/// Which tokens are meant: one of each sequence, or n consecutive ones of one sequence.
struct IndexedTokens {
    int n = 0;
    const std::int32_t* position = nullptr; // [n]
    const std::uint8_t* active = nullptr;   // [n] 0: the token is skipped; null: all are meant
    bool oneSequence = false;               // all are of `sequence`; else token i is of sequence i
    int sequence = 0;
};

/// Norms and rotates the projected queries and keys of tokens, and adds the keys to the indexer's.
struct IndexedKeysArgs {
    IndexedBlocks index;
    IndexedTokens tokens;
    const float* projected = nullptr;                     // [n, (heads + 1)*dim] queries, then the key
    const float *queryNorm = nullptr, *keyNorm = nullptr; // [dim] RMS norms
    float eps = 0;
    int rotated = 0;                            // channels of a head, the first ones: c turns with c + rotated/2
    const float *cos = nullptr, *sin = nullptr; // [table rows, angles], of which the first rotated/2 of a row are read
    int angles = 0;
    const std::int32_t* ropeFirst = nullptr; // [sequence] table row of a sequence's position 0
    float* queries = nullptr;                // [n, heads*dim]
};
void placeIndexedKeys(const Launch& launch, const IndexedKeysArgs& args);

/// scores[i, g, b] = the largest product of token i's query with a key of block b, of the keys up to the token itself.
/// Blocks of later tokens keep what is there.
struct IndexedScoreArgs {
    IndexedBlocks index;
    IndexedTokens tokens;
    const float* queries = nullptr; // [n, heads*dim]
    int blocks = 0, maxBlocks = 0;  // that the tokens see at most; of a row of scores
    float* scores = nullptr;        // [n, kvHeads, maxBlocks]
    std::uint64_t* mark = nullptr;  // the time at which it begins, or null
};
void scoreIndexedBlocks(const Launch& launch, const IndexedScoreArgs& args);

} // namespace kvscope::cuda
