#include "core/math/symmetric_eigen.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace kvscope {
namespace {

constexpr int kMaxSweeps = 60;

/// Rotates the matrix so that a[p][q] becomes zero, and rotates the rows of `vectors` with it.
void rotate(std::vector<double>& a, std::vector<double>& vectors, std::size_t n, std::size_t p, std::size_t q) {
    const double apq = a[p * n + q];
    const double theta = (a[q * n + q] - a[p * n + p]) / (2 * apq);
    const double t = (theta >= 0 ? 1.0 : -1.0) / (std::abs(theta) + std::hypot(1.0, theta));
    const double cosine = 1 / std::hypot(1.0, t), sine = t * cosine;
    for (std::size_t i = 0; i < n; ++i) {
        const double ip = a[i * n + p], iq = a[i * n + q];
        a[i * n + p] = cosine * ip - sine * iq;
        a[i * n + q] = sine * ip + cosine * iq;
    }
    for (std::size_t i = 0; i < n; ++i) {
        const double pi = a[p * n + i], qi = a[q * n + i];
        a[p * n + i] = cosine * pi - sine * qi;
        a[q * n + i] = sine * pi + cosine * qi;
        const double vp = vectors[p * n + i], vq = vectors[q * n + i];
        vectors[p * n + i] = cosine * vp - sine * vq;
        vectors[q * n + i] = sine * vp + cosine * vq;
    }
    a[p * n + q] = a[q * n + p] = 0;
}

} // namespace

SymmetricEigen symmetricEigen(std::span<const double> matrix, int size) {
    const std::size_t n = std::size_t(size);
    std::vector<double> a(matrix.begin(), matrix.end()), vectors(n * n, 0.0);
    for (std::size_t i = 0; i < n; ++i) vectors[i * n + i] = 1;
    double norm = 0;
    for (const double x : a) norm += x * x;
    // Entries beside the diagonal that are this small change an eigenvalue by less than its rounding error.
    const double negligible =
        std::sqrt(norm) * std::numeric_limits<double>::epsilon() / double(std::max<std::size_t>(n, 1));
    for (int sweep = 0; sweep < kMaxSweeps; ++sweep) {
        bool rotated = false;
        for (std::size_t p = 0; p + 1 < n; ++p)
            for (std::size_t q = p + 1; q < n; ++q)
                if (std::abs(a[p * n + q]) > negligible) {
                    rotate(a, vectors, n, p, q);
                    rotated = true;
                }
        if (!rotated) break;
    }
    std::vector<std::size_t> order(n);
    std::iota(order.begin(), order.end(), std::size_t(0));
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t x, std::size_t y) { return a[x * n + x] > a[y * n + y]; });
    SymmetricEigen result;
    for (const std::size_t i : order) {
        result.values.push_back(a[i * n + i]);
        const auto row = vectors.begin() + std::ptrdiff_t(i * n);
        const auto largest = std::max_element(row, row + std::ptrdiff_t(n),
                                              [](double x, double y) { return std::abs(x) < std::abs(y); });
        const double sign = *largest < 0 ? -1 : 1;
        for (auto value = row; value != row + std::ptrdiff_t(n); ++value) result.vectors.push_back(sign * *value);
    }
    return result;
}

} // namespace kvscope
