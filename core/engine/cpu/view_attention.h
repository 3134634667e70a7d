// Attention of each group of query heads over the blocks that are listed for the group.
#pragma once

#include "core/select/selector.h"

#include <span>
#include <vector>

namespace kvscope {

/// The list of work is kept between calls, so that later calls reuse its memory.
class ViewAttention {
public:
    /// Everything in the context must outlive this object.
    explicit ViewAttention(const SelectorContext& context) : context_(context) {}

    /// Attends with every item's queries to item.views and writes item.rows.out.
    void run(std::span<HeadStep> work) { run(work, nullptr); }
    /// Attends as well, and writes the log-sum-exps of the queries' logits, [group], to the member `lse` of each item.
    void run(std::span<HeadStep> work, Numbered<float> HeadStep::*lse);
    /// Attends with one group's queries to each of `views` separately.
    /// @param out [views, group, valueDim]; lse [views, group]
    void runApart(const float* queries, std::span<const KvBlockView> views, float* out, float* lse);

private:
    void attend();

    const SelectorContext& context_;
    std::vector<AttentionItem> items_;
};

} // namespace kvscope
