// Parameters that several methods share, declared once.
#pragma once

#include "core/select/method.h"

namespace kvscope::select {

Parameter blockSize();
Parameter sinkBlocks();
Parameter windowBlocks(int defaultBlocks);
Parameter windowAddsCurrent();
Parameter totalBlocks();
Parameter kernelSize();
Parameter kernelStride();
Parameter denseLen(int defaultTokens);
Parameter bias();
Parameter biasScale();
Parameter prefill();
Parameter labelBits();

/// Reads the shared ones that `values` holds into a spec: block size, grid, forced blocks, dense switch, bias, prefill.
/// @throws Error(BadInput) when they contradict each other
SelectionSpec commonSpec(const ParameterValues& values, const ModelConfig& config);

/// What the budget leaves after the forced blocks and `taken`. @throws Error(BadInput) when nothing can be left
int remainingBlocks(const ParameterValues& values, const SelectionSpec& spec, int taken);

} // namespace kvscope::select
