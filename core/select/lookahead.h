// Methods that choose a layer's blocks one layer early, so that the blocks travel while the layer before attends
// (SparDA, InfiniGen). The layer attends to the blocks that were chosen early and chooses no others. The methods differ
// in the query that stands in for the layer's own, which is in each method's file.
#pragma once

#include "base/indexed.h"
#include "core/select/selector.h"

#include <optional>
#include <span>
#include <vector>

namespace kvscope {

class LookaheadSelector : public Selector {
public:
    explicit LookaheadSelector(const SelectorContext& context);

    void prompt(const PromptPiece& piece) override;
    void promptDone(LayerId layer, RowId sequence, int tokens, std::vector<PrefetchRequest>&) override;
    void append(std::span<HeadStep> heads) override;
    void score(std::span<HeadStep> heads) override;
    void choose(std::span<HeadStep> heads) override;
    void lookAhead(std::span<HeadStep> heads, std::vector<PrefetchRequest>& requests) override;

protected:
    /// How many numbers the predicted queries of one token have, all KV heads together.
    virtual int queryWidth() const = 0;
    /// Queries for layer `target` from the normalised input of the layer before it, or from its own (layer 0). input:
    /// [n, hidden]; ropeRows: [n]; out: [n, queryWidth()].
    virtual void predict(LayerId target, bool ownInput, const float* input, int n,
                         std::span<const std::int32_t> ropeRows, float* out) = 0;
    /// Writes the scores of the windows of the item's KV head to item.windowScores. query: the predicted queries of the
    /// item's token, [queryWidth()]. Called from several threads.
    virtual void scoreWindows(HeadStep& item, const float* query) const = 0;
    /// The grid the windows lie on.
    virtual PoolingGrid grid() const { return context_.spec.grid; }

    /// Rotates [n, heads, dim] in place.
    void rotate(float* x, int n, int heads, std::span<const std::int32_t> ropeRows);

    const SelectorContext context_;

private:
    /// Whether the layer makes its query itself: the first layer has no layer before it.
    bool ownQuery(LayerId layer) const { return layer == LayerId{0}; }
    /// Scores the items' blocks by predicted queries, [items / kvHeads][queryWidth()], and chooses blocks for each
    /// item.
    void scoreBlocks(std::span<HeadStep> items, std::span<const float> queries);
    void predictRows(LayerId target, bool ownInput, std::span<const HeadStep> heads);

    Numbered<HeadStep> next_; // choices for layer nextLayer_, in the order of the present layer's items
    std::optional<LayerId> nextLayer_;
    Numbered<std::vector<float>> prompt_; // [sequence]: predicted queries of prompt tokens, for the next layer
    std::vector<float> queries_;
    Numbered<std::int32_t> ropeRows_;
};

} // namespace kvscope
