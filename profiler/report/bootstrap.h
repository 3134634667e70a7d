// How sure a mean over steps is: a circular block bootstrap. Steps that follow each other resemble each other, so
// blocks of steps are drawn, not single ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvscope::reports {

struct Interval {
    double low = 0, high = 0; // NaN: unknown, too few steps
};

/// Draws the same steps for every series, so that ratios and differences of their sums keep what they have in common.
class StepBootstrap {
public:
    static constexpr std::size_t kFewestSteps = 10;
    static constexpr int kResamples = 1000;

    explicit StepBootstrap(std::size_t steps, std::uint64_t seed = 1);
    bool possible() const { return steps_ >= kFewestSteps; }
    /// Steps drawn at a time: the cube root of their number, rounded up.
    std::size_t blockLength() const { return length_; }
    /// [resample] sum over as many steps as were recorded; empty if not possible(). series: one value a step
    std::vector<double> sums(std::span<const double> series) const;
    /// 95 % interval of the mean of a series.
    Interval mean(std::span<const double> series) const;

private:
    std::size_t steps_, length_ = 1, blocks_ = 0;
    std::vector<std::uint32_t> starts_; // [resample][block]
};

/// The middle 95 % of the values; NaN when there are none.
Interval middle95(std::vector<double> values);

} // namespace kvscope::reports
