// One query of one KV head on its way through a layer: what a selector is given and what it fills in.
#pragma once

#include "core/kv/kv_cache.h"
#include "kernels/kernels.h"
#include "kernels/selection.h"

#include <cstdint>
#include <vector>

namespace kvscope {

/// Projections of n tokens, one row each. Queries and keys are rotated.
struct TokenRows {
    const float* q = nullptr;     // [n, queryHeads*dim]
    const float* k = nullptr;     // [n, kvHeads*dim]
    const float* v = nullptr;     // [n, kvHeads*dim]; null when values are the beginning of the keys
    const float* score = nullptr; // [n, kvHeads] eviction scores; null without an eviction head
    float* out = nullptr;         // [n, queryHeads*valueDim] attention output
    // Null unless the selector asks for them (Abilities).
    const float *plainQ = nullptr, *plainK = nullptr; // q and k before rotation
    const float* input = nullptr;                     // [n, hidden] the layer's normalised input
};

/// What the model asks of the attention, whatever the method.
struct AttentionRules {
    int queryHeads = 0;
    float scale = 1;          // logits = scale * q.k
    std::vector<int> windows; // [layer] tokens a query sees, itself included, 0: all; empty: all layers see all
    int windowOf(int layer) const { return windows.empty() ? 0 : windows[std::size_t(layer)]; }
};

/// One (active sequence, KV head) of a decode step, or one prompt token's KV head of a sparse prefill.
struct HeadStep {
    // Given.
    KvHead* head = nullptr;
    int layer = 0, sequence = 0, kvHead = 0, position = 0;
    int firstToken = 0, firstBlock = 0;              // the oldest a sliding window shows
    const float *q = nullptr, *plainQ = nullptr;     // [group, dim]
    const float *key = nullptr, *plainKey = nullptr; // [dim]
    const float *value = nullptr, *input = nullptr;  // [valueDim], [hidden]
    float score = 0;                                 // of the eviction head
    float* out = nullptr;                            // [group, valueDim]
    bool dense = false;                              // attends to everything: nothing is chosen
    bool ofPrompt = false;                           // a prompt token of a sparse prefill

    // The choice, made by the selector.
    std::vector<SelectedBlock> selected; // attended blocks, ascending
    std::vector<std::int32_t> wanted;    // blocks the device tier must hold, ascending: all of `selected`, or more
    bool byToken = false;                // only `tokens` of the selected blocks are attended
    std::vector<std::int32_t> tokens;    // positions, ascending
    int stale = -1; // blocks this query would have chosen that are not on the device yet; -1: the method does not lag

    // Scratch that keeps its memory from step to step, free for the selector.
    std::vector<float> windowScores, queryAware, queryAgnostic;
    std::vector<std::int32_t> order;

    // The executor's.
    std::vector<std::uint8_t> hit; // of `wanted`
    std::vector<CopyItem> copies;
    std::vector<KvBlockView> views; // what is attended
    std::vector<float> lse, fullLse;
    AlignedBuffer<float> gathered; // the tokens of a choice by token, as blocks
    int loads = 0;
    int predicted = -1, used = 0, wasted = 0, late = 0; // of blocks that were fetched ahead; -1: none were
};

/// Blocks asked for before the attention that needs them.
struct PrefetchRequest {
    int layer = 0, sequence = 0, kvHead = 0;
    std::vector<std::int32_t> blocks; // everything that attention will want, ascending
    std::int64_t bytes = 0;           // in their place, where the method keeps its own device tier
};

} // namespace kvscope
