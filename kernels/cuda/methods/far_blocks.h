// InfLLM: blocks beyond a local window are found by a few representative keys of each. The device form of
// core/select/infllm.cpp. A block inside the window holds rotated keys. When the block leaves the window, its keys are
// replaced by the keys before rotation, in its slot and in the host store: from then on every query attends to the
// block as if it were one fixed distance away.
#pragma once

#include "kernels/cuda/device/check.h"
#include "kernels/cuda/device/kv_shape.h"
#include "kernels/cuda/token/token.h"
#include "kernels/packed_block.h"

#include <cuda_bf16.h>

namespace kvscope::cuda {

/// One layer's memory of its tokens. The rings plainKeys and mass hold a token at position % ringTokens. ringTokens is
/// a multiple of blockSize, and at least localTokens + blockSize or as many as a sequence can have.
struct FarMemory {
    AttentionShape shape;
    int localTokens = 1, ringTokens = 0, representatives = 4;
    __nv_bfloat16* plainKeys = nullptr;       // [sequence*kvHeads, ringTokens, dim] keys before rotation
    float* mass = nullptr;                    // [sequence*queryHeads, ringTokens] attention received in the window
    __nv_bfloat16* blockKeys = nullptr;       // [blocks, group, dim] mean keys of the most attended tokens
    const std::int64_t* blockFirst = nullptr; // [sequence*kvHeads] first block of the head
};

struct FarPromptArgs {
    FarMemory memory;
    int sequence = 0, first = 0, n = 0;    // tokens of this piece of a prompt
    const float* qkv = nullptr;            // [n, (queryHeads + 2 kvHeads)*dim] before rotation, after head norms
    const __nv_bfloat16* q = nullptr;      // [n, queryHeads*dim], rotated
    const __nv_bfloat16* blocks = nullptr; // head g's begin at blocks + g*headStride
    std::int64_t headStride = 0;
    const float* tokenBias = nullptr; // of the sequence; head g's at tokenBias + g*biasStride, or null
    std::int64_t biasStride = 0;
    float scale = 1, biasScale = 0;
    // promptTokens, plainKeys and mass are those of the whole prompt in one layer.
    int promptTokens = 0;
    __nv_bfloat16* plainKeys = nullptr; // [kvHeads, promptTokens, dim]
    float* mass = nullptr;              // [queryHeads, promptTokens]; zero before the first piece
    float* logSums = nullptr;           // [queryHeads, n] work space
};
/// Keeps the keys of a piece of a prompt before rotation, and adds the attention that the piece's queries give to the
/// tokens of their local windows to `mass`.
void readFarPrompt(const Launch& launch, const FarPromptArgs& args);

struct FarSettleArgs {
    FarMemory memory;
    int sequence = 0, tokens = 0;
    const __nv_bfloat16* plainKeys = nullptr; // [kvHeads, tokens, dim]; null: the keys in the blocks are used instead
    const float* mass = nullptr;              // [queryHeads, tokens]
    __nv_bfloat16* blocks = nullptr;
    std::int64_t headStride = 0;
};
/// Ends a prompt. Blocks beyond the window of the prompt's last token get representative keys and the keys before
/// rotation. The tokens of the other blocks enter the rings.
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
    const std::int32_t* maxTokens = nullptr;    // [rows] the tables have rows for so many positions
    // Where the keys of a block that leaves the window are replaced.
    __nv_bfloat16* blocks = nullptr;   // the resident store or the slot pool
    __nv_bfloat16* storeOut = nullptr; // pinned host memory, as the device sees it; null: resident
    int slots = 0;                     // 0: resident
    const std::int32_t* map = nullptr; // [sequence*kvHeads, slots]
    __nv_bfloat16* farQ = nullptr;     // [rows, queryHeads*dim] out: queries rotated as at position localTokens
    std::uint32_t* replaced = nullptr; // out: blocks of this layer whose keys went to the host; null: not wanted
};
/// Keeps the key of a decode step's token before rotation and makes farQ. Where a block leaves the window with this
/// token, gives it representative keys and replaces its keys by those before rotation.
void appendToFarMemory(const Launch& launch, const FarAppendArgs& args);

struct FarChoiceArgs {
    FarMemory memory;
    int rows = 0, shared = 1; // shared: KV heads that choose blocks together
    int initBlocks = 0, topk = 0, maxBlocks = 0, capacity = 0;
    const std::int32_t* position = nullptr;
    const std::uint8_t* active = nullptr;
    const __nv_bfloat16* farQ = nullptr;
    float* scores = nullptr; // [rows, kvHeads/shared, maxBlocks] out, for blocks between the first ones and the window
    PackedBlock* chosen = nullptr;       // [rows, kvHeads, capacity] as cuda::SelectArgs::chosen
    std::int32_t* chosenCount = nullptr; // [rows, kvHeads]
    std::int32_t* farCount = nullptr;    // [rows, kvHeads] so many of the chosen lie beyond the window; they come first
    float* chosenScores = nullptr;       // [rows, kvHeads, capacity]
    std::uint64_t *scoreMark = nullptr, *chooseMark = nullptr;
};
/// Chooses the first blocks, the best blocks between those and the window, and the window. Two launches: the scores,
/// then the choice.
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
    __nv_bfloat16* out = nullptr;                              // in: attention to the window; out: to all blocks
};
/// Merges the attention to the window with the attention to far blocks, and adds the attention that the tokens of the
/// window have received to FarMemory::mass.
void mergeFarAttention(const Launch& launch, const FarMergeArgs& args);

struct FarRankArgs {
    FarMergeArgs merged; // the arguments of the merge of this step's attention
    int shared = 1, initBlocks = 0;
    const __nv_bfloat16* farQ = nullptr; // [rows, queryHeads*dim]
    float usesPerDoubling = 0;           // see kUsesPerStep
    int slots = 0;
    std::int32_t* lastUse = nullptr; // [sequence*kvHeads, slots] out: of the listed blocks
};
/// Ranks the listed blocks for the cache policy that goes by worth. A block beyond the window ranks by the attention
/// that it has received in this step; the KV heads that choose together give it one rank. The other blocks rank lowest.
void rankFarBlocks(const Launch& launch, const FarRankArgs& args);

} // namespace kvscope::cuda
