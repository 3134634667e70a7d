// What a method decides, as data: how blocks are scored, the budgets and the bias. Shared primitives (kernels/) execute
// it, so one description serves every device.
#pragma once

#include "kernels/kernels.h"
#include "kernels/selection.h"

#include <algorithm>
#include <cstdint>

namespace kvscope {

/// How blocks are scored for the query at hand.
enum class QueryScore : std::uint8_t {
    None,
    PooledSoftmax, // group score over mean-pooled keys, max-pooled to blocks (InfLLM-V2, NOSA)
    RangeBound     // upper bound from per-channel key ranges (Quest)
};

/// How blocks are scored independently of the query.
enum class AgnosticScore : std::uint8_t {
    None,
    Eviction,   // mean-pooled eviction-head scores (ED-DMA, S-DMA)
    ExpEviction // their exponentials, mean-pooled (DMA of NOSA's Table 7)
};

/// What the attention adds to a logit. Zero leaves plain attention.
struct AttentionBias {
    float scale = 0.f; // logits = q.k/sqrt(d) + scale * s
};

struct SelectionSpec {
    bool dense = false; // attend to everything, keep everything on the device
    int blockSize = 64;
    PoolingGrid grid;
    QueryScore queryScore = QueryScore::None;
    AgnosticScore agnosticScore = AgnosticScore::None;
    GroupReduce rangeReduce = GroupReduce::Sum;
    SelectionBudget budget;
    AttentionBias bias;
    int denseBelowTokens = 0;         // dense attention while fewer tokens are cached
    int denseLayers = 0;              // the first layers attend to everything (Quest); readers ask LayerPlans
    bool denseWithoutIndexer = false; // layers without a block indexer of their own attend to everything
    bool sparsePrefill = false;
    bool keepsLayer0 = false;      // layer 0 stays on the device whole, although it chooses (SparDA)
    int deviceSlots = 0;           // device slots per KV head the method itself asks for; 0: as many as the budget
    bool ownDeviceTier = false;    // the selector keeps what is on the device (Selector::load)
    bool rewritesKeys = false;     // on GPUs the tiers' blocks may hold other keys than the model's (InfLLM)
    bool givesBlockScores = false; // the selector scores blocks, and the common rule chooses by these scores alone
    bool ranksBlocks = false;      // the selector says what resident blocks are worth (CachePolicy::byWorth)
    int spareSlots = 0;            // slots a step may need beyond the budget (a lagging method's newest block)
    int traceUnit = 0;             // tokens of one selected unit in the trace; 0: blockSize
    int traceBudget = 0; // units a KV head attends at most; 0: budgetBlocks(), -1: grows with what is generated

    /// Whether blocks in the tiers can lack the model's keys. The oracle on a GPU then keeps the keys of all blocks.
    bool tiersLackKeys() const { return ownDeviceTier || rewritesKeys; }
    int unitTokens() const { return traceUnit > 0 ? traceUnit : blockSize; }
    /// Layers, of so many, that attend to everything: the first ones.
    int denseOf(int layers) const { return dense ? layers : std::min(denseLayers, layers); }
    int budgetUnits() const { return traceBudget > 0 ? traceBudget : traceBudget < 0 ? 0 : budgetBlocks(); }

    int budgetBlocks() const {
        return budget.sink + budget.window + (budget.windowAddsCurrent ? 1 : 0) + budget.queryAware +
               budget.queryAgnostic;
    }
    /// Device slots per KV head with which every step works, however long the sequence is. A sequence with fewer blocks
    /// needs only one slot for each.
    int neededSlots() const { return std::max(budgetBlocks() + spareSlots, grid.blocks(denseBelowTokens)); }
};

} // namespace kvscope
