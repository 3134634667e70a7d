// Tokens that every query head chooses for itself, as many as matter on average, and what a KV head makes of its
// group's choices: one list to fetch, and for each query head where its own lie in it (InfiniGen in its original form).
#pragma once

#include "kernels/cuda/check.h"
#include "kernels/cuda/kv_shape.h"

#include <cstdint>
#include <cuda_bf16.h>

namespace kvscope::cuda {

/// How many tokens every query head takes: the mean, rounded down, of how many score within alpha of their head's best.
struct NearCountArgs {
    int rows = 0, heads = 0;
    const std::int32_t* position = nullptr; // [rows] as many tokens are scored
    const std::uint8_t* active = nullptr;   // [rows] or null; others do not count
    const float* scores = nullptr;          // [rows*heads] lists, `stride` apart
    std::int64_t stride = 0;
    float alpha = 0;
    int most = 0;                     // tokens at most; one at least
    std::int32_t* length = nullptr;   // [rows, heads] scored tokens, of inactive rows 0
    std::int32_t* wanted = nullptr;   // [1]
    std::uint64_t* total = nullptr;   // [1] zero; left zero
    std::uint32_t* arrived = nullptr; // likewise
};
void countNear(const Launch& launch, const NearCountArgs& args);

/// The lists of a group's query heads become one of their KV head, with the newest token as the last.
struct UniteArgs {
    AttentionShape shape;
    int rows = 0, maxTokens = 0;            // maxTokens: of a sequence
    const std::int32_t* position = nullptr; // [rows] the newest token
    const std::uint8_t* active = nullptr;   // [rows] or null
    const std::int32_t* tokens = nullptr;   // [rows, queryHeads, capacity] ascending, before the newest
    const std::int32_t* count = nullptr;    // [rows, queryHeads]
    int capacity = 0;
    std::int32_t* united = nullptr; // [rows, kvHeads, unitedCapacity] ascending
    std::int32_t* unitedCount = nullptr;
    int unitedCapacity = 0; // at least group*capacity + 1
    // Of each query head, and the newest: its tokens, and their places in the KV head's list. [rows, queryHeads,
    // capacity + 1]
    std::int32_t *own = nullptr, *places = nullptr;
    std::int32_t* ownCount = nullptr; // [rows, queryHeads]
};
/// @throws Error(Unsupported) when a sequence is too long for the processor's shared memory
void uniteHeads(const Launch& launch, const UniteArgs& args);

/// The listed tokens but the newest from a store by token, which may be pinned host memory, one after the other.
struct FetchTokensArgs {
    AttentionShape shape;
    int rows = 0;
    const std::uint8_t* active = nullptr; // [rows] or null
    const std::int32_t* tokens = nullptr; // [rows, kvHeads, capacity], the newest the last
    const std::int32_t* count = nullptr;  // [rows, kvHeads]
    int capacity = 0;
    const __nv_bfloat16* store = nullptr; // see token_pack.h
    const std::int64_t* first = nullptr;  // [rows*kvHeads]
    __nv_bfloat16* to = nullptr;          // [rows, kvHeads, capacity, 2*dim]
    std::uint64_t *mark = nullptr, *endMark = nullptr;
};
void fetchTokens(const Launch& launch, const FetchTokensArgs& args, int blocks);

/// A step's token into the store, and behind what was fetched.
struct PlaceNewestArgs {
    AttentionShape shape;
    int rows = 0;
    const std::int32_t* position = nullptr;                     // [rows]
    const std::uint8_t* active = nullptr;                       // [rows] or null
    const __nv_bfloat16 *newKey = nullptr, *newValue = nullptr; // [rows, kvHeads*dim]
    __nv_bfloat16* store = nullptr;
    const std::int64_t* first = nullptr;
    __nv_bfloat16* fetched = nullptr; // or null
    const std::int32_t* count = nullptr;
    int capacity = 0;
};
void placeNewest(const Launch& launch, const PlaceNewestArgs& args);

} // namespace kvscope::cuda
