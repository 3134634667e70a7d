// Blocks beyond a local window, found by a few representative keys of each: the device form of core/select/infllm.cpp.
// A block inside the window holds rotated keys, like everywhere; when it leaves the window its keys are replaced by
// those before rotation, in its slot and in the store, for it is attended at one fixed distance from then on.
#pragma once

#include "kernels/cuda/check.h"
#include "kernels/cuda/kv_shape.h"
#include "kernels/cuda/token.h"

#include <cuda_bf16.h>

namespace kvscope::cuda {

/// One layer's memory of its tokens. Rings hold `ringTokens` of them, at position % ringTokens: a multiple of
/// blockSize, at least localTokens + blockSize or all that a sequence can have.
struct FarMemory {
    AttentionShape shape;
    int localTokens = 1, ringTokens = 0, representatives = 4;
    __nv_bfloat16* plainKeys = nullptr;       // [sequence*kvHeads, ringTokens, dim] before rotation
    float* mass = nullptr;                    // [sequence*queryHeads, ringTokens] received inside the window
    __nv_bfloat16* blockKeys = nullptr;       // [blocks, group, dim] mean keys of the most attended tokens
    const std::int64_t* blockFirst = nullptr; // [sequence*kvHeads] first block of the head
};

struct FarPromptArgs {
    FarMemory memory;
    int sequence = 0, first = 0, n = 0;    // tokens of this chunk
    const float* qkv = nullptr;            // [n, (queryHeads + 2 kvHeads)*dim] before rotation, after head norms
    const __nv_bfloat16* q = nullptr;      // [n, queryHeads*dim], rotated
    const __nv_bfloat16* blocks = nullptr; // head g's begin at blocks + g*headStride
    std::int64_t headStride = 0;
    const float* tokenBias = nullptr; // of the sequence; head g's at tokenBias + g*biasStride, or null
    std::int64_t biasStride = 0;
    float scale = 1, biasScale = 0;
    // Of the whole prompt of one layer:
    int promptTokens = 0;
    __nv_bfloat16* plainKeys = nullptr; // [kvHeads, promptTokens, dim]
    float* mass = nullptr;              // [queryHeads, promptTokens]; zero before the first chunk
    float* logSums = nullptr;           // [queryHeads, n] work space
};
/// Keeps the chunk's plain keys and adds what its queries give to the tokens of their local windows.
void readFarPrompt(const Launch& launch, const FarPromptArgs& args);

struct FarSettleArgs {
    FarMemory memory;
    int sequence = 0, tokens = 0;
    const __nv_bfloat16* plainKeys = nullptr; // [kvHeads, tokens, dim]; null: the blocks' own keys stand for them
    const float* mass = nullptr;              // [queryHeads, tokens]
    __nv_bfloat16* blocks = nullptr;
    std::int64_t headStride = 0;
};
/// Ends a prompt: blocks beyond the window of its last token get representatives and plain keys, the others enter the
/// rings.
void settleFarPrompt(const Launch& launch, const FarSettleArgs& args);

struct FarAppendArgs {
    FarMemory memory;
    int rows = 0; // row = sequence
    const std::int32_t* position = nullptr;
    const std::uint8_t* active = nullptr;
    const float* qkv = nullptr; // [rows, (queryHeads + 2 kvHeads)*dim] before head norms and rotation
    HeadNorms norms;
    const float *cos = nullptr, *sin = nullptr; // [table rows, dim/2]
    const std::int32_t* ropeFirst = nullptr;    // [rows] table row of a sequence's position 0
    bool interleaved = false;                   // see RotateArgs
    const std::int32_t* maxTokens = nullptr;    // [rows] rows past it do not exist in the tables
    // The tiers, where the keys of a block that leaves the window are replaced.
    __nv_bfloat16* blocks = nullptr;   // the resident store or the slot pool
    __nv_bfloat16* storeOut = nullptr; // pinned host memory, as the device sees it; null: resident
    int slots = 0;                     // 0: resident
    const std::int32_t* map = nullptr; // [sequence*kvHeads, slots]
    __nv_bfloat16* farQ = nullptr;     // [rows, queryHeads*dim] out: queries as if localTokens after the keys
    std::uint32_t* replaced = nullptr; // out: blocks of this layer whose keys went to the host again; null: not wanted
};
void appendToFarMemory(const Launch& launch, const FarAppendArgs& args);

struct FarChoiceArgs {
    FarMemory memory;
    int rows = 0, shared = 1; // KV heads that have one block set
    int initBlocks = 0, topk = 0, maxBlocks = 0, capacity = 0;
    const std::int32_t* position = nullptr;
    const std::uint8_t* active = nullptr;
    const __nv_bfloat16* farQ = nullptr;
    float* scores = nullptr; // [rows, kvHeads/shared, maxBlocks] out: of blocks between the first and the window
    std::uint32_t* chosen = nullptr;     // [rows, kvHeads, capacity] as cuda::SelectArgs::chosen
    std::int32_t* chosenCount = nullptr; // [rows, kvHeads]
    std::int32_t* farCount = nullptr; // [rows, kvHeads] of the chosen, how many are beyond the window; they come first
    float* chosenScores = nullptr;    // [rows, kvHeads, capacity]
    std::uint64_t *scoreMark = nullptr, *chooseMark = nullptr;
};
/// Two launches: scores, then the first blocks, the best of the others and the window.
void chooseFarBlocks(const Launch& launch, const FarChoiceArgs& args);

struct FarMergeArgs {
    FarMemory memory;
    int rows = 0;
    const std::int32_t* position = nullptr;
    const std::uint8_t* active = nullptr;
    const __nv_bfloat16* q = nullptr; // [rows, queryHeads*dim], rotated
    const __nv_bfloat16* blocks = nullptr;
    const std::int64_t* headFirst = nullptr;
    const std::int32_t *listBlock = nullptr, *listSlot = nullptr, *listCount = nullptr, *farCount = nullptr;
    int capacity = 0, localBlocks = 0; // localBlocks: most blocks of a window
    const float* tokenBias = nullptr;
    const std::int64_t* biasFirst = nullptr;
    float scale = 1, biasScale = 0;
    const float *nearLogSums = nullptr, *farLogSums = nullptr; // [rows, queryHeads]
    const __nv_bfloat16* farOut = nullptr;                     // [rows, queryHeads*dim]
    __nv_bfloat16* out = nullptr;                              // in: attention to the window; out: to both parts
};
/// Joins the two parts of the attention and adds what the query gave to the tokens of its window.
void mergeFarAttention(const Launch& launch, const FarMergeArgs& args);

struct FarRankArgs {
    FarMergeArgs merged; // of the attention that has been
    int shared = 1, initBlocks = 0;
    const __nv_bfloat16* farQ = nullptr; // [rows, queryHeads*dim]
    float usesPerDoubling = 0;           // see kUsesPerStep
    int slots = 0;
    std::int32_t* lastUse = nullptr; // [sequence*kvHeads, slots] out: of the listed blocks
};
/// Ranks the listed blocks by the attention that those beyond the window received: one rank for all KV heads of a set.
/// The others rank lowest.
void rankFarBlocks(const Launch& launch, const FarRankArgs& args);

} // namespace kvscope::cuda
