// Eigenvectors of a small symmetric matrix.
#pragma once

#include <span>
#include <vector>

namespace kvscope {

struct SymmetricEigen {
    std::vector<double> values;  // [n], largest first
    std::vector<double> vectors; // [n, n]: row i is the unit eigenvector of values[i]
};

/// The eigenvectors by cyclic Jacobi rotations, until only rounding errors are left beside the diagonal. matrix: [n,
/// n], row-major, symmetric. A sweep takes O(n^3) and about ten sweeps are needed, so n may be some hundreds. The
/// largest component of every eigenvector is positive.
SymmetricEigen symmetricEigen(std::span<const double> matrix, int n);

} // namespace kvscope
