// InfiniGen's guess of a query before its layer runs: that layer's own projection of the input that the layer before it
// has. Residual streams change little from one layer to the next.
#pragma once

#include "core/select/selector.h"

#include <cstdint>
#include <span>

namespace kvscope::select {

/// Rotates [n, heads, dim] in place; ropeRows: [n] of the session's tables.
void rotateRows(const SelectorContext& context, float* x, int n, int heads, std::span<const std::int32_t> ropeRows);

/// Rotated queries [n, queryHeads, dim] of layer `target` from inputs [n, hidden]. Plain heads only.
void nextQueries(const SelectorContext& context, int target, const float* input, int n,
                 std::span<const std::int32_t> ropeRows, float* out);

} // namespace kvscope::select
