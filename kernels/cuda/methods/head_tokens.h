// InfiniGen by token, as in its paper: every query head chooses tokens for itself, all heads as many as matter on
// average. A KV head makes one list to fetch of the choices of its query heads, and notes for each query head which
// entries of that list are the head's own.
#pragma once

#include "kernels/cuda/device/check.h"
#include "kernels/cuda/device/kv_shape.h"

#include <cstdint>
#include <cuda_bf16.h>

namespace kvscope::cuda {

/// Finds how many tokens every query head takes. A head counts the tokens whose score lies within alpha of its best
/// score; the answer is the mean of these counts over all heads of all active rows, rounded down.
struct NearCountArgs {
    int rows = 0, heads = 0;
    const std::int32_t* position = nullptr; // [rows] as many tokens of a row have scores
    const std::uint8_t* active = nullptr;   // [rows] or null; rows that are not active do not count
    const float* scores = nullptr;          // [rows*heads] lists, `stride` apart
    std::int64_t stride = 0;
    float alpha = 0;
    int most = 0;                     // the answer is at most this, and at least 1
    std::int32_t* length = nullptr;   // [rows, heads] out: tokens with scores; 0 for rows that are not active
    std::int32_t* wanted = nullptr;   // [1] out: the answer
    std::uint64_t* total = nullptr;   // [1] work space, zero before and after
    std::uint32_t* arrived = nullptr; // [1] work space, zero before and after
};
void countNear(const Launch& launch, const NearCountArgs& args);

/// Makes one list for a KV head of the lists of its query heads. The newest token is added as the last of every list.
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
    // Each query head's own tokens with the newest, and which entries of the KV head's list these are.
    // [rows, queryHeads, capacity + 1]
    std::int32_t *own = nullptr, *places = nullptr;
    std::int32_t* ownCount = nullptr; // [rows, queryHeads]
};
/// @throws Error(Unsupported) when a multiprocessor's shared memory is too small for the longest sequence
void uniteHeads(const Launch& launch, const UniteArgs& args);

/// Copies all listed tokens but the newest from a token store, which may be pinned host memory, into `to`, one after
/// the other.
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

/// Writes the newest token into the token store, and into `fetched` behind the tokens that were fetched.
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
