#include "profiler/read/summary.h"

#include "kernels/base/error.h"
#include "profiler/record/recorder.h"
#include "tests/profiler/sql_rows.h"
#include "tests/profiler/synthetic_run.h"
#include "tests/profiler/temporary_folder.h"

#include <algorithm>
#include <cmath>
#include <gtest/gtest.h>

namespace kvscope {
namespace {

TEST(Summary, AgreesWithTheStepsItSums) {
    synthetic::RunShape shape;
    shape.sequences = 3;
    shape.decodeSteps = 60;
    shape.denseLayers = 1;
    test::Folder folder;
    const std::string file = (folder / "run.kvtrace").string();
    synthetic::recordFile(file, shape, RecordLevel::Counters); // no blocks are needed for it
    std::int64_t decoded = 0, decodeNs = 0, hits = 0, misses = 0, h2d = 0, d2h = 0, transfer = 0, exposed = 0,
                 undefined = 0, opening = 0;
    std::vector<double> localities;
    const auto steps = synthetic::stepsOf(shape);
    for (const StepRecord& step : steps) {
        if (step.phase == Phase::Decode) decoded += step.tokens, decodeNs += step.durationNs;
        for (const LayerRecord& layer : step.layers) {
            hits += layer.hits;
            misses += layer.misses;
            h2d += layer.h2dBytes;
            d2h += layer.d2hBytes;
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
    EXPECT_NEAR(summary.tokensPerSecond, double(decoded) * 1e9 / double(decodeNs), 1e-6 * summary.tokensPerSecond);
    EXPECT_EQ(summary.hits, hits);
    EXPECT_EQ(summary.misses, misses);
    EXPECT_EQ(summary.selected, hits + misses);
    EXPECT_NEAR(summary.hitRate, double(hits) / double(hits + misses), 1e-12);
    EXPECT_EQ(summary.h2dBytes, h2d);
    EXPECT_EQ(summary.d2hBytes, d2h);
    EXPECT_EQ(summary.timing, "modelled");
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
        if (share.phase == "decode") shares += share.share, total += share.totalNs;
    EXPECT_NEAR(shares, 1, 1e-9);
    EXPECT_EQ(total, decodeNs);
    EXPECT_EQ(summary.components.front().phase, "prefill");
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
    EXPECT_EQ(summary.tokensPerSecond, 0);
    EXPECT_EQ(summary.localityCount, 0);
    EXPECT_THROW(summarize(TraceReader(file), 2), Error);
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

} // namespace
} // namespace kvscope
