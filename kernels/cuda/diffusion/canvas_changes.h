// dLLM-Cache's choice for the canvases of a forward in one layer: how much the values of their tokens changed, and
// which tokens are computed because of it.
#pragma once

#include "kernels/cuda/device/check.h"
#include "kernels/cuda/diffusion/block_row.h"

#include <cuda_bf16.h>

namespace kvscope::cuda {

/// One sequence whose canvas is compared.
struct ChangeRow {
    std::int32_t sequence = 0;
    std::int32_t prompt = 0;        // position of the canvas's first token
    std::int32_t tokens = 0;        // of the canvas
    std::int32_t firstValue = 0;    // row of ChangeArgs::qkv of its first token
    std::int32_t firstCompared = 0; // row of ChangeArgs::compared of its first token
    std::int32_t firstKept = 0;     // row of position 0 in the arrays that every layer keeps for tokens
    std::int32_t count = 0;         // tokens that are computed
    std::int32_t firstPlace = 0;    // their first place in ChangeArgs::places and the lists beside it
};

struct ChangeArgs {
    AttentionShape shape;
    int rows = 0, mostTokens = 0, mostComputed = 0; // of any sequence
    const ChangeRow* table = nullptr;               // [rows]
    const float* qkv = nullptr;                     // [tokens, stride] values from `valueAt` on, [kvHeads, dim]
    int stride = 0, valueAt = 0;
    __nv_bfloat16* blocks = nullptr; // of the layer; the values replace those that are there
    const std::int64_t* headFirst = nullptr;
    const __nv_bfloat16* compared = nullptr; // [canvas tokens, kvHeads*dim] what the values are compared with; null:
                                             // with those that they replace
    float* changes = nullptr;                // [sequence, mostTokens] out: 1 minus the cosine of a token's values
    std::int32_t* computed = nullptr;        // [sequence, mostComputed] out: positions, ascending
    // [places] out, of the tokens that are computed
    BlockRow* places = nullptr;
    std::int32_t *sources = nullptr,
                 *targets = nullptr; // the token's row of qkv; its row in the arrays that the layer keeps
    std::uint64_t* mark = nullptr;
};
/// Writes `changes`, and replaces the values in `blocks` by the new ones. Both values are compared as they are stored,
/// in bf16; a vector shorter than 1e-8 counts as that long.
void compareValues(const Launch& launch, const ChangeArgs& args);
/// Chooses ChangeRow::count tokens of each row, those that changed most, of equal ones the lower, and writes
/// `computed`, `places`, `sources` and `targets`.
void chooseChanged(const Launch& launch, const ChangeArgs& args);

/// Copies the values of the tokens of `rows` (one token a row) to what later forwards compare with.
struct KeepValuesArgs {
    BlockRows rows;
    const float* qkv = nullptr; // [rows, stride]
    int stride = 0, valueAt = 0;
    const std::int32_t* comparedFirst = nullptr; // [sequence] row of position 0; rows of a prompt have none
    const std::int32_t* prompt = nullptr;        // [sequence] tokens of the prompt
    __nv_bfloat16* compared = nullptr;
};
void keepValues(const Launch& launch, const KeepValuesArgs& args);

/// @throws Error(Unsupported) where a choice among so many tokens does not fit into shared memory
void checkChangedTokens(const Launch& launch, int mostTokens);

} // namespace kvscope::cuda
