// Stages stage2 and attention, decode steps over blocks of a format with scales, whether slots hold their codes or a
// layer holds the numbers that come back: two thread blocks for each multiprocessor read lists through rings of stages
// (attention_coded.cu).
#pragma once

#include "kernels/cuda/attention/attention.h"

namespace kvscope::cuda {

/// Whether codedAttention can be launched: the GPU has bulk copies and enough shared memory, and a stage of 64 tokens
/// holds whole blocks.
bool codedAttentionFits(const Launch& launch, const AttentionShape& shape);

/// Needs as much of SplitScratch as ringAttention (attention_ring.h).
void codedAttention(const Launch& launch, const DecodeAttentionArgs& args);

} // namespace kvscope::cuda
