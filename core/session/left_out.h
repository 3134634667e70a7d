// Leaves a block out of what a method chooses, from a step on: what would the answer be without it?
#pragma once

#include "core/select/selector.h"
#include "core/session/decode_session.h"

#include <memory>
#include <vector>

namespace kvscope {

/// A selector that chooses as `inner` does and then takes the block out of the choice, in every layer and KV head that
/// chooses blocks. What the method remembers is not touched, and neither are layers that attend to everything. A choice
/// of that block alone stays as it is. promptTokens: [sequence]. The context's spec outlives the selector.
std::unique_ptr<Selector> leavingOut(std::unique_ptr<Selector> inner, const LeftOutBlock& block,
                                     const SelectorContext& context, const std::vector<int>& promptTokens);

/// @throws Error(BadInput | Unsupported) where no such block can be left out: there is none before its step, or the
/// method does not choose blocks that the engine attends to
void checkLeftOut(const LeftOutBlock& block, const SelectionSpec& spec, const SessionOptions& options,
                  const std::vector<int>& promptTokens);

} // namespace kvscope
