// A trace of an engine that knows only a part: what it does not know is shown as "not known", never as 0, 100 % or
// "everything resident", and nothing that reads it fails.
#include "core/trace/knowledge.h"

#include "base/error.h"
#include "profiler/compare/compare.h"
#include "profiler/export/export.h"
#include "profiler/insights/insight.h"
#include "profiler/read/filtered.h"
#include "profiler/read/own_tier.h"
#include "profiler/read/span_batch.h"
#include "profiler/read/summary.h"
#include "profiler/replay/check.h"
#include "profiler/replay/replay.h"
#include "profiler/report/html.h"
#include "profiler/roofline/measured_run.h"
#include "profiler/store/trace_store.h"
#include "profiler/waterfall/waterfall.h"
#include "tests/profiler/sql_rows.h"
#include "tests/profiler/synthetic_run.h"
#include "tests/profiler/temporary_folder.h"
#include "tests/support/places.h"

#include <cmath>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sstream>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using testing::AnyOf;
using testing::Contains;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

const Knowledge kSelectionsOnly =
    Knowledge::nothing().with(Known::Selections).with(Known::StepTimes).with(Known::StageTimes);

/// A run of another engine, which saw what it selected and how long its steps took.
void recordForeign(const std::string& file, Knowledge knows = kSelectionsOnly, bool says = true) {
    synthetic::RunShape shape;
    shape.decodeSteps = 40;
    shape.method = "csa";
    RunInfo info = synthetic::infoOf(shape);
    info.backend = "cuda";
    info.device = "another machine";
    info.deviceSlots = 0; // not known either
    info.linkTiming = Timing::Measured;
    info.linkGbps = info.linkLatencyUs = 0;
    info.knows = knows;
    TraceStore store(file, true);
    store.beginRun(info, RecordLevel::Selections);
    store.addPrompts(info.prompts);
    for (StepRecord& step : synthetic::stepsOf(shape, RecordLevel::Selections)) {
        for (LayerRecord& layer : step.layers) {
            layer.hits = layer.misses = layer.h2dBlocks = layer.d2hBlocks = 0;
            layer.h2dBytes = layer.d2hBytes = layer.transferNs = layer.exposedNs = 0;
        }
        for (SelectionRecord& selection : step.selections) selection.hits = selection.misses = 0;
        // What an engine writes that does not know hits.
        for (PackedBlock& block : step.blocks) block = block.withHit(true);
        store.addStep(step);
    }
    store.endRun(RunStatus::Finished, "");
    store.commit();
    store.finish();
    if (!says) test::sql(file, "DELETE FROM run_meta WHERE key = 'knows'", SQLITE_OPEN_READWRITE);
}

class PartlyKnown : public testing::TestWithParam<bool> { // whether the file says so, or only its rows do
protected:
    void SetUp() override { recordForeign(file, kSelectionsOnly, GetParam()); }
    test::Folder folder;
    std::string file = (folder / "foreign.kvtrace").string();
};

TEST(Knowledge, IsReadBackAsItWasWritten) {
    for (const Knowledge knows : {Knowledge::everything(), Knowledge::nothing(), kSelectionsOnly})
        EXPECT_EQ(Knowledge::parse(knows.toJson()), knows) << knows.toJson();
    EXPECT_EQ(kSelectionsOnly.toJson(), R"(["selections","step_times","stage_times"])");
    EXPECT_EQ(Knowledge::parse(R"(["hits","a word of a later version"])"), Knowledge::nothing().with(Known::Hits));
    for (const char* damaged : {"", "hits", "{}", "[1]", "[\"hits\"", "7"})
        EXPECT_EQ(Knowledge::parse(damaged), std::nullopt) << damaged;
    EXPECT_EQ(kSelectionsOnly.list(), "selected blocks, step times, stage times");
    EXPECT_EQ(kSelectionsOnly.list(true), "hits and misses, bytes, transfer times, exposed times");
}

TEST(Knowledge, IsEverythingInOurOwnRunsAndIsWritten) {
    test::Folder folder;
    const std::string file = (folder / "run.kvtrace").string();
    synthetic::recordFile(file, {});
    const RunRow run = *TraceReader(file).run(1);
    EXPECT_EQ(run.knows, Knowledge::everything());
    EXPECT_EQ(run.metaOr("engine"), "kvscope");
    EXPECT_FALSE(run.metaOr("engine_version").empty());
    EXPECT_EQ(run.metaOr("no such key"), "");
    EXPECT_EQ(test::value(file, "SELECT value FROM run_meta WHERE run_id = 1 AND key = 'knows'"),
              Knowledge::everything().toJson());
    // Older traces lack the table, and know everything.
    test::sql(file, "DROP TABLE run_meta", SQLITE_OPEN_READWRITE);
    EXPECT_EQ(TraceReader(file).run(1)->knows, Knowledge::everything());
    for (const char* sample : {"h200-nosa-8b.kvtrace", "h200-nosa-tiny.kvtrace"})
        for (const RunRow& row : TraceReader(test::source("resources/samples/") + sample).runs())
            EXPECT_EQ(row.knows, Knowledge::everything()) << sample;
    // A further run in such a file gets the table again.
    TraceStore(file, false).finish();
    EXPECT_EQ(test::value(file, "SELECT count(*) FROM run_meta"), "0");
}

TEST(Knowledge, IsNotAskedOfAStrangersTable) {
    test::Folder folder;
    const std::string file = (folder / "run.kvtrace").string();
    synthetic::recordFile(file, {});
    test::sql(file, "DROP TABLE run_meta; CREATE TABLE run_meta(something TEXT); INSERT INTO run_meta VALUES ('x')",
              SQLITE_OPEN_READWRITE);
    const RunRow run = *TraceReader(file).run(1);
    EXPECT_EQ(run.knows, Knowledge::everything());
    EXPECT_TRUE(run.meta.empty());
}

TEST_P(PartlyKnown, IsToldFromTheFile) {
    const RunRow run = *TraceReader(file).run(1);
    EXPECT_EQ(run.knows, kSelectionsOnly);
}

TEST_P(PartlyKnown, HasNoValuesOfWhatIsNotKnown) {
    const TraceReader reader(file);
    const auto any = [](const StepMatrix& matrix) {
        return std::any_of(matrix.values.begin(), matrix.values.end(), [](float v) { return std::isfinite(v); });
    };
    for (const MetricInfo& metric : metrics()) {
        const bool known = metric.metric == Metric::Locality || metric.metric == Metric::LayerTime;
        EXPECT_EQ(any(reader.layerMatrix(1, metric.metric)), known) << metric.id;
        EXPECT_EQ(any(filteredLayers(reader, 1, metric.metric, -1, {{{1, 2}}, {}, {}, {}, {}})), known) << metric.id;
        EXPECT_EQ(any(reader.headMatrix(1, metric.metric, 0)), metric.metric == Metric::Locality) << metric.id;
    }
    const auto selection = reader.selection(1, 3, 0, 0, 0);
    ASSERT_TRUE(selection);
    EXPECT_FALSE(selection->blocks.empty());
    EXPECT_FALSE(selection->knowsHits) << "no block is called a hit";
    EXPECT_TRUE(std::isfinite(selection->locality()));
    for (const StepRow& row : filteredSteps(reader, 1, {})) {
        EXPECT_EQ(row.hits, -1);
        EXPECT_EQ(row.h2dBytes, -1);
        EXPECT_EQ(row.transferNs, -1);
        EXPECT_EQ(row.exposedNs, -1);
        EXPECT_GE(row.selected, 0);
    }
}

TEST_P(PartlyKnown, HasNoRatesOfWhatIsNotKnown) {
    const RunSummary summary = summarize(TraceReader(file), 1);
    EXPECT_TRUE(std::isnan(summary.hitRate));
    EXPECT_TRUE(std::isnan(summary.missesPerStep));
    EXPECT_TRUE(std::isnan(summary.h2dBytesPerStep));
    EXPECT_TRUE(std::isnan(summary.exposedMsPerStep));
    EXPECT_TRUE(std::isfinite(summary.tokensPerSecond));
    EXPECT_TRUE(std::isfinite(summary.localityMean));
    EXPECT_FALSE(summary.knows.has(Known::Hits));
}

TEST_P(PartlyKnown, IsNotCalledResidentOrFullyHit) {
    const InsightReport report = insightsOf(TraceReader(file), 1);
    if (GetParam()) { // else zeros that nobody declared break the rules of the format, which the headline then says
        EXPECT_THAT(report.exposure.headline, HasSubstr("not known"));
    }
    EXPECT_FALSE(report.exposure.known);
    std::string all = report.exposure.headline + report.exposure.detail;
    for (const Insight& insight : report.insights) all += insight.id + insight.title + insight.detail;
    EXPECT_THAT(all, Not(AnyOf(HasSubstr("resident"), HasSubstr("100 %"), HasSubstr("No transfer"))));
    EXPECT_THAT(report.unasked, testing::IsSupersetOf({"hit-rate-resident", "low-locality", "link-saturated"}));
    EXPECT_THAT(report.unasked, Not(Contains("unused-budget")));
    EXPECT_EQ(report.judged, report.rules);
}

TEST_P(PartlyKnown, ReadsNotKnownInReports) {
    const reports::Report report = reports::makeReport({file});
    const reports::Table* numbers = report.table("key_numbers");
    ASSERT_TRUE(numbers);
    for (const char* name : {"Hit rate", "Hits", "Misses", "Misses of the first decode step", "To device", "To host",
                             "Transfer time", "Exposed transfer time", "Exposed per step"}) {
        const auto* row = numbers->find("quantity", name);
        ASSERT_TRUE(row) << name;
        EXPECT_EQ(reports::display((*row)[1]), "not known") << name;
        EXPECT_EQ(reports::raw((*row)[1]), "") << name;
    }
    EXPECT_NE(reports::display((*numbers->find("quantity", "Mean step"))[1]), "not known");
    const auto* slots = report.table("configuration")->find("quantity", "Device slots");
    ASSERT_TRUE(slots);
    EXPECT_EQ(reports::display((*slots)[1]), "not known");
    EXPECT_THAT(reports::html(report), Not(HasSubstr("everything resident")));
}

TEST_P(PartlyKnown, ExportsNothingForWhatIsNotKnown) {
    const auto text = [&](ExportTable table, ExportFormat format) {
        std::ostringstream out;
        exportTable(file, table, format, out, {});
        return out.str();
    };
    EXPECT_THAT(text(ExportTable::Steps, ExportFormat::Jsonl),
                HasSubstr(R"("hits":null,"misses":null,"h2d_bytes":null)"));
    EXPECT_THAT(text(ExportTable::Steps, ExportFormat::Jsonl), Not(HasSubstr(R"("selected":null)")));
    EXPECT_THAT(text(ExportTable::Selections, ExportFormat::Jsonl), HasSubstr(R"("hit":null)"));
    EXPECT_THAT(text(ExportTable::Selections, ExportFormat::Csv), HasSubstr(",sink,\n"));
    EXPECT_EQ(test::value(file, "SELECT sum(hits) + sum(misses) FROM v_step"), "0") << "the columns keep 0";
}

TEST(PartlyKnownRun, ExportsNoTimesOfStagesThatNobodyTook) {
    test::Folder folder;
    const std::string file = (folder / "foreign.kvtrace").string();
    recordForeign(file, Knowledge::nothing().with(Known::Selections).with(Known::StepTimes));
    std::ostringstream steps, layers;
    exportTable(file, ExportTable::Steps, ExportFormat::Jsonl, steps, {});
    exportTable(file, ExportTable::Layers, ExportFormat::Jsonl, layers, {});
    EXPECT_THAT(steps.str(), HasSubstr(R"("embed_ns":null,"lm_head_ns":null,"sample_ns":null)"));
    EXPECT_THAT(steps.str(), Not(HasSubstr(R"("duration_ns":null)")));
    EXPECT_THAT(layers.str(),
                HasSubstr(R"("qkv_linear_ns":null,"rope_ns":null,"compression_ns":null,"stage1_ns":null,)"
                          R"("pooling_ns":null,"offloading_ns":null,"stage2_ns":null,"attention_ns":null,)"
                          R"("o_linear_ns":null,"ffn_ns":null)"));
}

TEST(PartlyKnownRun, HasAWaterfallThatSaysThatItsPartsAreNotKnown) {
    test::Folder folder;
    const std::string file = (folder / "foreign.kvtrace").string();
    recordForeign(file, Knowledge::nothing().with(Known::Selections).with(Known::StepTimes));
    EXPECT_THAT(waterfallOf(TraceReader(file), 1, GpuTable()).detail,
                ContainsRegex("^A step takes [^;:]+; how long its parts take is not known. There is no roof"));
}

TEST(PartlyKnownRun, ExportsNoTimesOfStepsThatNobodyTook) {
    test::Folder folder;
    const std::string file = (folder / "foreign.kvtrace").string();
    recordForeign(file, Knowledge::nothing().with(Known::Selections));
    test::sql(file,
              "UPDATE step SET start_ns = 0, duration_ns = 0; INSERT INTO text VALUES (1, 'host'), (2, 'sampler');"
              " INSERT INTO span VALUES (1, 1, -1, -1, 0, 1, 2, 700, 30, 0, NULL, NULL)",
              SQLITE_OPEN_READWRITE);
    const auto text = [&](ExportTable table) {
        std::ostringstream out;
        exportTable(file, table, ExportFormat::Jsonl, out, {});
        return out.str();
    };
    for (const ExportTable table : {ExportTable::Steps, ExportTable::Layers, ExportTable::Spans}) {
        EXPECT_THAT(text(table), HasSubstr(R"("start_ns":null,"duration_ns":null)"));
        EXPECT_THAT(text(table), Not(HasSubstr(R"("duration_ns":0)")));
    }
    EXPECT_THAT(text(ExportTable::Spans), HasSubstr(R"("start_ns":700,"duration_ns":30)")) << "these were seen";
    EXPECT_THAT(text(ExportTable::Breakdown), HasSubstr(R"("total_ns":null)"));
    const SpanBatch spans = readSpans(TraceReader(file), 1, {}, 1 << 20);
    EXPECT_TRUE(spans.atEnd);
    ASSERT_EQ(spans.spans.size(), 1u) << "no step has a place on the timeline";
    EXPECT_EQ(spans.texts[spans.spans.front().name], "sampler");
    std::ostringstream chrome;
    exportChromeTrace(file, chrome);
    EXPECT_THAT(chrome.str(), Not(HasSubstr(R"("name":"decode")"))) << "no step has a place in time";
    EXPECT_THAT(chrome.str(), HasSubstr(R"("name":"sampler")"));
}

TEST_P(PartlyKnown, IsReplayedWithoutAComparison) {
    const SelectionTrace trace = loadSelectionTrace(TraceReader(file), 1);
    EXPECT_FALSE(reproduce(trace)) << "there is nothing to compare with";
    const auto configs = replay(trace, {{"lru"}, {16}, {}});
    ASSERT_EQ(configs.size(), 1u);
    EXPECT_GT(configs[0].misses, 0) << "what another cache would do follows from the selections";
}

/// What a cache would hit follows from the selections; how fast it would be does not.
TEST(PartlyKnownRun, WithoutTimesOfStepsIsReplayedWithoutASpeed) {
    test::Folder folder;
    const std::string file = (folder / "foreign.kvtrace").string();
    recordForeign(file, Knowledge::nothing().with(Known::Selections));
    test::sql(file, "UPDATE step SET start_ns = 0, duration_ns = 0", SQLITE_OPEN_READWRITE);
    const SelectionTrace trace = loadSelectionTrace(TraceReader(file), 1);
    ReplayOptions options{{"lru"}, {16}, {}};
    options.prefetch = Prefetch{};
    const auto configs = replay(trace, options);
    ASSERT_EQ(configs.size(), 1u);
    EXPECT_GT(configs[0].misses, 0);
    EXPECT_GT(configs[0].exposedNs, 0) << "of the link alone";
    EXPECT_TRUE(std::isnan(configs[0].computeNs));
    EXPECT_TRUE(std::isnan(configs[0].tokensPerSecond));
    ASSERT_TRUE(configs[0].prefetched);
    EXPECT_TRUE(std::isnan(configs[0].prefetched->tokensPerSecond));
    for (const ColdSteps cold : {ColdSteps::Counted, ColdSteps::LeftOut})
        EXPECT_TRUE(std::isnan(rateSums(configs[0], cold).tokensPerSecond()));
}

TEST_P(PartlyKnown, IsARooflinePointWithoutItsMethodsScore) {
    const MeasuredRun run = measuredRun(TraceReader(file), 1);
    EXPECT_FALSE(run.methodKnown);
    EXPECT_FALSE(run.method.dense);
    EXPECT_EQ(run.method.budgetBlocks(), 9);
    EXPECT_TRUE(std::isnan(run.hitRate));
    EXPECT_TRUE(std::isnan(run.linkBytes));
    EXPECT_GT(run.stepNs, 0);
}

TEST(PartlyKnownRun, WithoutTimesOfStepsIsNoRooflinePointAndSaysWhy) {
    test::Folder folder;
    const std::string file = (folder / "foreign.kvtrace").string();
    recordForeign(file, Knowledge::nothing().with(Known::Selections));
    // What an engine writes that takes no times.
    test::sql(file, "UPDATE step SET duration_ns = 0", SQLITE_OPEN_READWRITE);
    try {
        (void)measuredSteps(TraceReader(file), 1);
        FAIL() << "it was measured";
    } catch (const Error& error) {
        EXPECT_EQ(error.kind, ErrorKind::BadInput);
        EXPECT_THAT(error.what(), HasSubstr("does not know how long its steps took"));
    }
}

/// DSA as an engine that is served from names it too: its budget is what the trace says, not this program's default.
TEST_P(PartlyKnown, AnotherEnginesMethodIsNotOursThoughTheNameIs) {
    test::sql(file, "UPDATE run SET method = 'dsa'", SQLITE_OPEN_READWRITE);
    test::sql(file, "INSERT OR REPLACE INTO run_meta VALUES (1, 'engine', 'sglang')", SQLITE_OPEN_READWRITE);
    const MeasuredRun run = measuredSteps(TraceReader(file), 1);
    EXPECT_FALSE(run.methodKnown);
    EXPECT_EQ(run.method.budgetBlocks(), 9);
}

INSTANTIATE_TEST_SUITE_P(Files, PartlyKnown, testing::Values(true, false),
                         [](const auto& shown) { return shown.param ? "ThatSaySo" : "ThatHoldZeros"; });

TEST(PartlyKnownRun, OfAMethodThatIsNotOursIsNotDecodedAgain) {
    test::Folder folder;
    const std::string file = (folder / "foreign.kvtrace").string();
    recordForeign(file);
    const TraceReader reader(file);
    const SelectionTrace trace = loadSelectionTrace(reader, 1);
    try {
        checkReplay(reader, trace, Model::load(kDefaultModel), {});
        FAIL() << "it was decoded";
    } catch (const Error& error) {
        EXPECT_EQ(error.kind, ErrorKind::BadInput);
        EXPECT_THAT(error.what(), HasSubstr("'csa'"));
    }
}

TEST(PartlyKnownRun, WithoutSelectionsIsNotCalledFullAttention) {
    test::Folder folder;
    const std::string file = (folder / "spans.kvtrace").string();
    RunInfo info = synthetic::infoOf({});
    info.knows = Knowledge::nothing().with(Known::StepTimes);
    {
        TraceStore store(file, true);
        store.beginRun(info, RecordLevel::Selections);
        for (StepRecord& step : synthetic::stepsOf({.denseLayers = 4}, RecordLevel::Selections)) store.addStep(step);
        store.commit();
        store.finish();
    }
    try {
        (void)loadSelectionTrace(TraceReader(file), 1);
        FAIL() << "it was replayed";
    } catch (const Error& error) {
        EXPECT_THAT(error.what(), HasSubstr("does not know which blocks were selected"));
    }
}

TEST(RunName, IsTheMethodsOnTheModelsIfThereIsOne) {
    test::Folder folder;
    for (const std::string model : {"", "mine"}) {
        const std::string file = (folder / (model + ".kvtrace")).string();
        RunInfo info = synthetic::infoOf({});
        info.name.clear();
        info.method = "csa";
        info.model = model;
        TraceStore store(file, true);
        store.beginRun(info, RecordLevel::Selections);
        store.finish();
        EXPECT_EQ(TraceReader(file).run(1)->name, model.empty() ? "csa" : "csa on mine");
    }
}

TEST(ModelPath, StaysOutOfReportsAndExports) {
    test::Folder folder;
    const std::string file = (folder / "run.kvtrace").string();
    RunInfo info = synthetic::infoOf({});
    info.model = "mine";
    info.meta = {{"model_path", "/secret/place/mine"}};
    {
        TraceStore store(file, true);
        store.beginRun(info, RecordLevel::Selections);
        for (const StepRecord& step : synthetic::stepsOf({}, RecordLevel::Selections)) store.addStep(step);
        store.commit();
        store.finish();
    }
    EXPECT_EQ(TraceReader(file).run(1)->metaOr("model_path"), "/secret/place/mine");
    const reports::Report report = reports::makeReport({file});
    std::string all = reports::html(report);
    for (const reports::Table& table : report.tables) all += reports::csv(table);
    for (const ExportTable table : {ExportTable::Runs, ExportTable::Steps, ExportTable::Spans}) {
        std::ostringstream out;
        exportTable(file, table, ExportFormat::Jsonl, out, {});
        all += out.str();
    }
    std::ostringstream chrome;
    exportChromeTrace(file, chrome);
    EXPECT_THAT(all + chrome.str(), Not(HasSubstr("secret")));
    EXPECT_THAT(all, HasSubstr("mine"));
    // An engine that records a path in place of the name: a report cuts it.
    RunRow row = *TraceReader(file).run(1);
    row.model = "/secret/place/mine/";
    EXPECT_EQ(reports::modelName(row), "mine");
    row.model = "owner/name";
    EXPECT_EQ(reports::modelName(row), "owner/name");
}

TEST(PartlyKnownRun, IsComparedByWhatBothKnow) {
    test::Folder folder;
    const std::string foreign = (folder / "foreign.kvtrace").string(), own = (folder / "own.kvtrace").string();
    recordForeign(foreign);
    synthetic::RunShape shape;
    shape.decodeSteps = 40;
    synthetic::recordFile(own, shape);
    const RunSample a = loadRunSample(TraceReader(own), 1), b = loadRunSample(TraceReader(foreign), 1);
    const Comparison comparison = compareRuns({&a, 1}, {&b, 1});
    for (const Quantity& quantity : comparison.quantities) {
        const bool known =
            quantity.name == "tokens_per_s" || quantity.name == "prefill" || quantity.name == "locality_mean";
        EXPECT_TRUE(std::isfinite(quantity.a)) << quantity.name;
        EXPECT_EQ(std::isfinite(quantity.b), known) << quantity.name;
    }
}

/// Without times there is no verdict on times, whoever insists.
TEST(PartlyKnownRun, WithoutTimesOfStepsIsNotCompared) {
    test::Folder folder;
    const std::string file = (folder / "foreign.kvtrace").string();
    recordForeign(file, Knowledge::nothing().with(Known::Selections));
    test::sql(file, "UPDATE step SET start_ns = 0, duration_ns = 0", SQLITE_OPEN_READWRITE);
    const RunSample sample = loadRunSample(TraceReader(file), 1);
    const std::vector<Obstacle> obstacles = findObstacles({&sample, 1}, {&sample, 1});
    ASSERT_EQ(obstacles.size(), 1u);
    EXPECT_THAT(obstacles.front().what, HasSubstr("does not know how long its steps took"));
    EXPECT_FALSE(obstacles.front().mayBeIgnored);
}

TEST(PartlyKnownRun, IsComparedWithoutPartsOfStepsThatItDoesNotKnow) {
    test::Folder folder;
    const std::string file = (folder / "foreign.kvtrace").string();
    recordForeign(file, Knowledge::nothing().with(Known::Selections).with(Known::StepTimes));
    const RunSample sample = loadRunSample(TraceReader(file), 1);
    EXPECT_TRUE(findObstacles({&sample, 1}, {&sample, 1}).empty());
    const Comparison comparison = compareRuns({&sample, 1}, {&sample, 1});
    EXPECT_TRUE(comparison.components.empty()) << "a step is not all of it 'other'";
    EXPECT_GT(comparison.step.aNs, 0);
    EXPECT_TRUE(std::isnan(comparison.exposed.aNs)) << "not 0: nobody saw it";
    EXPECT_TRUE(std::isnan(comparison.exposed.deltaNs.low));
}

/// Methods that choose tokens have no block slots, and what they load says that not everything is resident.
TEST(OwnTier, IsOfRunsThatKeepTokensByTheirOwnRule) {
    const test::Folder folder;
    const std::string file = (folder / "run.kvtrace").string();
    synthetic::recordFile(file, {}, RecordLevel::Counters);
    const auto slotsOf = [&](const char* parameters, const char* meta) {
        test::sql(file,
                  fmt::format("UPDATE run SET device_slots = 0, params_json = '{}'; DELETE FROM run_meta WHERE key IN "
                              "('kv_block_tokens', 'denoising_block'); {}",
                              parameters, meta),
                  SQLITE_OPEN_READWRITE);
        const reports::Report report = reports::makeReport({file});
        EXPECT_EQ(hasOwnTier(*TraceReader(file).run(1)),
                  reports::display((*report.table("configuration")->find("quantity", "Device slots"))[1]) ==
                      "by the method's own rule");
        return hasOwnTier(*TraceReader(file).run(1));
    };
    constexpr const char* kTokens = "INSERT INTO run_meta VALUES (1, 'kv_block_tokens', '64')";
    EXPECT_TRUE(slotsOf(R"({"offload":true})", kTokens));
    EXPECT_TRUE(slotsOf("{", kTokens)) << "damaged parameters say nothing";
    EXPECT_FALSE(slotsOf(R"({"offload":false})", kTokens));
    EXPECT_FALSE(slotsOf(R"({"offload":true})", ""));
    EXPECT_FALSE(
        slotsOf("{}", "INSERT INTO run_meta VALUES (1, 'kv_block_tokens', '8'), (1, 'denoising_block', '16')"));
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
