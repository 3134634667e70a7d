#include "profiler/report/bootstrap.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

namespace kvscope::reports {

StepBootstrap::StepBootstrap(std::size_t steps, std::uint64_t seed) : steps_(steps) {
    if (!possible()) return;
    length_ = std::size_t(std::ceil(std::cbrt(double(steps))));
    blocks_ = (steps + length_ - 1) / length_;
    std::mt19937_64 random(seed);
    starts_.resize(blocks_ * std::size_t(kResamples));
    // Not std::uniform_int_distribution: its numbers differ between standard libraries.
    for (std::uint32_t& start : starts_) start = std::uint32_t((random() >> 32) * steps_ >> 32);
}

std::vector<double> StepBootstrap::sums(std::span<const double> series) const {
    std::vector<double> result;
    if (!possible() || series.size() != steps_) return result;
    std::vector<double> before(2 * steps_ + 1, 0.0); // sums of the series and its repetition, for blocks around the end
    for (std::size_t i = 0; i < 2 * steps_; ++i) before[i + 1] = before[i] + series[i % steps_];
    result.reserve(std::size_t(kResamples));
    const std::size_t lastLength = steps_ - (blocks_ - 1) * length_; // so that every resample has as many steps
    for (std::size_t resample = 0; resample < std::size_t(kResamples); ++resample) {
        double sum = 0;
        for (std::size_t block = 0; block < blocks_; ++block) {
            const std::size_t start = starts_[resample * blocks_ + block];
            sum += before[start + (block + 1 == blocks_ ? lastLength : length_)] - before[start];
        }
        result.push_back(sum);
    }
    return result;
}

Interval StepBootstrap::mean(std::span<const double> series) const {
    std::vector<double> means = sums(series);
    for (double& value : means) value /= double(steps_);
    return middle95(std::move(means));
}

Interval middle95(std::vector<double> values) {
    constexpr double undefined = std::numeric_limits<double>::quiet_NaN();
    std::erase_if(values, [](double value) { return !std::isfinite(value); }); // 0 / 0 of a resample
    if (values.empty()) return {undefined, undefined};
    std::sort(values.begin(), values.end());
    const auto at = [&](double share) {
        const double place = share * double(values.size() - 1);
        const auto below = std::size_t(place);
        const std::size_t above = std::min(below + 1, values.size() - 1);
        return values[below] + (place - double(below)) * (values[above] - values[below]);
    };
    return {at(0.025), at(0.975)};
}

} // namespace kvscope::reports
