// SparDA's objective for one query and one KV head: what the Forecast should have scored, and how far it is off.
// (SparDA, training code: teacher on a fine grid aligned to the pooled grid by maximum, KL over the windows of the
// teacher's best blocks with everything else in one bucket.)
#pragma once

#include "core/plan/selection_spec.h"

#include <cstdint>
#include <span>
#include <vector>

namespace kvscope {

/// Teacher's distribution over the windows that `kept` lists and one bucket for all others visible.
struct ForecastTarget {
    std::int32_t windows = 0;       // visible: complete at the query's position
    std::vector<std::int32_t> kept; // ascending
    std::vector<float> share;       // of kept; sums with `rest` to 1
    float rest = 0;
};

/// logits: [group][tokens >= position + 1] scaled products of the group's queries with every key up to the position.
/// Fine entries are means of two neighbouring keys. `farBlocks` best blocks outside sink and window are kept, 4 windows
/// (as many as begin in the block) each. Empty (windows 0) where no window is visible.
ForecastTarget forecastTarget(const SelectionSpec& spec, std::span<const std::span<const float>> logits, int position,
                              int farBlocks);

/// The same from a distribution over the visible windows that is known already, e.g. the one that the backbone itself
/// selects by. share: sums to 1.
ForecastTarget targetOfShares(const SelectionSpec& spec, std::span<const float> share, int position, int farBlocks);

/// KL(teacher || softmax of scores), both clamped at 1e-8; gradient: dKL/dscores. scores, gradient: [windows].
double forecastLoss(const ForecastTarget& target, std::span<const float> scores, std::span<float> gradient);

} // namespace kvscope
