// Hits of a simulated server from recorded selections: curves against the replay of the same run, and against what a
// stream that is made for it must give.
#include "profiler/replay/hit_curves.h"

#include "profiler/replay/device_pool.h"
#include "profiler/replay/replay.h"
#include "tests/profiler/insights_fixture.h"
#include "tests/support/refusal.h"

#include <gtest/gtest.h>

#include <cmath>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

SelectionTrace recorded(const test::EngineRun& run) {
    const test::Folder folder;
    const std::string file = (folder / "run.kvtrace").string();
    test::record(file, run);
    return loadSelectionTrace(TraceReader(file), 1);
}

double at(const std::vector<std::pair<double, double>>& curve, double x) {
    for (std::size_t i = 1; i < curve.size(); ++i)
        if (x <= curve[i].first)
            return std::lerp(curve[i - 1].second, curve[i].second,
                             (x - curve[i - 1].first) / (curve[i].first - curve[i - 1].first));
    return curve.back().second;
}

TEST(HitCurves, AreThoseOfTheReplayedRun) {
    const SelectionTrace trace =
        recorded({.method = "nosa", .promptTokens = 2000, .newTokens = 60, .sequences = 4, .with = [](auto& options) {
                      options.settings = {{"block_size", "16"}, {"total_blocks", "19"}};
                  }});
    const HitCurves curves = hitCurvesOf(trace);
    ASSERT_GE(curves.pool.size(), 4u);
    for (std::size_t i = 1; i < curves.pool.size(); ++i) EXPECT_GT(curves.pool[i].first, curves.pool[i - 1].first);
    // Every row has as many blocks in every step, so that a step's demand is the largest, and the curve at a size is
    // the replay's hit rate there.
    const DeviceRequests requests(trace);
    const double newest = 4.0 * trace.run.layers * trace.run.kvHeads;
    for (const double share : {0.75, 1.25}) {
        const int slots = int(share * double(requests.demand().mostStep));
        const CacheReplay replayed = replayDevice(trace, requests, DevicePolicy::Lru, slots);
        const auto hits = double(replayed.total.hits - replayed.coldTotal.hits);
        const auto misses = double(replayed.total.misses - replayed.coldTotal.misses);
        const double x = (double(requests.demand().mostStep) + newest) / (slots + newest);
        EXPECT_NEAR(at(curves.pool, x), hits / (hits + misses), 0.05) << share;
    }
    EXPECT_GT(at(curves.pool, 0.8), 0.9) << "the selections of a step fit";
    EXPECT_LT(at(curves.pool, 1.6), 0.3) << "and here they do not";
}

TEST(HitCurves, APartitionHitsNoLessWithMoreSlots) {
    const SelectionTrace trace = recorded({.method = "infllmv2", .promptTokens = 2000, .newTokens = 40});
    const HitCurves curves = hitCurvesOf(trace);
    ASSERT_GE(curves.partition.size(), 3u);
    EXPECT_EQ(curves.partition.front().first, 1);
    for (std::size_t i = 1; i < curves.partition.size(); ++i)
        EXPECT_GE(curves.partition[i].second, curves.partition[i - 1].second);
    // With just what a step selects LRU keeps the selection of the step before: it misses what drifted, but blocks that
    // begin, which are hits.
    EXPECT_NEAR(1 - curves.partition.front().second, curves.drift, 0.02);
    EXPECT_GT(curves.drift, 0);
    EXPECT_LT(curves.drift, 0.5);
}

TEST(HitCurves, TooFewStepsAreRefused) {
    const SelectionTrace trace = recorded({.method = "nosa", .promptTokens = 1500, .newTokens = 6});
    EXPECT_NE(test::refusalOf([&] { hitCurvesOf(trace); }, "too few for a curve"), "");
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
