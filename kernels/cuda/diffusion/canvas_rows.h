// Rows of float arrays on a canvas: the hidden states whose logits are wanted, and what dLLM-Cache takes out of the
// residual stream and adds to it. A number below 0 in a list of rows stands for no row.
#pragma once

#include "kernels/cuda/device/check.h"

#include <cstdint>

namespace kvscope::cuda {

/// Rows of `width` floats, `width` a multiple of 4.
struct CanvasRowsArgs {
    int rows = 0, width = 0;
    const float* from = nullptr;
    float* to = nullptr;
    const std::int32_t* places = nullptr; // [rows]
};
/// to[i] = from[places[i]]; 0 where there is no row.
void gatherRows(const Launch& launch, const CanvasRowsArgs& args);
/// to[places[i]] = from[i]; different rows have different places.
void scatterRows(const Launch& launch, const CanvasRowsArgs& args);
/// to[i] += from[places[i]]
void addRows(const Launch& launch, const CanvasRowsArgs& args);

} // namespace kvscope::cuda
