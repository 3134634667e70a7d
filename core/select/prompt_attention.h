// Attention of a piece of a prompt to everything before it, as arguments of the kernel.
#pragma once

#include "base/indexed.h"
#include "core/select/selector.h"

#include <vector>

namespace kvscope::select {

/// The arguments with which every token of a piece attends to the store, from the beginning of the layer's sliding
/// window on.
class PromptAttention {
public:
    explicit PromptAttention(const SelectorContext& context) : context_(context) {}

    /// @return arguments for Kernels::prefillAttention, valid until the next call. They write to the piece's
    /// `rows.out`.
    PrefillAttentionArgs of(const PromptPiece& piece);

private:
    const SelectorContext& context_;
    Numbered<std::vector<KvBlockView>> views_; // [KV head]
    std::vector<const KvBlockView*> lists_;    // [KV head]
};

} // namespace kvscope::select
