// ShadowKV: the prompt's keys are kept in low-rank form on the device, its values in host memory. The device form of
// core/select/shadowkv.cpp. shadow_prompt.cu ends a prompt, shadow.cu takes steps.
//
// The tokens that a KV head attends to lie in the head's own pool, in KV blocks and without holes: first the chosen
// chunks, each in the slot that it was given when it was chosen; then the outlier chunks; then the local tokens, which
// are the last chunks of the prompt and everything that is generated. Tokens are numbered by their place in the pool
// ("pool tokens"), and the attention reads them as one sequence.
#pragma once

#include "kernels/cuda/device/check.h"
#include "kernels/cuda/device/kv_shape.h"
#include "kernels/packed_block.h"

#include <cuda_bf16.h>

namespace kvscope::cuda {

/// Counts of one sequence, which stay as they are once its prompt has been read. In chunks unless the name says tokens.
struct ShadowCounts {
    std::int32_t chunks = 0; // chunks before the local tokens: each is an outlier or has a landmark
    std::int32_t chosen = 0, outliers = 0;
    std::int32_t firstLocalToken = 0;
    std::int32_t fixedTokens = 0; // pool tokens before the local tokens
};

/// One layer's memory. Rows of `rank` numbers are filled up with zeros to `paddedRank`, a multiple of 16.
struct ShadowMemory {
    AttentionShape shape;
    int chunkTokens = 8, paddedRank = 16;
    int chosen = 0, outliers = 0;             // the most chunks that any sequence has
    const ShadowCounts* counts = nullptr;     // [sequence]
    const std::int64_t* chunkFirst = nullptr; // [sequence*kvHeads] first chunk of the head
    const std::int64_t* tokenFirst = nullptr; // [sequence] first prompt token
    const std::int64_t* poolFirst = nullptr;  // [sequence*kvHeads] first block of the head's pool
    __nv_bfloat16* landmarks = nullptr;       // [chunks, dim]
    std::uint8_t* isOutlier = nullptr;        // [chunks]
    std::int32_t* outlierChunks = nullptr;    // [sequence*kvHeads, outliers] ascending
    __nv_bfloat16* u = nullptr;               // [prompt tokens, paddedRank]
    __nv_bfloat16* basis = nullptr;           // [sequence*kvHeads, dim, paddedRank]
    __nv_bfloat16* values = nullptr;          // [chunks, dim, chunkTokens]; pinned host memory where offloaded
    std::int32_t* slotChunk = nullptr;  // [sequence*kvHeads, chosen] chunk whose key and value a slot holds, or -1
    __nv_bfloat16* pool = nullptr;      // KV blocks, zero at first, so that rows past the newest token are finite
    float* poolScores = nullptr;        // [pool tokens] eviction scores; null without an eviction head
    const float* tokenScores = nullptr; // eviction scores by token, heads at scoreFirst
    const std::int64_t* scoreFirst = nullptr; // [sequence*kvHeads]
};

/// Copies the unrotated keys of a piece of a prompt: [n, width] from column `first` of [n, stride].
void keepPlainKeys(const Launch& launch, const float* qkv, int stride, int first, int width, int n, __nv_bfloat16* to);
/// Copies the keys of blocks as they are, for contexts that benchmarks fill without reading a prompt. Head g's blocks
/// begin at blocks + g*headStride.
void keepBlockKeys(const Launch& launch, const AttentionShape& shape, const __nv_bfloat16* blocks,
                   std::int64_t headStride, int tokens, __nv_bfloat16* to);

struct ShadowRankArgs {
    ShadowMemory memory;
    int sequence = 0, tokens = 0, rank = 1;
    std::int64_t tokenFirst = 0;                // of this sequence
    const __nv_bfloat16* keys = nullptr;        // [tokens, width]
    float* gram = nullptr;                      // [width, width] work space
    float *vectors = nullptr, *moved = nullptr; // [rank, width] work space
    double* products = nullptr;                 // [rank, rank] work space
};
/// Finds the `rank` directions along which the keys are longest, by subspace iteration on K'K from a fixed random
/// start, and the keys' coordinates along them. Cost: (width^2 + width*rank)*tokens multiply-adds once, and
/// 2*width^2*rank in each iteration.
void lowerRank(const Launch& launch, const ShadowRankArgs& args);

struct ShadowPromptArgs {
    ShadowMemory memory;
    int sequence = 0, tokens = 0;
    ShadowCounts counts;                   // of this sequence
    const __nv_bfloat16* blocks = nullptr; // head g's begin at blocks + g*headStride
    std::int64_t headStride = 0;
    float* distance = nullptr; // [kvHeads, chunks] work space
};
/// Ends a prompt: makes landmarks, chooses outliers, stores the values, and fills the pool except for the chosen
/// chunks.
void enterPrompt(const Launch& launch, const ShadowPromptArgs& args);

struct ShadowAppendArgs {
    ShadowMemory memory;
    int rows = 0; // row = sequence
    const std::int32_t* position = nullptr;
    const std::uint8_t* active = nullptr;
    const __nv_bfloat16 *newKey = nullptr, *newValue = nullptr; // [rows, kvHeads, dim]
};
/// Writes a decode step's key and value behind the local tokens of the pool.
void appendToPool(const Launch& launch, const ShadowAppendArgs& args);

/// One chunk to bring into a slot.
struct ShadowMiss {
    std::int32_t chunk = 0, slot = 0;
};

/// What a layer of a step reports. Its lists lie behind it.
struct ShadowReport {
    unsigned long long begun = 0, valuesDone = 0, keysDone = 0; // GPU times: values travel while keys are rebuilt
    unsigned long long pad = 0;
};
struct ShadowHeadReport {
    std::int32_t position = 0, stayed = 0, missed = 0, pad = 0;
};

struct ShadowChoiceArgs {
    ShadowMemory memory;
    int rows = 0, firstSequence = 0;        // row r is sequence firstSequence + r
    const std::int32_t* position = nullptr; // [rows]; null: not reported
    const std::uint8_t* active = nullptr;   // [rows] or null
    const __nv_bfloat16* q = nullptr;       // [rows, queryHeads*dim]
    float scale = 1;
    int maxChunks = 0;
    float* logits = nullptr;                 // [rows, queryHeads, maxChunks] work space
    float* partial = nullptr;                // [rows, queryHeads, shadowTiles(maxChunks), 2] work space
    ShadowMiss* misses = nullptr;            // [rows*kvHeads, chosen]
    std::int32_t* missCount = nullptr;       // [rows*kvHeads]
    ShadowReport* report = nullptr;          // set to zero; or null
    ShadowHeadReport* reportHeads = nullptr; // [rows*kvHeads] or null
    PackedBlock* reportChunks = nullptr;     // [rows*kvHeads, chosen] chunks, ascending; or null
    float* reportScores = nullptr;           // [rows*kvHeads, chosen] their scores; or null
    std::uint64_t *scoreMark = nullptr, *chooseMark = nullptr;
};
/// How many thread blocks share the landmarks of a KV head; `partial` has an entry for each.
int shadowTiles(int maxChunks);
/// Chooses the chunks whose landmarks get the largest probabilities, and their slots. Two launches: the products with
/// the landmarks, then the choice.
/// @throws Error(Unsupported) when a prompt has more chunks than a multiprocessor's shared memory holds
void chooseChunks(const Launch& launch, const ShadowChoiceArgs& args);

struct ShadowFetchArgs {
    ShadowMemory memory;
    int rows = 0, firstSequence = 0;
    const std::uint8_t* active = nullptr;
    const ShadowMiss* misses = nullptr;
    const std::int32_t* missCount = nullptr;
    const float *cos = nullptr, *sin = nullptr; // [table rows, dim/2]
    const std::int32_t* ropeFirst = nullptr;    // [sequence]
    bool interleaved = false;                   // see RotateArgs
    ShadowReport* report = nullptr;
    std::uint64_t* mark = nullptr;
};
/// Brings missed chunks into their slots: some thread blocks copy values from their store, while others rebuild keys
/// from the low-rank form.
void fetchChunks(const Launch& launch, const ShadowFetchArgs& args);

} // namespace kvscope::cuda
