// Attention of each query group over the blocks that are listed for it.
#pragma once

#include "core/select/selector.h"

#include <span>
#include <vector>

namespace kvscope {

/// Keeps its list of work between calls.
class ViewAttention {
public:
    /// Everything of the context outlives the object.
    explicit ViewAttention(const SelectorContext& context) : context_(context) {}

    /// Every item's queries over item.views, into item.out.
    void run(std::span<HeadStep> work) { run(work, nullptr); }
    /// Likewise; also the log-sum-exp of each query's logits, [group], into the member `lse` of each item.
    void run(std::span<HeadStep> work, std::vector<float> HeadStep::*lse);
    /// One group's queries over each of `views` alone.
    /// @param out [views, group, valueDim]; lse [views, group]
    void runApart(const float* queries, std::span<const KvBlockView> views, float* out, float* lse);

private:
    void attend();

    const SelectorContext& context_;
    std::vector<AttentionItem> items_;
};

} // namespace kvscope
