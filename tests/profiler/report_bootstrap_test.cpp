// Intervals against what statistics says of series whose truth is known.
#include "profiler/report/bootstrap.h"

#include <algorithm>
#include <cmath>
#include <gtest/gtest.h>
#include <numeric>
#include <random>

namespace kvscope::reports {
namespace {

std::vector<double> noise(std::size_t count, std::uint64_t seed) {
    std::mt19937_64 random(seed);
    std::normal_distribution<double> normal(100, 10);
    std::vector<double> values(count);
    for (double& value : values) value = normal(random);
    return values;
}

double meanOf(const std::vector<double>& values) {
    return std::accumulate(values.begin(), values.end(), 0.0) / double(values.size());
}

TEST(StepBootstrap, IndependentStepsGiveTheTextbookInterval) {
    const std::vector<double> values = noise(1000, 3);
    const Interval interval = StepBootstrap(values.size()).mean(values);
    const double half = 1.96 * 10 / std::sqrt(1000.0); // of the known deviation
    // The bootstrap sees this sample (its deviation is within 5 % of 10) in blocks of 10 and 1000 times: 15 %.
    EXPECT_NEAR((interval.high - interval.low) / 2, half, 0.15 * half);
    EXPECT_LT(interval.low, meanOf(values));
    EXPECT_GT(interval.high, meanOf(values));
}

TEST(StepBootstrap, StepsThatResembleTheirNeighboursAreLessSure) {
    const std::vector<double> fresh = noise(1000, 5);
    std::vector<double> slow(fresh.size());
    for (std::size_t i = 0; i < slow.size(); ++i) slow[i] = fresh[i / 10]; // runs of ten equal values: 100 to average
    const StepBootstrap bootstrap(slow.size());
    const auto width = [&](const std::vector<double>& values) {
        const Interval interval = bootstrap.mean(values);
        return interval.high - interval.low;
    };
    // The truth is sqrt(10) = 3.2 times as wide; blocks as short as a run see about 2/3 of the variance (factor 2.6).
    EXPECT_GT(width(slow), 2 * width(fresh));
}

TEST(StepBootstrap, HoldsTheTruthAboutAsOftenAsItSays) {
    int held = 0;
    for (std::uint64_t sample = 0; sample < 200; ++sample) {
        const std::vector<double> values = noise(100, 1000 + sample);
        const Interval interval = StepBootstrap(values.size()).mean(values);
        held += interval.low <= 100 && interval.high >= 100 ? 1 : 0;
    }
    // 95 % of 200 is 190 with a deviation of 3; percentile intervals of 100 steps in blocks of 5 are a little short.
    EXPECT_GE(held, 176);
    EXPECT_LE(held, 199);
}

TEST(StepBootstrap, IsTheSameEveryTimeAndKeepsConstants) {
    const std::vector<double> values = noise(137, 9);
    const Interval first = StepBootstrap(137).mean(values), again = StepBootstrap(137).mean(values);
    EXPECT_EQ(first.low, again.low);
    EXPECT_EQ(first.high, again.high);
    EXPECT_NE(StepBootstrap(137, 2).mean(values).low, first.low);
    const Interval constant = StepBootstrap(137).mean(std::vector<double>(137, 7.0));
    EXPECT_EQ(constant.low, 7.0);
    EXPECT_EQ(constant.high, 7.0);
}

TEST(StepBootstrap, EveryResampleHasAsManySteps) {
    for (const std::size_t steps : {10UL, 11UL, 64UL, 100UL, 127UL}) {
        const StepBootstrap bootstrap(steps);
        for (const double sum : bootstrap.sums(std::vector<double>(steps, 1.0))) ASSERT_EQ(sum, double(steps));
    }
}

TEST(StepBootstrap, SeriesAreDrawnTogether) {
    const std::vector<double> values = noise(50, 1);
    std::vector<double> twice = values;
    for (double& value : twice) value *= 2;
    const StepBootstrap bootstrap(values.size());
    const auto a = bootstrap.sums(values), b = bootstrap.sums(twice);
    ASSERT_EQ(a.size(), std::size_t(StepBootstrap::kResamples));
    for (std::size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(b[i], 2 * a[i], 1e-9 * std::abs(b[i]));
}

TEST(StepBootstrap, FewStepsGiveNoInterval) {
    const Interval interval = StepBootstrap(9).mean(std::vector<double>(9, 1.0));
    EXPECT_TRUE(std::isnan(interval.low));
    EXPECT_TRUE(std::isnan(interval.high));
    EXPECT_TRUE(StepBootstrap(0).sums({}).empty());
}

} // namespace
} // namespace kvscope::reports
