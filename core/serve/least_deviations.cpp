#include "core/serve/least_deviations.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace kvscope::serve {
namespace {

constexpr std::size_t kColumns = 3;
using Columns = std::array<double, kColumns>;
using ColumnUse = std::array<bool, kColumns>;

/// Sums of w x x and w x y over the samples, with columns divided by `scale`.
struct NormalEquations {
    std::array<Columns, kColumns> matrix{};
    Columns right{};

    void add(const Deviation& sample, const Columns& scale, double weight) {
        for (std::size_t i = 0; i < kColumns; ++i) {
            const double xi = weight * sample.x[i] / scale[i];
            right[i] += xi * sample.y;
            for (std::size_t j = 0; j < kColumns; ++j) matrix[i][j] += xi * sample.x[j] / scale[j];
        }
    }
    /// Eliminates column by column. @return for each column, the share of its own square that is left when the columns
    /// before it are taken out; 0 for a column that is not used
    Columns eliminate(const ColumnUse& used) {
        const std::array<Columns, kColumns> whole = matrix;
        Columns left{};
        for (std::size_t k = 0; k < kColumns; ++k) {
            if (!used[k] || whole[k][k] <= 0) continue;
            left[k] = std::max(0.0, matrix[k][k] / whole[k][k]);
            if (left[k] < 1e-12) continue;
            for (std::size_t i = k + 1; i < kColumns; ++i) {
                const double factor = matrix[i][k] / matrix[k][k];
                for (std::size_t j = k; j < kColumns; ++j) matrix[i][j] -= factor * matrix[k][j];
                right[i] -= factor * right[k];
            }
        }
        return left;
    }
    /// Solves for the used columns. The others get 0.
    Columns solve(const ColumnUse& used) {
        const Columns left = eliminate(used);
        Columns c{};
        for (std::size_t k = kColumns; k-- > 0;) {
            if (left[k] < 1e-12) continue;
            double value = right[k];
            for (std::size_t j = k + 1; j < kColumns; ++j) value -= matrix[k][j] * c[j];
            c[k] = value / matrix[k][k];
        }
        return c;
    }
};

/// The largest |x| of each column, so that bytes and single steps have one size.
Columns columnScale(const std::vector<Deviation>& samples) {
    Columns scale{};
    for (const Deviation& sample : samples)
        for (std::size_t i = 0; i < kColumns; ++i) scale[i] = std::max(scale[i], std::abs(sample.x[i]));
    for (double& each : scale)
        if (each == 0) each = 1;
    return scale;
}

/// Which columns differ from linear combinations of those before them by more than noise.
ColumnUse columnsApart(const std::vector<Deviation>& samples, const Columns& scale) {
    constexpr double kLeast = 1e-4; // of a column's square
    NormalEquations all;
    for (const Deviation& sample : samples) all.add(sample, scale, 1);
    const Columns left = all.eliminate({true, true, true});
    ColumnUse used{};
    for (std::size_t i = 0; i < kColumns; ++i) used[i] = left[i] > kLeast;
    return used;
}

} // namespace

/// Solves least squares again and again, each time with every sample weighted by 1 / its distance from the plane of the
/// last time.
std::array<double, 3> leastDeviations(const std::vector<Deviation>& samples) {
    constexpr int kTurns = 60;
    const Columns scale = columnScale(samples);
    ColumnUse used = columnsApart(samples, scale);
    double size = 0;
    for (const Deviation& sample : samples) size = std::max(size, std::abs(sample.y));
    const double least = std::max(1e-6 * size, 1e-300); // the distance of a sample that lies on the plane
    for (;;) {
        std::vector<double> weights(samples.size(), 1);
        Columns c{};
        for (int turn = 0; turn < kTurns; ++turn) {
            NormalEquations equations;
            for (std::size_t s = 0; s < samples.size(); ++s) equations.add(samples[s], scale, weights[s]);
            c = equations.solve(used);
            for (std::size_t s = 0; s < samples.size(); ++s) {
                double distance = samples[s].y;
                for (std::size_t i = 0; i < kColumns; ++i) distance -= c[i] * samples[s].x[i] / scale[i];
                weights[s] = size / std::max(least, std::abs(distance));
            }
        }
        const auto lowest = std::size_t(std::min_element(c.begin(), c.end()) - c.begin());
        if (c[lowest] >= 0) {
            for (std::size_t i = 0; i < kColumns; ++i) c[i] /= scale[i];
            return c;
        }
        used[lowest] = false;
    }
}

bool isApart(const std::vector<Deviation>& samples, std::size_t column) {
    return columnsApart(samples, columnScale(samples))[column];
}

} // namespace kvscope::serve
