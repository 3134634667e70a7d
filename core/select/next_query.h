// InfiniGen's guess of a layer's query one layer early: the layer's own query projection of the input of the layer
// before it. The residual stream changes little from one layer to the next.
#pragma once

#include "core/select/selector.h"

#include <cstdint>
#include <span>
#include <vector>

namespace kvscope::select {

/// Rotates [n, heads, dim] in place; ropeRows: [n] of the session's tables.
void rotateRows(const SelectorContext& context, float* x, int n, int heads, std::span<const std::int32_t> ropeRows);

/// Rotated queries [n, queryHeads, dim] of layer `target` from inputs [n, hidden]. Plain heads only.
void nextQueries(const SelectorContext& context, LayerId target, const float* input, int n,
                 std::span<const std::int32_t> ropeRows, float* out);

/// The rows of the rotary tables for the tokens of a step's items, [items / kvHeads].
void ropeRowsOf(const SelectorContext& context, std::span<const HeadStep> heads, std::vector<std::int32_t>& rows);

/// Computes the same queries for the tokens of a step's items, whose inputs are consecutive rows.
void nextQueries(const SelectorContext& context, LayerId target, std::span<const HeadStep> heads,
                 std::vector<float>& out);

/// Sets `item` up for the token of `now` in layer `target`, whose index does not have that token yet.
void placeAhead(const SelectorContext& context, LayerId target, const HeadStep& now, HeadStep& item);

} // namespace kvscope::select
