// Stages stage2 and attention, decode steps on Hopper and later: streams whole KV blocks through shared memory
// (attention_ring.cu).
#pragma once

#include "kernels/cuda/attention/attention.h"

namespace kvscope::cuda {

/// Whether ringAttention can be launched: on the Hopper generation or later, with blocks whose size divides 64 tokens.
bool ringAttentionFits(const Launch& launch, const AttentionShape& shape);

/// Floats of `partial` that a launch may need.
std::size_t ringPartialFloats(const Launch& launch, const AttentionShape& shape, int rows, int maxBlocks);

/// Attends as decodeAttention does, for shapes of which ringAttentionFits says true. SplitScratch holds
/// ringPartialFloats().
void ringAttention(const Launch& launch, const DecodeAttentionArgs& args);

} // namespace kvscope::cuda
