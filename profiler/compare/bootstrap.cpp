#include "profiler/compare/bootstrap.h"
#include "base/indexed.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>

namespace kvscope {
namespace {

std::uint64_t splitmix64(std::uint64_t& state) {
    std::uint64_t z = (state += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

/// P(|T| <= t) of Student's t with a whole number of degrees: Abramowitz and Stegun 26.7.3 and 26.7.4.
double studentProbability(double t, int degrees) {
    const double angle = std::atan(t / std::sqrt(double(degrees))), c = std::cos(angle), s = std::sin(angle);
    if (degrees % 2 == 1) {
        double sum = 0, term = c;
        for (int k = 3; k <= degrees; k += 2) {
            sum += term;
            term *= c * c * double(k - 1) / double(k);
        }
        return 2 / std::numbers::pi * (angle + s * sum);
    }
    double sum = 0, term = 1;
    for (int k = 2; k <= degrees; k += 2) {
        sum += term;
        term *= c * c * double(k - 1) / double(k);
    }
    return s * sum;
}

/// The block length by Politis and White; 1 where neighbours are independent.
double automaticBlockLength(std::span<const double> series) {
    const auto n = series.size();
    const double mean = std::accumulate(series.begin(), series.end(), 0.) / double(n);
    const auto covariance = [&](std::size_t lag) {
        double sum = 0;
        for (std::size_t i = 0; i + lag < n; ++i) sum += (series[i] - mean) * (series[i + lag] - mean);
        return sum / double(n);
    };
    const double variance = covariance(0);
    if (!(variance > 0)) return 1;
    // Finds the lag m beyond which correlations are those of chance: several lags in a row stay below the limit.
    const auto inARow = std::size_t(std::max(5., std::ceil(std::sqrt(std::log10(double(n))))));
    const auto most = std::min(n - 1, std::size_t(std::ceil(std::sqrt(double(n)))) + inARow);
    const double limit = 2 * std::sqrt(std::log10(double(n)) / double(n));
    std::vector<double> covariances{variance};
    std::size_t lastAbove = 0;
    for (std::size_t lag = 1; lag <= most && lag - lastAbove <= inARow; ++lag) {
        covariances.push_back(covariance(lag));
        if (std::abs(covariances.back()) > limit * variance) lastAbove = lag;
    }
    if (lastAbove == 0) return 1;
    const auto bandwidth = std::min(2 * lastAbove, n - 1);
    double spectrum = variance, slope = 0; // at frequency 0, through a flat-top window
    for (std::size_t lag = 1; lag <= bandwidth; ++lag) {
        const double share = double(lag) / double(bandwidth), weight = share <= 0.5 ? 1 : 2 * (1 - share);
        const double c = lag < covariances.size() ? covariances[lag] : covariance(lag);
        spectrum += 2 * weight * c;
        slope += 2 * weight * double(lag) * c;
    }
    const double d = 4. / 3 * spectrum * spectrum;
    return d > 0 ? std::max(1., std::cbrt(2 * slope * slope / d * double(n))) : double(n);
}

} // namespace

double medianOf(std::span<double> values) {
    const auto middle = values.begin() + std::ptrdiff_t(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    if (values.size() % 2 == 1) return *middle;
    return (*std::max_element(values.begin(), middle) + *middle) / 2;
}

int bootstrapBlockLength(std::span<const double> series) {
    const auto n = double(series.size());
    if (n < 10) return 1;
    return int(std::min(std::max(2 * automaticBlockLength(series), n / 16), n / 5));
}

BlockBootstrap::BlockBootstrap(std::size_t length, int blockLength, double confidence, std::uint64_t seed,
                               int resamples)
    : length_(length), blockLength_(std::clamp<std::size_t>(std::size_t(blockLength), 1, length)),
      blocks_((length + blockLength_ - 1) / blockLength_), places_(resamples, int(blocks_)), confidence_(confidence),
      resamples_(resamples), starts_(places_.size()) {
    for (std::uint32_t& start : starts_) start = std::uint32_t(splitmix64(seed) % length);
    const double blocks = double(length_) / double(blockLength_);
    constexpr int kAlmostNormal = 100'000;
    if (blocks >= 2)
        widening_ = studentQuantile(confidence, int(blocks) - 1) / studentQuantile(confidence, kAlmostNormal) *
                    std::sqrt(blocks / (blocks - 1));
}

Interval BlockBootstrap::percentiles(double value, std::vector<double>& statistics) const {
    std::sort(statistics.begin(), statistics.end());
    const auto at = [&](double share) {
        const double place = share * double(statistics.size() - 1);
        const auto below = std::size_t(place);
        const std::size_t above = std::min(below + 1, statistics.size() - 1);
        return std::lerp(statistics[below], statistics[above], place - double(below));
    };
    const double tail = (1 - confidence_) / 2;
    return {value, value - widening_ * (value - at(tail)), value + widening_ * (at(1 - tail) - value)};
}

Interval BlockBootstrap::median(std::span<const double> series) const {
    std::vector<double> values(series.begin(), series.end()), statistics;
    const double value = medianOf(values);
    statistics.reserve(std::size_t(resamples_));
    const RangeRanks ranks(series);
    for (int r = 0; r < resamples_; ++r) {
        const auto pieces = piecesOf(r);
        const double middle = ranks.smallest(length_ / 2, pieces);
        statistics.push_back(length_ % 2 == 1 ? middle : (ranks.smallest(length_ / 2 - 1, pieces) + middle) / 2);
    }
    return percentiles(value, statistics);
}

std::vector<RangeRanks::Piece> BlockBootstrap::piecesOf(int resample) const {
    std::vector<RangeRanks::Piece> pieces;
    std::size_t left = length_;
    for (const std::uint32_t start : starts(resample)) {
        const std::size_t taken = std::min(left, blockLength_), end = std::min(start + taken, length_);
        pieces.push_back({start, std::uint32_t(end)});
        if (const std::size_t around = start + taken - end; around > 0) pieces.push_back({0, std::uint32_t(around)});
        left -= taken;
    }
    return pieces;
}

std::vector<double> BlockBootstrap::resampledSums(std::span<const double> series) const {
    std::vector<double> before(2 * length_ + 1, 0.); // prefix sums over the series twice, because blocks wrap around
    for (std::size_t i = 0; i < 2 * length_; ++i) before[i + 1] = before[i] + series[i % length_];
    Numbered<double> sums(resamples_, 0.);
    for (int r = 0; r < resamples_; ++r) {
        std::size_t left = length_;
        for (const std::uint32_t start : starts(r)) {
            const std::size_t taken = std::min(left, blockLength_);
            sums[r] += before[start + taken] - before[start];
            left -= taken;
        }
    }
    return sums;
}

Interval BlockBootstrap::mean(std::span<const double> series) const {
    std::vector<double> sums = resampledSums(series);
    for (double& sum : sums) sum /= double(length_);
    return percentiles(std::accumulate(series.begin(), series.end(), 0.) / double(length_), sums);
}

Interval BlockBootstrap::ratioOfSums(std::span<const double> above, std::span<const double> below) const {
    std::vector<double> ratios = resampledSums(above);
    const std::vector<double> divisors = resampledSums(below);
    for (std::size_t r = 0; r < ratios.size(); ++r) ratios[r] /= divisors[r];
    return percentiles(
        std::accumulate(above.begin(), above.end(), 0.) / std::accumulate(below.begin(), below.end(), 0.), ratios);
}

double studentQuantile(double confidence, int degrees) {
    double low = 0, high = 1;
    while (studentProbability(high, degrees) < confidence) high *= 2;
    for (int i = 0; i < 100; ++i) {
        const double middle = (low + high) / 2;
        (studentProbability(middle, degrees) < confidence ? low : high) = middle;
    }
    return (low + high) / 2;
}

} // namespace kvscope
