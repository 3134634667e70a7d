// Attention over latent keys (DeepSeek's multi-head latent attention, absorbed): a token's value is the beginning of
// its key, so that a block holds keys alone and every byte of it serves twice.
#pragma once

#include "kernels/cuda/attention.h"

namespace kvscope::cuda {

/// 512 latent and 64 rotated channels.
constexpr int kLatentDim = 576, kLatentValue = 512;
/// Shared memory that the kernels need of one thread block.
constexpr std::size_t kLatentSharedBytes = std::size_t(176) << 10;

/// As decodeAttention and prefillAttention, which call these; out is [.., queryHeads * 512]. Without token biases.
void latentDecodeAttention(const Launch& launch, const DecodeAttentionArgs& args);
void latentPrefillAttention(const Launch& launch, const PrefillAttentionArgs& args);
std::size_t latentPartialFloats(const Launch& launch, const AttentionShape& shape, int rows, int maxBlocks);

} // namespace kvscope::cuda
