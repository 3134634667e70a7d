// Stages stage2 and attention of models with latent attention (DeepSeek's multi-head latent attention, absorbed). A
// token's value is the beginning of its key, so a block holds keys alone, and the kernel uses each byte it has read
// both as key and as value.
#pragma once

#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/device/latent_shape.h"

namespace kvscope::cuda {

/// Shared memory that the kernels need of one thread block.
constexpr std::size_t kLatentSharedBytes = std::size_t(176) << 10;

/// decodeAttention and prefillAttention call these for latent keys. out is [.., queryHeads * value]. Token biases and
/// windows are not supported. Methods that list single tokens call latentDecodeAttention with blocks of one token; no
/// other attention kernel takes such blocks.
void latentDecodeAttention(const Launch& launch, const DecodeAttentionArgs& args);
void latentPrefillAttention(const Launch& launch, const PrefillAttentionArgs& args);
std::size_t latentPartialFloats(const Launch& launch, const AttentionShape& shape, int rows, int maxBlocks);

} // namespace kvscope::cuda
