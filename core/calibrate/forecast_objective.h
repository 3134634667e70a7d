// SparDA's objective for one query and one KV head: which scores the Forecast should have given, and how far its scores
// are off. As in SparDA's training code, the teacher scores a fine grid, from which a pooling window takes the maximum;
// the KL divergence goes over the windows of the teacher's best blocks, with all other windows in one bucket.
#pragma once

#include "base/indexed.h"
#include "core/plan/selection_spec.h"

#include <cstdint>
#include <span>
#include <vector>

namespace kvscope {

/// The teacher's distribution over the windows that `kept` lists and one bucket for all other visible windows.
struct ForecastTarget {
    std::int32_t windows = 0;       // visible windows, which are complete at the query's position
    std::vector<std::int32_t> kept; // windows, ascending
    Numbered<float> share;          // of each window of `kept`; sums with `rest`, the bucket's share, to 1
    float rest = 0;
};

/// Makes the target from exact attention. logits: [group][tokens >= position + 1] scaled products of the group's
/// queries with every key up to the position. An entry of the fine grid is the mean of two neighbouring keys. The
/// windows that begin in the `farBlocks` best blocks outside sink and local window are kept. Empty (windows 0) where no
/// window is visible.
ForecastTarget forecastTarget(const SelectionSpec& spec, std::span<const std::span<const float>> logits, int position,
                              int farBlocks);

/// Makes the target from a known distribution over the visible windows, for example the one by which the backbone
/// itself selects. share: sums to 1.
ForecastTarget targetOfShares(const SelectionSpec& spec, NumberedSpan<const float> share, int position, int farBlocks);

/// @return KL(teacher || softmax of scores), both clamped at 1e-8. `gradient` gets dKL/dscores. Both spans: [windows].
double forecastLoss(const ForecastTarget& target, std::span<const float> scores, std::span<float> gradient);

} // namespace kvscope
