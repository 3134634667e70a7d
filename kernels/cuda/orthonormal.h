// Orthonormal rows from any rows.
#pragma once

#include "kernels/cuda/check.h"

namespace kvscope::cuda {

enum class Lost : unsigned char { Redrawn, Zero }; // what becomes of a row that the rows before it span

/// Makes the rows of x [count, width] orthonormal, in order, as Gram-Schmidt would, but with the whole GPU: their
/// products, the Cholesky factor of these and the rows divided by it, in float64 but for the rows themselves.
/// products: [count, count] work space. A row within rounding of those before it is drawn anew, not orthogonal to them
/// (what an iteration goes on with), or zero.
void orthonormalRows(const Launch& launch, float* x, int count, int width, double* products, Lost lost);

/// Numbers in [-1, 1) that look random and are the same on every run.
void drawRows(const Launch& launch, float* x, int count, int width);

} // namespace kvscope::cuda
