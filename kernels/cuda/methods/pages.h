// ArkVale, and Quest with bound=product or cuboid-mean: the digests of pages and the scores of pages by their digests.
// ArkVale: the choice of pages under a budget of resident pages, the device form of core/select/arkvale.cpp. ArkVale
// and AsyncTLS: fills the first slots with blocks that were chosen when the prompt was read.
#pragma once

#include "kernels/cuda/device/check.h"
#include "kernels/cuda/device/kv_shape.h"
#include "kernels/packed_block.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace kvscope::cuda {

/// Digests of one layer. A page is a KV block. A complete page of a KV head has a lower and an upper vector; of the
/// page that is not complete yet the keys are kept.
struct PageDigests {
    AttentionShape shape;
    bool cuboidMean = true;                   // centre -+ mean distance from it; else lowest and highest key
    __half* digests = nullptr;                // [blocks, 2, dim]; half precision, as the paper keeps them
    __nv_bfloat16* openPage = nullptr;        // [sequence*kvHeads, blockSize, dim]
    const std::int64_t* blockFirst = nullptr; // [sequence*kvHeads] first page of the head
};

/// Makes the digests of a prompt's pages. blocks: head g's blocks begin at blocks + g*headStride.
void digestPrompt(const Launch& launch, const PageDigests& pages, int sequence, int tokens, const __nv_bfloat16* blocks,
                  std::int64_t headStride);

struct PageAppendArgs {
    PageDigests pages;
    int rows = 0; // row = sequence
    const std::int32_t* position = nullptr;
    const std::uint8_t* active = nullptr;
    const __nv_bfloat16* newKey = nullptr; // [rows, kvHeads, dim] of the newest token; null: it is in `blocks`
    const __nv_bfloat16* blocks = nullptr; // resident store, heads at PageDigests::blockFirst
};
/// Adds a decode step's key to the page that is not complete, and makes the page's digest if the key completes it.
void appendToPages(const Launch& launch, const PageAppendArgs& args);

/// How the bounds of the query heads that choose together become scores: their mean, sum or largest for all of them, or
/// a score for each query head.
enum class PageScore { Mean, Sum, Largest, Each };

struct PageScoreArgs {
    PageDigests pages;
    int rows = 0, firstSequence = 0; // row r is sequence firstSequence + r
    int shared = 1;                  // KV heads that choose pages together; 1 with Largest and Each
    PageScore score = PageScore::Mean;
    int maxPages = 0;
    const std::int32_t* position = nullptr; // [rows]; null: `at` for all
    int at = 0;
    int unseen = 0;                       // so many newest tokens have not reached the digests, see SelectArgs::unseen
    const std::uint8_t* active = nullptr; // [rows] or null
    const __nv_bfloat16* q = nullptr;     // [rows, queryHeads*dim]
    float* scores = nullptr; // [rows, kvHeads/shared, maxPages] out, with Each [rows, queryHeads, maxPages]: bounds of
                             // q.k; -inf for a page that is not complete; pages past the position are not written
    std::uint64_t* mark = nullptr;
};
/// Scores the pages of every row by their digests (Quest, ArkVale).
void scorePages(const Launch& launch, const PageScoreArgs& args);

struct PageChoiceArgs {
    int rows = 0, kvHeads = 1, shared = 1, maxPages = 0, pageTokens = 32;
    const std::int32_t* position = nullptr; // [rows]; null: `at` for all
    int at = 0;
    const std::uint8_t* active = nullptr;
    const float* scores = nullptr;                     // [rows, kvHeads/shared, maxPages]
    int sink = 0, window = 1, dynamic = 0, budget = 1; // pages
    std::uint8_t* resident = nullptr;                  // [rows, kvHeads/shared, maxPages] in and out
    int capacity = 0;                                  // of the lists, at least min(budget, maxPages)
    PackedBlock* chosen = nullptr;                     // [rows, kvHeads, capacity] as cuda::SelectArgs::chosen
    std::int32_t* chosenCount = nullptr;               // [rows, kvHeads]
    float* chosenScores = nullptr;                     // [rows, kvHeads, capacity]; NaN where a page has no digest
    std::uint64_t* mark = nullptr;
};
/// Makes the `dynamic` best pages resident and takes the resident pages of the lowest scores out until the budget is
/// kept. Every page that is resident then is chosen.
void choosePages(const Launch& launch, const PageChoiceArgs& args);

struct PageSeedArgs {
    AttentionShape shape;
    int sequence = 0, tokens = 0, slots = 0, capacity = 0;
    const __nv_bfloat16* blocks = nullptr; // of the prompt; head g's begin at blocks + g*headStride
    std::int64_t headStride = 0;
    const PackedBlock* chosen = nullptr; // [kvHeads, capacity]
    const std::int32_t* chosenCount = nullptr;
    __nv_bfloat16* pool = nullptr; // [sequence*kvHeads, slots] blocks
    std::int32_t *map = nullptr, *lastUse = nullptr;
};
/// Copies the chosen full pages of a prompt into slots. placeTail copies the page that is not complete into slot 0.
void seedSlots(const Launch& launch, const PageSeedArgs& args);

} // namespace kvscope::cuda
