#include "core/select/symmetric_eigen.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace kvscope::select {

Eigen symmetricEigen(std::vector<double> a, int n) {
    const auto size = std::size_t(n);
    std::vector<double> v(size * size, 0.0); // rows become the vectors
    for (std::size_t i = 0; i < size; ++i) v[i * size + i] = 1;
    double whole = 0;
    for (const double x : a) whole += x * x;
    for (int sweep = 0; sweep < 60; ++sweep) {
        double off = 0;
        for (std::size_t p = 0; p < size; ++p)
            for (std::size_t q = p + 1; q < size; ++q) off += 2 * a[p * size + q] * a[p * size + q];
        if (off <= 1e-24 * whole) break;
        for (std::size_t p = 0; p < size; ++p)
            for (std::size_t q = p + 1; q < size; ++q) {
                const double apq = a[p * size + q];
                if (apq == 0) continue;
                // The rotation that makes a[p][q] zero.
                const double theta = (a[q * size + q] - a[p * size + p]) / (2 * apq);
                const double t = (theta < 0 ? -1 : 1) / (std::abs(theta) + std::sqrt(theta * theta + 1));
                const double c = 1 / std::sqrt(t * t + 1), s = t * c;
                const auto turn = [&](std::vector<double>& m) { // rows p and q
                    double *x = m.data() + p * size, *y = m.data() + q * size;
                    for (std::size_t i = 0; i < size; ++i) {
                        const double xi = x[i], yi = y[i];
                        x[i] = c * xi - s * yi;
                        y[i] = s * xi + c * yi;
                    }
                };
                turn(a);
                for (std::size_t i = 0; i < size; ++i) { // columns p and q
                    const double x = a[i * size + p], y = a[i * size + q];
                    a[i * size + p] = c * x - s * y;
                    a[i * size + q] = s * x + c * y;
                }
                turn(v);
            }
    }
    std::vector<std::size_t> order(size);
    std::iota(order.begin(), order.end(), std::size_t(0));
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t i, std::size_t j) { return a[i * size + i] > a[j * size + j]; });
    Eigen result;
    for (const std::size_t i : order) {
        result.values.push_back(a[i * size + i]);
        result.vectors.insert(result.vectors.end(), v.begin() + std::ptrdiff_t(i * size),
                              v.begin() + std::ptrdiff_t((i + 1) * size));
    }
    return result;
}

} // namespace kvscope::select
