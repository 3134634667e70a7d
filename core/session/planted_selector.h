// Plants selections on the CPU backend: a method keeps its index and computes its scores, but blocks are chosen by
// scores that are drawn.
#pragma once

#include "core/plan/planted_selections.h"
#include "core/select/selector.h"

#include <memory>
#include <vector>

namespace kvscope {

/// A selector that does all that `inner` does but choose in decode steps, where it takes the best blocks by the
/// streams' scores. For one sequence. streams: [layer]. The context's spec outlives the selector.
std::unique_ptr<Selector> plantingSelections(std::unique_ptr<Selector> inner, std::vector<PlantedStream> streams,
                                             const SelectorContext& context);

} // namespace kvscope
