// Planes through samples of which some are far off.
#include "core/serve/least_deviations.h"

#include "core/serve/random_draws.h"

#include <gtest/gtest.h>

namespace kvscope::serve {
namespace KVSCOPE_TEST_FILE {

std::vector<Deviation> onThePlane(const std::array<double, 3>& c, int count, std::uint64_t seed) {
    Draws draws(seed);
    std::vector<Deviation> samples;
    for (int i = 0; i < count; ++i) {
        Deviation sample{{1, 1e8 * draws.uniform(), 1 + double(draws.below(16))}, 0};
        for (std::size_t k = 0; k < 3; ++k) sample.y += c[k] * sample.x[k];
        samples.push_back(sample);
    }
    return samples;
}

TEST(LeastDeviations, AreNotMovedByAQuarterOfTheSamples) {
    const std::array<double, 3> truth{0.6, 2e-8, 0.04};
    std::vector<Deviation> samples = onThePlane(truth, 200, 1);
    for (std::size_t i = 0; i < samples.size(); i += 4) samples[i].y *= 20;
    const std::array<double, 3> found = leastDeviations(samples);
    for (std::size_t k = 0; k < 3; ++k) EXPECT_NEAR(found[k], truth[k], 1e-3 * truth[k]) << k;
}

TEST(LeastDeviations, OfOneColumnOfOnesAreTheMedian) {
    std::vector<Deviation> samples;
    for (const double y : {3.0, 1.0, 200.0, 2.5, 2.0}) samples.push_back({{1, 0, 0}, y});
    EXPECT_NEAR(leastDeviations(samples)[0], 2.5, 1e-3);
}

TEST(LeastDeviations, AreNeverNegative) {
    // y falls with the third column: its coefficient is 0, and the first is the median of all
    std::vector<Deviation> samples;
    for (int i = 1; i <= 9; ++i) samples.push_back({{1, 0, double(i)}, 10.0 - i});
    const std::array<double, 3> found = leastDeviations(samples);
    EXPECT_EQ(found[2], 0);
    EXPECT_NEAR(found[0], 5, 1e-2);
    EXPECT_EQ(leastDeviations({{{1, 0, 0}, -1.0}})[0], 0);
}

TEST(LeastDeviations, LeaveOutColumnsThatSayNothingNew) {
    std::vector<Deviation> samples = onThePlane({1, 0, 2}, 50, 2);
    for (Deviation& sample : samples) sample.x[1] = 3 * sample.x[0];
    EXPECT_TRUE(isApart(samples, 0));
    EXPECT_FALSE(isApart(samples, 1));
    EXPECT_TRUE(isApart(samples, 2));
    const std::array<double, 3> found = leastDeviations(samples);
    EXPECT_NEAR(found[0], 1, 1e-6);
    EXPECT_EQ(found[1], 0);
    EXPECT_NEAR(found[2], 2, 1e-6);
    EXPECT_EQ(leastDeviations({}), (std::array<double, 3>{}));
    EXPECT_FALSE(isApart({}, 0));
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::serve
