// One query of one KV head on its way through a layer: what a selector is given and what it fills in.
#pragma once

#include "base/extents.h"
#include "base/indexed.h"
#include "core/kv/kv_cache.h"
#include "kernels/kernels.h"
#include "kernels/selection.h"

#include <algorithm>
#include <cstdint>
#include <span>
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
    const float* queryLatent = nullptr; // [n, queryRank] before its norm; null where queries have no latent
};

/// Queries as TokenRows has them: [tokens, KV heads, query heads of a KV head's group, channels].
using QueryExtents = Extents<int, KvHeadId, int, int>;
/// Keys likewise: [tokens, KV heads, channels].
using KeyExtents = Extents<int, KvHeadId, int>;

/// What the model asks of the attention, with any method.
struct AttentionRules {
    int queryHeads = 0;
    float scale = 1;          // logits = scale * q.k
    std::vector<int> windows; // [layer] tokens a query sees, itself included, 0: all; empty: all layers see all
    int windowOf(LayerId layer) const { return windows.empty() ? 0 : windows[index(layer)]; }
    /// The oldest token that a query at `position` sees.
    int firstTokenOf(LayerId layer, int position) const {
        const int window = windowOf(layer);
        return window > 0 ? std::max(0, position + 1 - window) : 0;
    }
};

/// The part of TokenRows that belongs to one query of one KV head.
struct HeadRows {
    const float* q = nullptr;                           // [group, dim]
    const float* key = nullptr;                         // [dim]
    const float* value = nullptr;                       // [valueDim]
    float score = 0;                                    // of the eviction head
    float* out = nullptr;                               // [group, valueDim]
    const float *plainQ = nullptr, *plainKey = nullptr; // as q and key
    const float* input = nullptr;                       // [hidden]
    const float* queryLatent = nullptr;                 // [queryRank]
};

/// Which of the blocks in HeadStep::wanted had to be brought to the device.
struct HeadLoads {
    Numbered<std::uint8_t> hit; // of `wanted`: 1: it was there
    std::vector<CopyItem> copies;
    int count = 0; // blocks
};

/// How well the blocks that were fetched ahead were foreseen.
struct FetchedAhead {
    int predicted = -1, used = 0, wasted = 0, late = 0; // blocks; -1: none were fetched ahead
};

/// One (active sequence, KV head) of a decode step, or one prompt token's KV head of a sparse prefill.
struct HeadStep {
    // Given.
    KvHead* head = nullptr;
    LayerId layer{};
    RowId sequence{};
    KvHeadId kvHead{};
    int position = 0;
    int firstToken = 0, firstBlock = 0; // the oldest a sliding window shows
    HeadRows rows;
    bool dense = false;    // attends to everything: nothing is chosen
    bool ofPrompt = false; // a prompt token of a sparse prefill

    // The choice, made by the selector.
    std::vector<SelectedBlock> selected; // attended blocks, ascending
    std::vector<std::int32_t> wanted;    // blocks the device tier must hold, ascending: all of `selected`, or more
    bool byToken = false;                // only `tokens` of the selected blocks are attended
    std::vector<std::int32_t> tokens;    // positions, ascending
    int stale = -1; // blocks this query would have chosen that are not on the device yet; -1: the method does not lag

    // Scratch that keeps its memory from step to step, free for the selector.
    Numbered<float> windowScores, queryAware, queryAgnostic;
    std::vector<std::int32_t> order;

    // Filled by the engine.
    HeadLoads loads;
    FetchedAhead ahead;
    std::vector<KvBlockView> views; // what is attended
    Numbered<float> lse, fullLse;
    AlignedBuffer<float> gathered; // the tokens of a choice by token, as blocks
};

/// Runs `work` for every item, on all threads.
template <class Work> void forEachItem(Kernels& kernels, std::span<HeadStep> items, Work&& work) {
    const NumberedSpan<HeadStep> all(items);
    kernels.forEach(all.count(), [&](int i) { work(all[i]); });
}
/// Runs `work` for every `shared` items that follow each other, on all threads.
template <class Work> void forEachGroup(Kernels& kernels, std::span<HeadStep> items, int shared, Work&& work) {
    const NumberedSpan<HeadStep> all(items);
    kernels.forEach(all.count() / shared, [&](int i) { work(all.part(i * shared, shared)); });
}

/// Blocks asked for before the attention that needs them.
struct PrefetchRequest {
    LayerId layer{};
    RowId sequence{};
    KvHeadId kvHead{};
    std::vector<std::int32_t> blocks; // everything that attention will want, ascending
    std::int64_t bytes = 0;           // what travels in place of blocks, where the method keeps its own device tier
};

} // namespace kvscope
