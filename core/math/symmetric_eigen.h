// Eigenvectors of a small symmetric matrix.
#pragma once

#include <span>
#include <vector>

namespace kvscope {

struct SymmetricEigen {
    std::vector<double> values;  // [n], largest first
    std::vector<double> vectors; // [n, n]: row i is the unit eigenvector of values[i]
};

/// Cyclic Jacobi rotations until what is left beside the diagonal is rounding. matrix: [n, n], row-major, symmetric.
/// O(n^3) per sweep, about ten sweeps: for n up to some hundreds. Signs: the largest component of a vector is positive.
SymmetricEigen symmetricEigen(std::span<const double> matrix, int n);

} // namespace kvscope
