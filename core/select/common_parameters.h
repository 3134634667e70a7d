// Parameters that several methods share, declared once.
#pragma once

#include "core/select/method.h"
#include "core/select/selector.h"

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

// How a parameter follows a checkpoint that was trained with sparse attention (Parameter::scale).
/// select_blocks, where the checkpoint states it.
std::optional<std::string> trainedSelectBlocks(const SparseConfig& config);
/// 0: such a checkpoint chooses in every layer.
std::optional<std::string> noLayers(const SparseConfig& config);
/// Blocks that a query chooses freely, at least 1; 0: the checkpoint does not state how many there are in all.
int dynamicBlocks(const SparseConfig& config);
/// `value` as text, where the checkpoint states how many blocks there are in all; else nothing.
std::optional<std::string> whereBudgeted(const SparseConfig& config, int value);
/// numerator/denominator of the tokens of the dynamicBlocks(), rounded down; nothing where the checkpoint does not
/// state how many blocks there are.
std::optional<std::string> shareOfDynamicTokens(const SparseConfig& config, int numerator, int denominator);

/// What most methods with a selector of their own can do. On the CPU the engine's views hide windows, norms and the
/// form of attention from them; on a GPU their kernels know plain KV heads within their windows.
Abilities usualAbilities(Backend backend);

/// Reads the shared ones that `values` holds into a spec: block size, grid, forced blocks, dense switch, bias, prefill.
/// @throws Error(BadInput) when they contradict each other
SelectionSpec commonSpec(const ParameterValues& values, const ModelConfig& config);

/// The blocks that the budget leaves after the forced ones and `taken`. @throws Error(BadInput) where none can be left
int remainingBlocks(const ParameterValues& values, const SelectionSpec& spec, int taken);

} // namespace kvscope::select
