// Stages stage2 and attention, decode steps with short lists of blocks or with blocks of a format with scales: one
// cluster takes each list (attention_cluster.cu).
#pragma once

#include "kernels/cuda/attention/attention.h"

namespace kvscope::cuda {

/// Whether clusterAttention can be launched: as ringAttentionFits, with more shared memory. coded: blocks of a format
/// with scales, or their numbers
bool clusterAttentionFits(const Launch& launch, const AttentionShape& shape, bool coded);

/// Whether so few stages are attended that clusterAttention, which merges in shared memory, is faster than
/// ringAttention (attention_ring.h), which merges in memory. Only for shapes of which ringAttentionFits says true.
bool isShort(const AttentionShape& shape, int rows, int maxBlocks);

void clusterAttention(const Launch& launch, const DecodeAttentionArgs& args);

} // namespace kvscope::cuda
