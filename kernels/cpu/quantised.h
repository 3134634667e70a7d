// Inner loops over quantised weights, compiled once per instruction set (Highway). Single-threaded, as simd.h.
#pragma once

#include "kernels/kernels.h"

#include <cstdint>

namespace kvscope::cpu {

/// Columns whose inputs share a scale when they are rounded; every block is a multiple of it.
constexpr int kRoundedGroup = 32;

/// Bytes of a rounded input row, a multiple of 64.
std::int64_t roundedBytes(int cols);
/// Rounds x to 16 bits per group, with each group's scale and sums beside it; `cols` is a multiple of kRoundedGroup.
void roundInput(const float* x, int cols, std::byte* rounded);

/// y[i, r] (+)= W[r] . x_i for rows [begin, end) of quantised weights: each weight is unpacked once for up to four
/// inputs. inputs: n rounded rows, one after the other.
void quantisedRows(const LinearTarget& target, const std::byte* inputs, int n, std::int64_t begin, std::int64_t end);

/// out[i] = weight `first + i` of a row of quantised blocks, as its format defines it in float32; `first` and `n` are
/// multiples of 32.
void dequantise(DType type, const void* row, int first, int n, float* out);

} // namespace kvscope::cpu
