// How far a prompt has been read.
#pragma once

#include "base/ids.h"

#include <compare>

namespace kvscope {

/// The piece of a prompt, in a layer, that is read next. Layers are read in order, and in each layer the pieces in
/// order.
struct PromptCursor {
    LayerId layer{};
    int piece = 0;
    auto operator<=>(const PromptCursor&) const = default;
};

} // namespace kvscope
