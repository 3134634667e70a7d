// Stages stage2 and attention, decode steps with short lists of blocks: one cluster takes each list
// (attention_cluster.cu).
#pragma once

#include "kernels/cuda/attention/attention.h"

namespace kvscope::cuda {

/// Whether so few stages are attended that clusterAttention, which merges in shared memory, is faster than
/// ringAttention (attention_ring.h), which merges in memory. Only for shapes of which ringAttentionFits says true.
bool isShort(const AttentionShape& shape, int rows, int maxBlocks);

/// Attends as decodeAttention does, for shapes of which ringAttentionFits says true. Faster than ringAttention where
/// isShort says true.
void clusterAttention(const Launch& launch, const DecodeAttentionArgs& args);

} // namespace kvscope::cuda
