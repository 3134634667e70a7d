// Where the reading of a prompt stands.
#pragma once

#include <compare>

namespace kvscope {

/// A piece of a layer. Layers come one after the other, and in a layer the pieces of the prompt.
struct PromptCursor {
    int layer = 0, piece = 0;
    auto operator<=>(const PromptCursor&) const = default;
};

} // namespace kvscope
