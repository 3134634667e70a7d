// ShadowKV: makes orthonormal rows from any rows, for the low-rank form of a prompt's keys.
#pragma once

#include "kernels/cuda/device/check.h"

namespace kvscope::cuda {

/// What replaces a row that, within rounding, is a sum of multiples of the rows before it: a random row, which is not
/// orthogonal to the others and which an iteration can go on with, or zeros.
enum class Lost : unsigned char { Redrawn, Zero };

/// Makes the rows of x [count, width] orthonormal, in order, with the same result as Gram-Schmidt. The whole GPU works:
/// it multiplies all rows with each other, factors the products (Cholesky) and divides the rows by the factor. Sums are
/// float64, rows are float32. products: [count, count] work space.
void orthonormalRows(const Launch& launch, float* x, int count, int width, double* products, Lost lost);

/// Numbers in [-1, 1) that look random and are the same on every run.
void drawRows(const Launch& launch, float* x, int count, int width);

} // namespace kvscope::cuda
