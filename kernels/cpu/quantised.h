// Inner loops over quantised weights. Highway compiles them once for each instruction set. They run on the caller's
// thread, like those of simd.h.
#pragma once

#include "kernels/kernels.h"

#include <cstdint>

namespace kvscope::cpu {

/// As many neighbouring inputs share a scale when they are rounded. Every block of weights is a multiple of it.
constexpr int kRoundedGroup = 32;

/// Bytes of a rounded input row, a multiple of 64.
std::int64_t roundedBytes(int cols);
/// Rounds x to integers of 16 bits. A group's scale and sums are stored beside its integers. `cols` is a multiple of
/// kRoundedGroup.
void roundInput(const float* x, int cols, std::byte* rounded);

/// y[i, r] = W[r] . x_i for the rows [begin, end) of quantised weights, or y[i, r] += where the target accumulates. A
/// weight is unpacked once for up to four inputs. inputs: n rounded rows, one after the other.
void quantisedRows(const LinearTarget& target, const std::byte* inputs, int n, std::int64_t begin, std::int64_t end);

/// out[i] = the weight `first + i` of a row of quantised blocks in float32, as ggml defines the format. `first` and `n`
/// are multiples of 32.
void dequantise(DType type, const void* row, int first, int n, float* out);

} // namespace kvscope::cpu
