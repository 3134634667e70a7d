// Decode attention to short lists; see attention_cluster.cu.
#pragma once

#include "kernels/cuda/attention.h"

namespace kvscope::cuda {

/// Whether so few stages are attended that clusters, which merge in shared memory, are faster than even shares of the
/// ring (attention_ring.h), whose parts meet in memory. For shapes that ringAttentionFits.
bool isShort(const AttentionShape& shape, int rows, int maxBlocks);

void clusterAttention(const Launch& launch, const DecodeAttentionArgs& args);

} // namespace kvscope::cuda
