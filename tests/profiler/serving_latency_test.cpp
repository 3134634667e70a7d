// Latencies over time, against every window sorted on its own.
#include "profiler/read/serving_latency.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

/// Linear between order statistics, as numpy does.
double quantile(std::vector<double> samples, double p) {
    std::sort(samples.begin(), samples.end());
    const double at = p * double(samples.size() - 1);
    const auto low = std::size_t(at);
    return samples[low] + (samples[std::min(low + 1, samples.size() - 1)] - samples[low]) * (at - double(low));
}

void expectWindow(const LatencyWindow& window, const std::vector<double>& samples) {
    ASSERT_EQ(window.samples, std::int64_t(samples.size()));
    EXPECT_EQ(std::isnan(window.high), samples.empty());
    EXPECT_EQ(std::isnan(window.median), samples.size() < 20);
    if (samples.empty()) return;
    EXPECT_EQ(window.isLargest, samples.size() < 1000);
    EXPECT_NEAR(window.high, quantile(samples, window.isLargest ? 1.0 : 0.99), 1e-6);
    if (samples.size() >= 20) {
        EXPECT_NEAR(window.median, quantile(samples, 0.5), 1e-6);
    }
}

TEST(LatencyOverTime, IsThatOfEveryWindowAlone) {
    std::mt19937 random(7);
    std::vector<RequestRow> requests(300);
    for (RequestRow& request : requests) {
        request.arrivalNs = std::int64_t(random() % 1'000'000);
        if (random() % 8 != 0) request.firstTokenNs = request.arrivalNs + std::int64_t(random() % 50'000);
    }
    std::vector<TokenGap> gaps(20'000);
    for (TokenGap& gap : gaps) gap = {0, std::int64_t(random() % 900'000), std::int64_t(random() % 5'000)};
    std::sort(gaps.begin(), gaps.end(), [](const TokenGap& a, const TokenGap& b) { return a.ns < b.ns; });
    constexpr double kEnd = 1'100'000;
    bool percentiles = false, largest = false, none = false;
    for (const double width : {500.0, 20'000.0, 120'000.0}) {
        const std::vector<LatencyPoint> points = latencyOverTime(requests, gaps, kEnd, width, 37);
        ASSERT_EQ(points.size(), 37u);
        EXPECT_DOUBLE_EQ(points.back().ns, kEnd);
        for (const LatencyPoint& point : points) {
            std::vector<double> first, between;
            for (const RequestRow& request : requests)
                if (request.firstTokenNs >= 0 && double(request.firstTokenNs) > point.ns - width &&
                    double(request.firstTokenNs) <= point.ns)
                    first.push_back(double(request.firstTokenNs - request.arrivalNs));
            for (const TokenGap& gap : gaps)
                if (double(gap.ns) > point.ns - width && double(gap.ns) <= point.ns)
                    between.push_back(double(gap.gapNs));
            expectWindow(point.firstToken, first);
            expectWindow(point.gap, between);
            percentiles |= !point.gap.isLargest, largest |= point.gap.isLargest, none |= point.gap.samples == 0;
        }
    }
    EXPECT_TRUE(percentiles && largest && none) << "all three kinds of windows were compared";
}

TEST(LatencyOverTime, IsNotKnownWhereNothingHappened) {
    const std::vector<LatencyPoint> points = latencyOverTime({}, {}, 1000, 10, 3);
    ASSERT_EQ(points.size(), 3u);
    for (const LatencyPoint& point : points) {
        EXPECT_EQ(point.firstToken.samples, 0);
        EXPECT_TRUE(std::isnan(point.gap.high));
    }
    EXPECT_TRUE(latencyOverTime({}, {}, 1000, 10, 0).empty());
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
