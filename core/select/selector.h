// A method at work on the CPU backend. Most methods are data (SelectionSpec) and share SpecSelector; one that needs a
// memory or a score of its own brings a Selector (MethodEntry::makeSelector).
//
// A layer of a decode step calls, in this order, with one HeadStep per (active sequence, KV head):
//   append     stage compression   the new token enters what the method remembers
//   score      stage1              blocks or tokens are scored
//   choose     pooling             fills selected, wanted and, by token, tokens
//   lookAhead  pooling             what other layers will want; travels while this layer attends
//   load       offloading          only where the method keeps its own device tier
//   attend     stage2              only where attention over the chosen blocks or tokens is not all
//   after      compression         what the attention leaves behind, e.g. accumulated mass, the next step's blocks
// Items of one sequence follow each other, KV heads ascending. Nothing is called for layers or steps that attend to
// everything, but append and prompt.
#pragma once

#include "base/indexed.h"
#include "core/model/model.h"
#include "core/model/rope.h"
#include "core/plan/abilities.h"
#include "core/plan/layer_plan.h"
#include "core/plan/selection_spec.h"
#include "core/select/head_step.h"

#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace kvscope {

/// Everything outlives the selector.
struct SelectorContext {
    Kernels& kernels;
    KvCache& cache;
    const Model& model;
    const SelectionSpec& spec;
    const LayerPlans& plans;
    Abilities abilities; // the method's, as it is used: what the selector is called for
    const AttentionRules& rules;
    KvShape shape;
    const RopeTables& rope;
    PerRow<int> maxTokens;    // [sequence]
    bool offload = true;      // false: nothing leaves the device
    bool ranksBlocks = false; // the cache policy wants to know what blocks are worth (CachePolicy::byWorth)
    int group() const { return rules.queryHeads / shape.kvHeads; }
    int sequences() const { return int(maxTokens.size()); }
    /// The extents of an array with an element for each KV head of each layer of each sequence.
    HeadExtents heads() const { return shape.heads(sequences()); }
    int maxTokensOf(RowId sequence) const { return maxTokens[sequence]; }
    IdRange<KvHeadId> kvHeads() const { return idsUpTo<KvHeadId>(shape.kvHeads); }
    QueryExtents queries(int tokens) const { return QueryExtents(tokens, shape.kvHeads, group(), shape.dim); }
    QueryExtents outputs(int tokens) const { return QueryExtents(tokens, shape.kvHeads, group(), shape.valueDim); }
    KeyExtents keys(int tokens) const { return KeyExtents(tokens, shape.kvHeads, shape.dim); }
    /// Runs `work` for every KV head of a layer, on all threads.
    template <class Work> void forEachKvHead(Work&& work) const {
        kernels.forEach(shape.kvHeads, [&](int g) { work(KvHeadId{g}); });
    }
};

/// n consecutive prompt tokens of one sequence in one layer; their keys and values are in the store already.
struct PromptPiece {
    LayerId layer{};
    RowId sequence{};
    int first = 0, n = 0;
    int promptTokens = 0; // of the whole prompt: the piece is the last one when first + n reaches it
    TokenRows rows;
};

class Selector {
public:
    virtual ~Selector() = default;

    /// Attention over a piece of a prompt where a method has its own (Abilities::promptAttention): writes rows.out.
    virtual void attendPrompt(const PromptPiece&) {}
    /// Called for every piece in every layer, after the piece's attention. Pieces of other prompts may come between
    /// those of a prompt, see prompt_states.h.
    virtual void prompt(const PromptPiece&) {}
    /// Called when a layer has read the whole prompt. May name blocks that get slots now: they were computed on the
    /// device and stay there.
    virtual void promptDone(LayerId, RowId, int /*tokens*/, std::vector<PrefetchRequest>&) {}

    virtual void append(std::span<HeadStep>) {}
    virtual void score(std::span<HeadStep>) {}
    virtual void choose(std::span<HeadStep>) = 0;
    virtual void lookAhead(std::span<HeadStep>, std::vector<PrefetchRequest>&) {}
    struct Loads {
        std::int64_t units = 0, bytes = 0;
        std::int64_t storedBytes = 0; // of the step's new keys and values, what went to the host
    };
    /// With SelectionSpec::ownDeviceTier, in place of the engine's transfers: brings to the device what was chosen, and
    /// clears `loads.hit` of what had to be loaded. The result also counts what lookAhead has sent ahead.
    virtual Loads load(std::span<HeadStep>) { return {}; }
    /// With SelectionSpec::ownDeviceTier: the bytes of a prompt that went to the host.
    virtual std::int64_t storedBytes(LayerId, int /*tokens*/) const { return 0; }
    /// @return whether the outputs are written; false: the engine attends to what was chosen
    virtual bool attend(std::span<HeadStep>) { return false; }
    virtual void after(std::span<HeadStep>, std::vector<PrefetchRequest>&) {}
};

/// Picks item.selected and item.wanted from item.queryAware and item.queryAgnostic (one score per block, or empty where
/// the budget has no such share) under the spec's budget, sliding window included.
void chooseBlocks(const SelectionSpec& spec, HeadStep& item);

/// The selector of all methods that are data.
std::unique_ptr<Selector> makeSpecSelector(const SelectorContext& context);

} // namespace kvscope
