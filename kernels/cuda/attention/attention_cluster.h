// Decode attention to short lists; see attention_cluster.cu.
#pragma once

#include "kernels/cuda/attention/attention.h"

namespace kvscope::cuda {

/// Whether so few stages are attended that clusterAttention, which merges in shared memory, is faster than
/// ringAttention (attention_ring.h), which merges in memory. Only for shapes of which ringAttentionFits says true.
bool isShort(const AttentionShape& shape, int rows, int maxBlocks);

void clusterAttention(const Launch& launch, const DecodeAttentionArgs& args);

} // namespace kvscope::cuda
