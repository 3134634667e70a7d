// Eigenvectors of a symmetric matrix, for the low-rank keys of ShadowKV: small (heads x channels) and once per prompt.
#pragma once

#include <vector>

namespace kvscope::select {

struct Eigen {
    std::vector<double> values;  // [n], largest first
    std::vector<double> vectors; // [n, n], one in each row, orthonormal
};

/// Cyclic Jacobi rotations until what is off the diagonal is below 1e-12 of the whole. matrix: [n, n], symmetric.
Eigen symmetricEigen(std::vector<double> matrix, int n);

} // namespace kvscope::select
