#include "profiler/read/summary.h"

#include "base/error.h"
#include "profiler/read/step_kind.h"
#include "profiler/record/recorder.h"
#include "profiler/store/trace_store.h"
#include "tests/profiler/sql_rows.h"
#include "tests/profiler/synthetic_run.h"
#include "tests/profiler/temporary_folder.h"

#include <algorithm>
#include <cmath>
#include <gtest/gtest.h>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

TEST(Summary, AgreesWithTheStepsItSums) {
    synthetic::RunShape shape;
    shape.sequences = 3;
    shape.decodeSteps = 60;
    shape.denseLayers = 1;
    test::Folder folder;
    const std::string file = (folder / "run.kvtrace").string();
    synthetic::recordFile(file, shape, RecordLevel::Counters); // no blocks are needed for it
    std::int64_t decoded = 0, decodeNs = 0, hits = 0, misses = 0, h2d = 0, d2h = 0, transfer = 0, exposed = 0,
                 undefined = 0, opening = 0, coldNs = 0, coldTokens = 0, coldHits = 0, coldMisses = 0;
    std::vector<double> localities;
    const auto steps = synthetic::stepsOf(shape);
    for (const StepRecord& step : steps) {
        if (step.phase == Phase::Decode) decoded += step.tokens, decodeNs += step.durationNs;
        if (step.step == 1) coldNs = step.durationNs, coldTokens = step.tokens;
        for (const LayerRecord& layer : step.layers) {
            hits += layer.hits;
            misses += layer.misses;
            h2d += layer.h2dBytes;
            d2h += layer.d2hBytes;
            if (step.step == 1) coldHits += layer.hits, coldMisses += layer.misses;
            transfer += layer.transferNs;
            exposed += layer.exposedNs;
        }
        for (const SelectionRecord& selection : step.selections) {
            if (selection.kept < 0)
                ++undefined;
            else if (synthetic::fedPosition(shape, selection.sequence, step.step) % shape.blockSize == 0)
                ++opening;
            else
                localities.push_back(double(selection.kept) / selection.selected);
        }
    }
    ASSERT_GT(opening, 0);
    double mean = 0;
    for (const double locality : localities) mean += locality / double(localities.size());

    const RunSummary summary = summarize(TraceReader(file), 1);
    EXPECT_EQ(summary.promptTokens, 200 + 201 + 202);
    EXPECT_EQ(summary.decodeSteps, 60);
    EXPECT_EQ(summary.decodedTokens, decoded);
    EXPECT_NEAR(summary.prefillMs, double(steps[0].durationNs) / 1e6, 1e-9);
    EXPECT_NEAR(summary.decodeMs, double(decodeNs) / 1e6, 1e-6);
    // Totals count every step; the rates leave out the first, in which every sequence finds an empty cache.
    EXPECT_EQ(summary.coldSteps, 1);
    EXPECT_EQ(summary.countedSteps, 59);
    EXPECT_EQ(summary.ratesCount(), "1 cold step left out");
    EXPECT_NEAR(summary.tokensPerSecond, double(decoded - coldTokens) * 1e9 / double(decodeNs - coldNs),
                1e-6 * summary.tokensPerSecond);
    EXPECT_NEAR(summary.stepMs, double(decodeNs - coldNs) / 59e6, 1e-9);
    EXPECT_NEAR(summary.missesPerStep, double(misses - coldMisses) / 59, 1e-9);
    EXPECT_EQ(summary.hits, hits);
    EXPECT_EQ(summary.misses, misses);
    EXPECT_EQ(summary.selected, hits + misses);
    EXPECT_NEAR(summary.hitRate, double(hits - coldHits) / double(hits + misses - coldHits - coldMisses), 1e-12);
    EXPECT_EQ(summary.h2dBytes, h2d);
    EXPECT_EQ(summary.d2hBytes, d2h);
    EXPECT_EQ(summary.timing, Timing::Modelled);
    EXPECT_NEAR(summary.transferMs, double(transfer) / 1e6, 1e-6);
    EXPECT_NEAR(summary.exposedMs, double(exposed) / 1e6, 1e-6);
    EXPECT_EQ(summary.localityCount, std::int64_t(localities.size()));
    EXPECT_EQ(summary.localityUndefined, undefined);
    EXPECT_EQ(summary.localityOpening, opening);
    EXPECT_NEAR(summary.localityMean, mean, 1e-9);
    EXPECT_NEAR(summary.localityMin, *std::min_element(localities.begin(), localities.end()), 1e-12);

    double shares = 0;
    std::int64_t total = 0;
    for (const ComponentShare& share : summary.components)
        if (share.phase == Phase::Decode) shares += share.share, total += share.totalNs;
    EXPECT_NEAR(shares, 1, 1e-9);
    EXPECT_EQ(total, decodeNs);
    for (const ComponentShare& share : summary.components) {
        if (share.phase != Phase::Decode || share.component != "ffn") continue;
        std::int64_t warm = 0; // without the first decode step
        for (const StepRecord& step : steps)
            for (const LayerRecord& layer : step.layers)
                if (step.step > 1) warm += layer.stageNs[std::size_t(Stage::Ffn)];
        EXPECT_NEAR(share.share, double(warm) / double(decodeNs - coldNs), 1e-12) << "as all shares: no cold step";
    }
    EXPECT_EQ(summary.components.front().phase, Phase::Prefill);
    EXPECT_EQ(summary.components.front().component, "embed");
    EXPECT_EQ(summary.components.back().component, "other");
}

TEST(Summary, LeavesUndefinedNumbersUndefined) {
    synthetic::RunShape dense;
    dense.denseLayers = dense.layers;
    dense.decodeSteps = 0;
    test::Folder folder;
    const std::string file = (folder / "run.kvtrace").string();
    synthetic::recordFile(file, dense);
    const RunSummary summary = summarize(TraceReader(file), 1);
    EXPECT_TRUE(std::isnan(summary.localityMean));
    EXPECT_TRUE(std::isnan(summary.localityMin));
    EXPECT_TRUE(std::isnan(summary.hitRate));
    EXPECT_TRUE(std::isnan(summary.tokensPerSecond));
    EXPECT_EQ(summary.localityCount, 0);
    EXPECT_THROW(summarize(TraceReader(file), 2), Error);
}

TEST(Summary, CountsColdStepsInRatesWhereSomebodyAsksForThem) {
    test::Folder folder;
    const std::string file = (folder / "run.kvtrace").string();
    synthetic::recordFile(file, {}, RecordLevel::Counters);
    const TraceReader reader(file);
    const RunSummary warm = summarize(reader, 1);
    setColdSteps(ColdSteps::Counted);
    const RunSummary all = summarize(reader, 1);
    setColdSteps(ColdSteps::LeftOut);
    EXPECT_EQ(all.countedSteps, all.decodeSteps);
    EXPECT_EQ(all.ratesCount(), "all steps, 1 cold one among them");
    EXPECT_NEAR(all.hitRate, double(all.hits) / double(all.hits + all.misses), 1e-12);
    EXPECT_LT(all.hitRate, warm.hitRate) << "an empty cache hits nothing";
    EXPECT_EQ(all.hits, warm.hits) << "totals do not depend on it";
    EXPECT_EQ(all.misses, warm.misses);
    EXPECT_EQ(all.exposedMs, warm.exposedMs);
}

TEST(Summary, SaysWhatTheTimeBetweenStepsDoesToTheRate) {
    test::Folder folder;
    const std::string file = (folder / "run.kvtrace").string();
    auto steps = synthetic::stepsOf({}, RecordLevel::Counters);
    const auto record = [&](std::int64_t pauseNs) {
        TraceStore store(file, true);
        store.beginRun(synthetic::infoOf({}), RecordLevel::Counters);
        std::int64_t now = 0;
        for (StepRecord& step : steps) {
            step.startNs = now;
            now += step.durationNs + pauseNs;
            store.addStep(step);
        }
        store.endRun(RunStatus::Finished, "");
        store.commit();
        store.finish();
    };
    record(0);
    const RunSummary close = summarize(TraceReader(file), 1);
    EXPECT_NEAR(close.tokensPerSecondWithGaps, close.tokensPerSecond, 1e-6 * close.tokensPerSecond);
    EXPECT_FALSE(close.gapsMatter());
    record(10'000'000);
    const RunSummary apart = summarize(TraceReader(file), 1);
    EXPECT_EQ(apart.tokensPerSecond, close.tokensPerSecond);
    EXPECT_NEAR(apart.gapsMs, 190, 1e-6) << "10 ms between each of 20 decode steps";
    EXPECT_TRUE(apart.gapsMatter());
    EXPECT_NEAR(apart.tokensPerSecondWithGaps, 19e3 / (19 * apart.stepMs + 190), 1e-6 * apart.tokensPerSecond);
}

TEST(StepKinds, CallColdWhereASequenceSelectsForTheFirstTime) {
    const auto kinds = [](std::vector<StepMark> marks) {
        std::string text;
        for (const StepKind kind : kindsOf(marks)) text += *nameOf(kind);
        return text;
    };
    // Another sequence joins in step 3.
    EXPECT_EQ(kinds({{1, true, true}, {2, true, false, true}, {3, true, true, true}, {4, true, false}}), "cocs");
    EXPECT_EQ(kinds({{1, true, true}, {2, true, true, true}, {3, true, true}}), "cos") << "never says what was kept";
    EXPECT_EQ(kinds({{1, false, false}, {2, false, false}, {3, true, true}, {4, true, false}}), "sscs")
        << "dense until step 3";
    EXPECT_EQ(kinds({{1, false, false}, {2, false, false}}), "cs") << "never selects";
    EXPECT_EQ(kinds({{7, true, false}, {8, true, false}}), "ss") << "the first steps were not recorded";
    EXPECT_EQ(kinds({}), "");
}

TEST(Summary, OfARunThatHasJustBegunIsEmpty) {
    test::Folder folder;
    const std::string file = (folder / "run.kvtrace").string();
    Recorder recorder(file, {});
    recorder.beginRun(synthetic::infoOf({}));
    recorder.flush();
    const RunSummary summary = summarize(TraceReader(file), 1);
    EXPECT_EQ(summary.decodeSteps, 0);
    EXPECT_TRUE(summary.components.empty());
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
