// Quest's bound as matrix products (AsyncTLS): max(q*low, q*high) = relu(q)*high + min(q, 0)*low, so that a group's sum
// is two products with the summed halves of its queries.
#pragma once

#include <span>

namespace kvscope::select {

/// scores[b] = sum over the group and the channels of max(q*low_b, q*high_b). q: [group, dim]; ranges: [blocks, 2,
/// dim], lowest and highest key, as BlockIndex keeps them; halves: scratch [2, dim].
void rangeProducts(const float* q, int group, int dim, const float* ranges, std::span<float> halves,
                   std::span<float> scores);

} // namespace kvscope::select
