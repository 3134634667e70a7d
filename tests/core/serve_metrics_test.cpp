// Percentiles, attainment and stability against plain references, and the account of what is reserved.
#include "base/error.h"
#include "core/serve/ledger.h"
#include "core/serve/random_draws.h"
#include "core/serve/serving_metrics.h"
#include "core/serve/working_set.h"
#include "tests/support/packed_blocks.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <gmock/gmock.h>
#include <set>

namespace kvscope::serve {
namespace KVSCOPE_TEST_FILE {

TEST(Percentiles, AgreeWithAPlainReference) {
    Draws draws(5);
    for (int n = 1; n < 60; ++n) {
        std::vector<double> samples;
        for (int i = 0; i < n; ++i) samples.push_back(draws.exponential());
        std::sort(samples.begin(), samples.end());
        for (const double p : {0.0, 0.1, 0.5, 0.9, 0.99, 1.0}) {
            // The value at place (n - 1) p of the sorted samples, linear between neighbours.
            const double place = (n - 1) * p;
            const auto below = std::size_t(std::floor(place)), above = std::size_t(std::ceil(place));
            const double wanted =
                samples[below] * (1 - (place - double(below))) + samples[above] * (place - double(below));
            EXPECT_NEAR(percentile(samples, p), wanted, 1e-12) << n << " " << p;
        }
    }
    const std::vector<double> four{1, 2, 3, 4};
    EXPECT_DOUBLE_EQ(percentile(four, 0.5), 2.5); // numpy.percentile([1, 2, 3, 4], 50)
    EXPECT_DOUBLE_EQ(percentile(four, 0.9), 3.7);
}

TEST(Percentiles, AreShownOnlyWithTenSamplesBeyond) {
    std::vector<double> samples(1000);
    for (std::size_t i = 0; i < samples.size(); ++i) samples[i] = double(i + 1);
    const auto p99 = shownPercentile(samples, 0.99);
    ASSERT_TRUE(p99);
    EXPECT_EQ(p99->low, 984) << "rank of the binomial interval";
    EXPECT_EQ(p99->high, 996);
    EXPECT_FALSE(shownPercentile(std::span(samples).first(999), 0.99));
    EXPECT_TRUE(shownPercentile(std::span(samples).first(20), 0.5));
    EXPECT_FALSE(shownPercentile(std::span(samples).first(19), 0.5));
    EXPECT_FALSE(shownPercentile({}, 0.5));
}

TEST(Percentiles, TheirIntervalsHoldAsOftenAsTheySay) {
    // 95 % and not much more or less, over 2,000 sets of 400 uniform numbers.
    Draws draws(11);
    const auto [low, high] = percentileRanks(400, 0.9);
    int held = 0;
    for (int set = 0; set < 2000; ++set) {
        std::vector<double> samples(400);
        for (double& sample : samples) sample = draws.uniform();
        std::sort(samples.begin(), samples.end());
        held += samples[std::size_t(low - 1)] <= 0.9 && 0.9 <= samples[std::size_t(high - 1)] ? 1 : 0;
    }
    EXPECT_NEAR(held / 2000.0, 0.95, 0.015);
}

RequestOutcome outcomeOf(double ttftMs, std::vector<float> gaps, Status status = Status::Finished) {
    RequestOutcome outcome;
    outcome.arrivalNs = 1000, outcome.firstTokenNs = 1000 + std::int64_t(ttftMs * 1e6);
    outcome.tokens = int(gaps.size()) + 1;
    outcome.gapsMs = std::move(gaps), outcome.status = status;
    return outcome;
}

TEST(Goodness, IsFinishedInTimeAndWithoutStalls) {
    const Slo slo{100, 20, false}, mean{100, 20, true};
    EXPECT_TRUE(isGood(outcomeOf(100, {20, 20}), slo));
    EXPECT_FALSE(isGood(outcomeOf(100.1, {20, 20}), slo));
    EXPECT_FALSE(isGood(outcomeOf(10, {1, 1}, Status::Refused), slo));
    EXPECT_FALSE(isGood(outcomeOf(10, {1, 1}, Status::Unfinished), slo));
    EXPECT_TRUE(isGood(outcomeOf(10, {}), slo)) << "one token has no gap";
    std::vector<float> spike(50, 1);
    spike[20] = 400;
    EXPECT_FALSE(isGood(outcomeOf(10, spike), slo)) << "the mean hides a stall";
    EXPECT_TRUE(isGood(outcomeOf(10, spike), mean));
    EXPECT_FALSE(outcomeOf(1, {}).tpotMs()) << "undefined, not 0";
    EXPECT_NEAR(*outcomeOf(1, spike).tpotMs(), 449 / 50.0, 1e-6);
}

TEST(BacklogTrend, SeesGrowthAndNothingElse) {
    Draws draws(2);
    Backlog flat, growing;
    for (int i = 0; i < 1000; ++i) {
        const int noise = int(draws.below(7));
        flat.ns.push_back(std::int64_t(i) * 1'000'000'000), flat.requests.push_back(10 + noise);
        growing.ns.push_back(std::int64_t(i) * 1'000'000'000), growing.requests.push_back(10 + noise + i / 20);
    }
    const std::int64_t end = 1'000'000'000'000;
    EXPECT_FALSE(trendOf(flat, 0, end).grows());
    EXPECT_TRUE(trendOf(growing, 0, end).grows());
    EXPECT_NEAR(trendOf(growing, 0, end).slope, 0.05, 0.002);
    EXPECT_NEAR(flat.mean(0, end), 13, 0.3);
    EXPECT_DOUBLE_EQ((Backlog{{0, 10, 20}, {1, 3, 0}}.mean(5, 25)), (5 * 1 + 10 * 3 + 5 * 0) / 20.0);
    EXPECT_DOUBLE_EQ((Backlog{{10}, {4}}.mean(0, 20)), 2) << "nothing before the first change";
}

TEST(WarmUp, Mser5CutsTheRampAndNotAFlatRun) {
    Draws draws(4);
    std::vector<double> flat, ramp;
    for (int i = 0; i < 400; ++i) {
        flat.push_back(draws.exponential());
        ramp.push_back(draws.exponential() + (i < 60 ? (60 - i) * 0.5 : 0));
    }
    EXPECT_LE(warmUpByMser5(flat), 100);
    EXPECT_NEAR(warmUpByMser5(ramp), 65, 20);
    EXPECT_EQ(warmUpByMser5({}), 0);
}

TEST(LedgerAccount, RefusesAndGivesBackWithoutLosingAByte) {
    Ledger ledger({2, 100, 100, 10, true});
    ledger.reserve(1, {1, 60, 40, 5, 10, 30});
    EXPECT_EQ(ledger.budget().available(ledger.used()), 60);
    EXPECT_THROW(ledger.reserve(2, {1, 60, 10, 0, 0, 0}), Error) << "host";
    EXPECT_THROW(ledger.reserve(2, {1, 10, 30, 0, 0, 10}), Error) << "40 + 30 + 30 + 10 of the device";
    EXPECT_EQ(ledger.entries(), 1u);
    ledger.reserve(2, {1, 10, 30, 0, 0, 10}, true);
    EXPECT_THROW(ledger.reserve(3, {1, 0, 0, 0, 0, 0}), Error) << "rows";
    ledger.setWorkingSet(2, 25);
    EXPECT_EQ(ledger.used(), (Amounts{2, 70, 70, 5, 10, 55}));
    EXPECT_THROW(ledger.giveBack(1, {0, 61, 0, 0, 0, 0}), Error);
    ledger.giveBack(1, {0, 0, 0, 5, 10, 30});
    ledger.release(1);
    ledger.release(1);
    EXPECT_EQ(ledger.used(), ledger.of(2));
    EXPECT_THROW(ledger.setWorkingSet(1, 3), Error);
    ledger.release(2);
    EXPECT_EQ(ledger.used(), Amounts{});
}

TEST(WorkingSets, AreTheUnionOfTheLastStepsAndGrowWithTheWindow) {
    for (const int window : {1, 2, 5, 12, 64}) {
        Draws draws(std::uint64_t(window) + 1);
        WorkingSet set(window), wider(std::min(window + 1, 64));
        std::deque<std::set<std::int32_t>> recent;
        for (int step = 0; step < 400; ++step) {
            std::set<std::int32_t> chosen;
            while (chosen.size() < 8) chosen.insert(std::int32_t(draws.below(40) + std::uint64_t(step / 10)));
            std::set<std::int32_t> before;
            for (const auto& old : recent) before.insert(old.begin(), old.end());
            int surprises = 0;
            for (const std::int32_t block : chosen) surprises += before.contains(block) ? 0 : 1;
            recent.push_back(chosen);
            if (int(recent.size()) > window) recent.pop_front();
            std::set<std::int32_t> all;
            for (const auto& old : recent) all.insert(old.begin(), old.end());
            const auto list = test::packed(std::vector<std::int32_t>(chosen.begin(), chosen.end()));
            set.step(list), wider.step(list);
            ASSERT_EQ(set.blocks(), int(all.size())) << window << " " << step;
            ASSERT_EQ(set.surprises(), surprises);
            ASSERT_EQ(set.steps(), std::min(step + 1, window));
            ASSERT_GE(set.blocks(), 8) << "at least the last selection";
            ASSERT_GE(wider.blocks(), set.blocks());
        }
        set.clear();
        EXPECT_EQ(set.blocks(), 0);
        set.step(test::packed(std::vector<std::int32_t>{3}));
        EXPECT_EQ(set.blocks(), 1);
    }
    EXPECT_THROW(WorkingSet(0), Error);
    EXPECT_THROW(WorkingSet(65), Error);
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::serve
