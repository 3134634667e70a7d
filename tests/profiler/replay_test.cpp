// Replays of traces: several pools and sequences, cold steps, times over a link, loads ahead, and what is refused.
#include "profiler/replay/replay.h"

#include "base/error.h"
#include "profiler/read/summary.h"
#include "profiler/record/recorder.h"
#include "tests/profiler/replay_histories.h"
#include "tests/profiler/sql_rows.h"
#include "tests/profiler/synthetic_run.h"
#include "tests/profiler/temporary_folder.h"
#include "tests/support/refusal.h"

#include <algorithm>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <map>
#include <numeric>
#include <random>
#include <set>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using test::expectColdParts;
using test::History;
using test::missesOf;
using test::randomHistory;
using test::visitsOf;
using testing::HasSubstr;

/// A trace of these histories, one sequence each, one layer, one head.
SelectionTrace traceOf(const std::vector<History>& histories) {
    SelectionTrace trace;
    trace.run.layers = trace.run.kvHeads = 1;
    trace.run.sequences = int(histories.size());
    for (const History& history : histories) {
        PoolTrace& pool = trace.pools.emplace_back();
        pool.sequence = int(trace.pools.size()) - 1;
        pool.visits = visitsOf(history);
        while (pool.steps.size() < history.size()) pool.steps.push_back(int(pool.steps.size()));
        while (trace.steps.size() < history.size()) trace.steps.push_back({int(trace.steps.size()) + 1, 1, 0, 0});
        trace.largest = std::max(trace.largest, pool.visits.largest());
    }
    return trace;
}

/// As in a serving run, where a step is cold for one request and in the middle of another.
TEST(Replay, ColdStepsMayComeInTheMiddle) {
    std::mt19937 random(7);
    for (int round = 0; round < 20; ++round) {
        SelectionTrace trace = traceOf({randomHistory(random, 60, 30, 8), randomHistory(random, 60, 30, 8)});
        for (ReplayStep& step : trace.steps) step.cold = random() % 5 == 0;
        for (const ReplayPolicyEntry& policy : replayPolicies())
            for (const int slots : {trace.largest, trace.largest + 4, 40}) expectColdParts(trace, policy, slots);
        const MissCurve sampled = sampledMissCurve(trace, CurvePolicy::Lru),
                        exact = sum(missCurves(trace, CurvePolicy::Lru, 1));
        EXPECT_EQ(sampled.warm().references, exact.warm().references);
        EXPECT_EQ(sampled.warm().compulsory, exact.warm().compulsory);
        EXPECT_NEAR(sampled.warm().ratio(trace.largest), exact.warm().ratio(trace.largest), 0.15);
    }
}

TEST(Replay, ASharedPoolIsOneCacheForTheBlocksOfAllSequences) {
    std::mt19937 random(31);
    for (int round = 0; round < 10; ++round) {
        const History a = randomHistory(random, 60, 20, 6), b = randomHistory(random, 45, 20, 5);
        const SelectionTrace shared = withSharedPools(traceOf({a, b}));
        ASSERT_EQ(shared.pools.size(), 1u);
        EXPECT_EQ(shared.pools[0].sequence, -1);
        History both; // b ends earlier; its blocks come after a's
        const std::int32_t shift = visitsOf(a).blockLimit();
        for (std::size_t r = 0; r < a.size(); ++r) {
            both.push_back(a[r]);
            if (r < b.size())
                for (const std::int32_t block : b[r]) both.back().push_back(block + shift);
        }
        ASSERT_EQ(shared.largest, visitsOf(both).largest());
        for (const ReplayPolicyEntry& policy : replayPolicies())
            for (int slots = shared.largest; slots < 40; slots += 4) {
                const auto state = policy.make(shared.pools[0].visits, slots);
                std::vector<int> misses;
                replayPool(shared.pools[0].visits, *state,
                           [&](std::size_t, const RequestOutcome& o) { misses.push_back(o.misses); });
                EXPECT_EQ(misses, missesOf(both, policy.name, slots)) << policy.name << " with " << slots;
            }
    }
}

TEST(Replay, ASequenceThatMissesAStepReturnsToASharedPool) {
    SelectionTrace trace = traceOf({{{0, 1}, {0, 2}, {0, 2}, {1, 2}}, {{0}, {0}}});
    trace.pools[1].steps = {0, 3}; // the second sequence has no request in steps 1 and 2
    const SelectionTrace shared = withSharedPools(trace);
    const BlockVisits& visits = shared.pools[0].visits;
    const auto blocks = [](std::span<const BlockVisits::Entry> entries) {
        std::vector<std::int32_t> result;
        for (const BlockVisits::Entry& e : entries) result.push_back(e.block());
        return result;
    };
    ASSERT_EQ(visits.requests(), 4u);
    EXPECT_THAT(blocks(visits.entered(0)), testing::ElementsAre(0, 1, 3));
    EXPECT_THAT(visits.left(1), testing::ElementsAre(1, 3));
    EXPECT_THAT(visits.left(2), testing::IsEmpty());
    EXPECT_THAT(blocks(visits.entered(3)), testing::ElementsAre(1, 3));
    EXPECT_FALSE(visits.entered(3)[1].first());
    EXPECT_EQ(visits.size(3), 3);
    EXPECT_EQ(visits.references(), 10);
}

TEST(Replay, TimesFollowTheLinkAndReplaceMeasuredOnes) {
    SelectionTrace trace;
    trace.run.layers = 2;
    trace.run.blockBytes = 1'000'000;
    trace.run.timing = Timing::Modelled;
    trace.steps = {{1, 2, 5'000'000, 1'000'000}, {2, 2, 3'000'000, 500'000}};
    PoolTrace pool;
    pool.layer = 1;
    pool.visits = visitsOf({{0, 1}, {1, 2}});
    pool.steps = {0, 1};
    trace.pools = {pool, pool};
    trace.largest = 2;
    const Link link{"test", 10, 25};
    ReplayOptions options{{"lru"}, {2}, {link}, 1};
    // Step 1 loads 4 blocks in one transfer, step 2 two.
    const std::int64_t exposed = link.transferNs(4'000'000) + link.transferNs(2'000'000);
    ReplayConfig config = replay(trace, options).front();
    EXPECT_EQ(config.misses, 6);
    EXPECT_EQ(config.h2dBytes, 6'000'000);
    EXPECT_EQ(config.exposedNs, exposed);
    EXPECT_DOUBLE_EQ(config.tokensPerSecond, 4e9 / double(8'000'000 + exposed));
    trace.run.timing = Timing::Measured;
    config = replay(trace, options).front();
    EXPECT_DOUBLE_EQ(config.tokensPerSecond, 4e9 / double(8'000'000 - 1'500'000 + exposed));
}

TEST(Replay, ARecordingThatIsNotItsCachesIsFound) {
    SelectionTrace trace = traceOf({{{0, 1}, {1, 2}, {0, 2}}});
    trace.run.deviceSlots = 2;
    trace.cachePolicy = "lru";
    trace.pools[0].recorded = {{0, 2}, {1, 1}, {1, 1}};
    EXPECT_EQ(reproduce(trace)->differing, 0);
    trace.pools[0].recorded[1] = {2, 0};
    EXPECT_EQ(reproduce(trace)->differing, 1);
    EXPECT_EQ(reproduce(trace)->requests, 3);
    EXPECT_FALSE(reproduce(withSharedPools(trace)));
    trace.cachePolicy = "another engine's";
    EXPECT_FALSE(reproduce(trace));
    trace.cachePolicy.clear();
    EXPECT_EQ(reproduce(trace)->policy, "keep-selected");
    trace.run.deviceSlots = 0;
    EXPECT_FALSE(reproduce(trace));
}

TEST(Replay, LoadingAheadHidesTransfersBehindEarlierLayers) {
    SelectionTrace trace;
    trace.run.layers = 3;
    trace.run.blockBytes = 1'000;
    trace.run.timing = Timing::Modelled;
    trace.steps = {{1, 1, 1'000'000, 0}};
    trace.layerTimes = {{10'000, 20'000}, {10'000, 20'000}, {10'000, 20'000}};
    for (const int layer : {0, 1, 2}) { // 10, 10 and 50 blocks, all missed
        PoolTrace& pool = trace.pools.emplace_back();
        pool.layer = layer;
        std::vector<std::int32_t> blocks(layer == 2 ? 50 : 10);
        std::iota(blocks.begin(), blocks.end(), 0);
        pool.visits.add(blocks);
        pool.steps = {0};
    }
    trace.largest = 50;
    const Link link{"test", 1, 2}; // 1 us per block and 2 us: 12, 12 and 52 us
    const auto with = [&](int layersAhead, double accuracy) {
        return replay(trace, {{"lru"}, {50}, {link}, 1, Prefetch{layersAhead, accuracy}}).front();
    };
    const ReplayConfig exact = with(1, 1);
    EXPECT_EQ(exact.exposedNs, 76'000);
    // Layer 0's blocks come at 12 instead of 10; layer 1's, asked at 0, at 24 of 42; layer 2's, asked at 32, at 84
    // of 72.
    EXPECT_EQ(exact.prefetched->exposedNs, 2'000 + 0 + 12'000);
    EXPECT_EQ(exact.prefetched->h2dBytes, 70'000);
    EXPECT_DOUBLE_EQ(exact.prefetched->tokensPerSecond, 1e9 / (1'000'000 + 14'000));
    // Two layers ahead, layer 2's are asked at 0 after the others: at 76 of 72.
    EXPECT_EQ(with(2, 1).prefetched->exposedNs, 2'000 + 0 + 4'000);
    EXPECT_EQ(with(9, 1).prefetched->exposedNs, 2'000 + 0 + 4'000);
    // Half of the guesses are wrong: layer 0 needs 5 more after both guesses, at 24 + 7 of 10. Layer 1 begins at 51;
    // its 5 are asked at 61, behind layer 2's guess from 51 to 103, and come at 110. Layer 2, from 130, at 140 + 27.
    EXPECT_EQ(with(1, 0.5).prefetched->exposedNs, 21'000 + 49'000 + 27'000);
    EXPECT_EQ(with(1, 0.5).prefetched->h2dBytes, 105'000);
    EXPECT_EQ(with(1, 0).prefetched->h2dBytes, 140'000);
    EXPECT_FALSE(replay(trace, {{"lru"}, {50}, {link}, 1, {}}).front().prefetched);
    EXPECT_THROW(with(0, 1), Error);
    EXPECT_THROW(with(1, 1.5), Error);
}

TEST(Replay, ABlockThatBeganInADroppedStepIsStillFresh) {
    const synthetic::RunShape shape;
    const test::Folder folder;
    const std::string file = (folder / "run.kvtrace").string();
    {
        Recorder recorder(file, {});
        recorder.beginRun(synthetic::infoOf(shape));
        for (const StepRecord& step : synthetic::stepsOf(shape))
            if (step.phase == Phase::Prefill || !step.opensBlock)
                recorder.take(std::make_unique<StepRecord>(step)); // the others are lost
        recorder.endRun(RunStatus::Finished, "");
    }
    const SelectionTrace trace = loadSelectionTrace(TraceReader(file), 1);
    const std::int32_t tail = shape.promptTokens / shape.blockSize;
    const int next = (tail + 1) * shape.blockSize - shape.promptTokens; // decode steps until a block is full
    for (const PoolTrace& pool : trace.pools) {
        ASSERT_EQ(pool.steps[0], -1);
        ASSERT_EQ(pool.visits.entered(0).size(), 1u);
        EXPECT_EQ(pool.visits.entered(0)[0].block(), tail);
        for (std::size_t request = 1; request < pool.steps.size(); ++request) {
            const int recorded = trace.steps[std::size_t(pool.steps[request])].step;
            const int sinceOpening = recorded - 1 - next;
            std::int32_t fresh = -1;
            for (const BlockVisits::Entry& e : pool.visits.entered(request))
                if (e.begins()) fresh = e.block();
            const bool first = sinceOpening > 0 && sinceOpening % shape.blockSize == 1;
            EXPECT_EQ(fresh, first ? tail + 1 + sinceOpening / shape.blockSize : -1) << recorded;
        }
    }
}

TEST(Replay, RefusalsNameWhatIsWrongAndTheMend) {
    const test::Folder folder;
    const auto load = [&](const char* name, const synthetic::RunShape& shape, RecordLevel level) {
        const std::string file = (folder / name).string();
        synthetic::recordFile(file, shape, level);
        return loadSelectionTrace(TraceReader(file), 1);
    };
    synthetic::RunShape dense, none;
    dense.denseLayers = dense.layers;
    none.decodeSteps = 0;
    EXPECT_THAT(test::failureOf([&] { load("counters", {}, RecordLevel::Counters); }),
                HasSubstr("--record selections"));
    EXPECT_THAT(test::failureOf([&] { load("dense", dense, RecordLevel::Full); }), HasSubstr("attends every block"));
    EXPECT_THAT(test::failureOf([&] { load("none", none, RecordLevel::Full); }), HasSubstr("no decode steps"));
    const std::string sums = (folder / "sums").string();
    synthetic::recordFile(sums, {}, RecordLevel::Full);
    test::sql(sums, "DELETE FROM selection", SQLITE_OPEN_READWRITE);
    EXPECT_THAT(test::failureOf([&] { (void)loadSelectionTrace(TraceReader(sums), 1); }),
                HasSubstr("only how many blocks its layers selected"));
    const SelectionTrace trace = load("full", {}, RecordLevel::Full);
    EXPECT_THAT(test::failureOf([&] {
                    replay(trace, {{}, {1}, {}, 1});
                }),
                HasSubstr(fmt::format("--cache-blocks {}", trace.largest)));
    EXPECT_THAT(test::failureOf([&] {
                    replay(trace, {{}, {}, {{"slow", 1e-300, 10}}, 1});
                }),
                HasSubstr("at least 1e-06 GB/s"));
    EXPECT_THAT(test::failureOf([&] {
                    replay(trace, {{"random"}, {}, {}, 1});
                }),
                HasSubstr("known policies: keep-selected, lru"));
    EXPECT_THAT(test::failureOf([&] { loadSelectionTrace(TraceReader((folder / "full").string()), 2); }),
                HasSubstr("run 2"));
    for (const char* edit : {"h2d_bytes = 9223372036854775807", "h2d_bytes = -5", "exposed_ns = -7"}) {
        load(edit, {}, RecordLevel::Full); // the file has the edit's name
        test::sql((folder / edit).string(), fmt::format("UPDATE step SET {} WHERE id & 0x1FFFFFF = 5", edit),
                  SQLITE_OPEN_READWRITE);
        EXPECT_THAT(test::failureOf([&] { loadSelectionTrace(TraceReader((folder / edit).string()), 1); }),
                    HasSubstr(fmt::format("step 5 of run 1 has {}", edit)));
    }
}

TEST(Replay, LoadingAndReplayingCanBeStopped) {
    const test::Folder folder;
    const std::string file = (folder / "run.kvtrace").string();
    synthetic::recordFile(file, {});
    const TraceReader reader(file);
    std::stop_source stop;
    double last = -1;
    const Progress progress = [&](double fraction, std::string_view) {
        EXPECT_GE(fraction, last);
        EXPECT_LE(fraction, 1);
        last = fraction;
    };
    const SelectionTrace trace = loadSelectionTrace(reader, 1, progress);
    EXPECT_EQ(last, 1);
    last = -1;
    replay(trace, {}, progress);
    EXPECT_EQ(last, 1);
    last = -1;
    missCurves(trace, CurvePolicy::Lru, 2, progress);
    EXPECT_EQ(last, 1);
    stop.request_stop();
    const auto kindOf = [](const std::function<void()>& action) {
        try {
            action();
        } catch (const Error& error) {
            return error.kind;
        }
        return ErrorKind::BadInput;
    };
    EXPECT_EQ(kindOf([&] { loadSelectionTrace(reader, 1, {}, stop.get_token()); }), ErrorKind::Cancelled);
    EXPECT_EQ(kindOf([&] { replay(trace, {}, {}, stop.get_token()); }), ErrorKind::Cancelled);
    EXPECT_EQ(kindOf([&] { missCurves(trace, CurvePolicy::Belady, 2, {}, stop.get_token()); }), ErrorKind::Cancelled);
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
