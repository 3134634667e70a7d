// Exposure: sums equal plain SQL, every exposed nanosecond has one reason, layers are named only when they stand out.
#include "base/error.h"
#include "profiler/insights/exposure.h"
#include "tests/profiler/insights_fixture.h"
#include "tests/profiler/sql_rows.h"
#include "tests/profiler/synthetic_run.h"
#include "tests/support/places.h"

#include <gmock/gmock.h>
#include <numeric>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using testing::HasSubstr;

std::int64_t number(const std::string& file, const std::string& query) { return std::stoll(test::value(file, query)); }

TEST(Exposure, EqualsSqlOnTheTrace) {
    synthetic::RunShape shape;
    shape.sequences = 3;
    shape.decodeSteps = 50;
    shape.denseLayers = 1;
    test::Folder folder;
    const std::string file = (folder / "run.kvtrace").string();
    synthetic::recordFile(file, shape);
    const ExposureReport report = exposureOf(TraceReader(file), 1);

    EXPECT_EQ(report.all.time.exposedNs, number(file, "SELECT sum(exposed_ns) FROM v_step WHERE phase='decode'"));
    EXPECT_EQ(report.all.time.transferNs, number(file, "SELECT sum(transfer_ns) FROM v_step WHERE phase='decode'"));
    EXPECT_EQ(report.all.wallNs, number(file, "SELECT sum(duration_ns) FROM v_step WHERE phase='decode'"));
    EXPECT_EQ(report.cold.steps, 1);
    const std::string warm = "phase='decode' AND step > 1";
    EXPECT_EQ(report.warm.time.exposedNs, number(file, "SELECT sum(exposed_ns) FROM v_step WHERE " + warm));
    EXPECT_EQ(report.opening.steps, number(file, "SELECT count(*) FROM v_step WHERE opens_block AND " + warm));
    ASSERT_EQ(report.layers.size(), 4u);
    for (const LayerExposure& layer : report.layers) {
        const std::string where = " FROM v_layer WHERE " + warm + " AND layer = " + std::to_string(layer.layer);
        EXPECT_EQ(layer.time.exposedNs, number(file, "SELECT sum(exposed_ns)" + where));
        EXPECT_EQ(layer.time.transferNs, number(file, "SELECT sum(h2d_ns + d2h_ns)" + where));
        EXPECT_EQ(layer.misses, number(file, "SELECT sum(misses)" + where));
        EXPECT_EQ(layer.h2dBytes, number(file, "SELECT sum(h2d_bytes)" + where));
        EXPECT_EQ(layer.h2dTransfers, number(file, "SELECT sum(h2d_bytes > 0)" + where));
        EXPECT_EQ(layer.wallNs, number(file, "SELECT sum(duration_ns)" + where));
        EXPECT_EQ(std::accumulate(layer.time.becauseNs.begin(), layer.time.becauseNs.end(), std::int64_t(0)),
                  layer.time.exposedNs);
    }
    for (const StepExposure& step : report.steps)
        EXPECT_EQ(std::accumulate(step.time.becauseNs.begin(), step.time.becauseNs.end(), std::int64_t(0)),
                  step.time.exposedNs);
    const double exposed = double(report.warm.time.exposedNs);
    EXPECT_NEAR(report.exposedShare(), exposed / (double(report.warm.wallNs) + exposed), 1e-12)
        << "modelled time is no part of wall time";
    EXPECT_THAT(report.headline, HasSubstr("would be exposed transfer (modelled link)"));
}

/// One decode step of one layer after a cold one, its numbers chosen by hand.
ExposureReport oneLoad(const std::string& file, bool measured, std::int64_t h2dBytes, std::int64_t d2hBytes,
                       std::int64_t transferNs, std::int64_t exposedNs, std::int64_t computeNs) {
    RunInfo info = synthetic::infoOf({.layers = 1, .kvHeads = 1});
    info.linkTiming = measured ? Timing::Measured : Timing::Modelled;
    info.linkGbps = 1; // a byte per nanosecond
    info.linkLatencyUs = 10;
    std::vector<StepRecord> steps(3);
    for (int i = 0; i < 3; ++i) {
        StepRecord& step = steps[std::size_t(i)];
        step.step = i;
        step.phase = i == 0 ? Phase::Prefill : Phase::Decode;
        step.startNs = i * 10'000'000;
        step.durationNs = 1'000'000;
        step.layers.resize(1);
        step.layers[0].startNs = step.startNs;
        step.layers[0].stageNs[std::size_t(Stage::Ffn)] = computeNs;
        step.layers[0].selected = step.layers[0].misses = i == 0 ? 0 : 1;
        step.layers[0].kept = i < 2 ? -1 : 0;
    }
    LayerRecord& layer = steps[2].layers[0];
    layer.h2dBlocks = h2dBytes > 0, layer.d2hBlocks = d2hBytes > 0;
    layer.h2dBytes = h2dBytes, layer.d2hBytes = d2hBytes;
    layer.transferNs = transferNs, layer.exposedNs = exposedNs;
    test::write(file, info, steps);
    return exposureOf(TraceReader(file), 1);
}

TEST(Exposure, GivesEveryNanosecondItsReason) {
    test::Folder folder;
    int next = 0;
    const auto file = [&] { return (folder / (std::to_string(next++) + ".kvtrace")).string(); };
    // 300 us of bytes and 10 us of latency on demand, beside a layer that computes for 100 us.
    TransferTime time = oneLoad(file(), false, 300'000, 0, 310'000, 310'000, 100'000).warm.time;
    EXPECT_EQ(time.because(Exposure::Latency), 10'000);
    EXPECT_EQ(time.because(Exposure::Serial), 100'000);
    EXPECT_EQ(time.because(Exposure::Bandwidth), 200'000);
    // A write-back that is hidden, as the model has it.
    time = oneLoad(file(), false, 50'000, 20'000, 90'000, 60'000, 100'000).warm.time;
    EXPECT_EQ(time.hiddenNs(), 30'000);
    EXPECT_EQ(time.because(Exposure::Latency), 10'000);
    EXPECT_EQ(time.because(Exposure::Serial), 50'000);
    // Part of the load is hidden: somebody began it early, and what is left came late.
    time = oneLoad(file(), false, 50'000, 0, 60'000, 25'000, 100'000).warm.time;
    EXPECT_EQ(time.because(Exposure::Late), 25'000);
    EXPECT_EQ(time.hiddenNs(), 35'000);
    // Measured, both directions in one wait: a third of the bytes went back.
    time = oneLoad(file(), true, 40'000, 20'000, 60'000, 60'000, 100'000).warm.time;
    EXPECT_EQ(time.because(Exposure::WriteBack), 20'000);
    EXPECT_EQ(time.exposedNs, 60'000);
}

TEST(Exposure, MeasuredTimeIsPartOfTheWallTime) {
    test::Folder folder;
    const ExposureReport report =
        oneLoad((folder / "run.kvtrace").string(), true, 250'000, 0, 250'000, 250'000, 100'000);
    EXPECT_DOUBLE_EQ(report.exposedShare(), 0.25);
    EXPECT_EQ(report.headline, "25 % of decode time is exposed transfer (measured)");
}

std::vector<LayerExposure> layersOf(const std::vector<std::int64_t>& exposed) {
    std::vector<LayerExposure> layers;
    for (const std::int64_t ns : exposed) {
        LayerExposure layer;
        layer.layer = int(layers.size());
        layer.time.exposedNs = ns;
        layers.push_back(layer);
    }
    return layers;
}

TEST(Exposure, NamesTheFewestLayersThatCauseMostOfIt) {
    const LayerGroup stretch = groupOf(layersOf({1, 1, 1, 1, 10, 12, 9, 11, 10, 12, 1, 1, 1, 1, 1, 1}));
    EXPECT_EQ(describe(stretch), "layers 5-9") << "4-8 is as short and causes less";
    EXPECT_NEAR(stretch.share, 54.0 / 74, 1e-12);
    EXPECT_EQ(describe(groupOf(layersOf({0, 50, 1, 1, 40, 41, 1, 1, 1, 1}))), "layers 1 and 4-5");
    EXPECT_EQ(describe(groupOf(layersOf({1, 1, 90, 1, 1}))), "layer 2");
}

TEST(Exposure, NamesNoLayersWhenAllAreAlike) {
    EXPECT_TRUE(groupOf(layersOf({10, 11, 10, 9, 10, 10, 11, 10})).ranges.empty());
    EXPECT_TRUE(groupOf(layersOf({10})).ranges.empty()) << "one layer is not one of several";
    EXPECT_TRUE(groupOf(layersOf({0, 0, 0})).ranges.empty());
    EXPECT_TRUE(groupOf({}).ranges.empty());
}

TEST(Exposure, SaysWhenThereIsNothingToSay) {
    test::Folder folder;
    const std::string dense = (folder / "dense.kvtrace").string(), prefill = (folder / "prefill.kvtrace").string();
    synthetic::recordFile(dense, {.layers = 2, .denseLayers = 2});
    EXPECT_THAT(exposureOf(TraceReader(dense), 1).headline, HasSubstr("No transfers"));
    test::sql(dense, "UPDATE run SET device_slots = 0", SQLITE_OPEN_READWRITE);
    EXPECT_THAT(exposureOf(TraceReader(dense), 1).detail, HasSubstr("Every block is resident."));
    test::sql(dense, "INSERT INTO run_meta VALUES (1, 'denoising_block', '8')", SQLITE_OPEN_READWRITE);
    EXPECT_THAT(exposureOf(TraceReader(dense), 1).detail, HasSubstr("of a diffusion model stay on the device."));
    synthetic::recordFile(prefill, {.decodeSteps = 0});
    EXPECT_EQ(exposureOf(TraceReader(prefill), 1).headline, "No decode steps are recorded yet");
    const std::string cold = (folder / "cold.kvtrace").string();
    synthetic::recordFile(cold, {.decodeSteps = 1});
    EXPECT_THAT(exposureOf(TraceReader(cold), 1).headline, HasSubstr("Only cold decode steps"));
    EXPECT_THROW(exposureOf(TraceReader(cold), 2), Error);
}

TEST(Insights, FiguresEqualSqlOnTheTrace) {
    test::Folder folder;
    const std::string file = (folder / "run.kvtrace").string();
    test::record(file, {.method = "infllmv2", .newTokens = 30, .link = {"slow", 0.2, 40}});
    const InsightReport report = insightsOf(TraceReader(file), 1);
    const Insight* thrash = test::find(report, "thrash");
    ASSERT_NE(thrash, nullptr) << test::listed(report);
    EXPECT_EQ(std::int64_t(test::figure(*thrash, "misses")),
              number(file, "SELECT sum(misses) FROM v_step WHERE phase='decode' AND step > 1"));
    const Insight* latency = test::find(report, "latency-bound");
    ASSERT_NE(latency, nullptr) << test::listed(report);
    EXPECT_EQ(std::int64_t(test::figure(*latency, "loads")),
              number(file, "SELECT count(*) FROM v_layer WHERE phase='decode' AND step > 1 AND h2d_bytes > 0"));
    EXPECT_NEAR(test::figure(*latency, "exposed_ms"),
                double(number(file, "SELECT sum(exposed_ns) FROM v_step WHERE phase='decode' AND step > 1")) / 1e6,
                1e-9);
    double before = 2;
    Severity severity = Severity::Alarm;
    for (const Insight& insight : report.insights) { // ranked
        if (insight.severity != severity) severity = insight.severity, before = 2;
        EXPECT_LE(insight.impact, before);
        before = insight.impact;
        EXPECT_FALSE(insight.figures.empty());
        EXPECT_THAT(insight.title, testing::MatchesRegex(".*[0-9].*")) << "no claim without numbers";
        EXPECT_FALSE(insight.advice.empty());
        EXPECT_FALSE(insight.evidence.view.empty());
    }
}

TEST(Insights, LocalityIsThatOfTheViews) {
    const std::string file = test::source("resources/samples/h200-nosa-tiny.kvtrace");
    const InsightReport report = insightsOf(TraceReader(file), 2);
    const Insight* low = test::find(report, "low-locality");
    ASSERT_NE(low, nullptr) << test::listed(report);
    const std::string perLayer = "(SELECT avg(locality) AS g FROM v_locality WHERE run_id=2 AND NOT opens_block"
                                 " GROUP BY layer)";
    EXPECT_NEAR(test::figure(*low, "lowest_locality"), std::stod(test::value(file, "SELECT min(g) FROM " + perLayer)),
                1e-12);
    EXPECT_EQ(std::int64_t(test::figure(*low, "layers")), number(file, "SELECT sum(g < 0.7) FROM " + perLayer));
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
