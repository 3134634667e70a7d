// What keeps a run from its roof: the bars add up, each number is that of the trace's own SQL, and a fault that is
// planted in a copied trace lands in the bar that is named after it.
#include "profiler/waterfall/waterfall.h"

#include "profiler/read/link_clock.h"
#include "profiler/read/reader_impl.h"
#include "tests/profiler/insights_fixture.h"
#include "tests/profiler/sql_rows.h"
#include "tests/profiler/synthetic_run.h"
#include "tests/profiler/temporary_folder.h"
#include "tests/support/places.h"

#include <cmath>
#include <filesystem>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string samplePath(const char* name) { return test::source("resources/samples/") + name; }

Waterfall of(const std::string& path, int runId = 1) { return waterfallOf(TraceReader(path), runId, GpuTable()); }

double measured(const Waterfall& waterfall, const std::string& id) {
    const WaterfallBar* bar = waterfall.find(id);
    return bar == nullptr ? 0 : bar->measuredNs;
}

double transfers(const Waterfall& waterfall) {
    double sum = 0;
    for (const WaterfallBar& bar : waterfall.bars)
        if (bar.kind == LossKind::Transfer) sum += bar.measuredNs;
    return sum;
}

void expectToAddUp(const Waterfall& waterfall) {
    double loss = 0, all = 0;
    for (const WaterfallBar& bar : waterfall.bars) loss += bar.lossNs(), all += bar.measuredNs;
    EXPECT_NEAR(loss, waterfall.differenceNs(), 1e-6 * waterfall.measuredNs());
    EXPECT_NEAR(all, waterfall.measuredNs(), 1e-6 * waterfall.measuredNs());
    EXPECT_EQ(waterfall.bars.back().id, "unexplained");
}

TEST(Waterfall, OfTheSamplesAddsUpAndLeavesLittleUnexplained) {
    const std::pair<const char*, int> runs[] = {{"h200-nosa-8b.kvtrace", 1},
                                                {"h200-nosa-tiny.kvtrace", 1},
                                                {"h200-nosa-tiny.kvtrace", 2},
                                                {"h200-nosa-tiny.kvtrace", 3}};
    for (const auto& [name, runId] : runs) {
        SCOPED_TRACE(fmt::format("{} run {}", name, runId));
        const Waterfall waterfall = of(samplePath(name), runId);
        ASSERT_TRUE(waterfall.predictedNs);
        expectToAddUp(waterfall);
        EXPECT_LE(std::abs(waterfall.find("unexplained")->lossNs()), 0.05 * waterfall.measuredNs());
        EXPECT_TRUE(waterfall.kernels);
        EXPECT_TRUE(waterfall.noRoof.empty());
        EXPECT_FALSE(waterfall.aboveRoof);
        const RunBesideFloor beside =
            compare(waterfall.run, *shapeOfRun(waterfall.run.row), *gpuOfRun(GpuTable(), waterfall.run.row));
        EXPECT_NEAR(*waterfall.predictedNs, beside.predictedNs, 1) << "the roofline's own prediction";
        EXPECT_NEAR(waterfall.stepNs, waterfall.run.stepNs, 1e-3);
    }
}

TEST(Waterfall, NamesTheLargestPartFirst) {
    const Waterfall waterfall = of(samplePath("h200-nosa-8b.kvtrace"));
    EXPECT_THAT(waterfall.headline, StartsWith("54 % of the step is ffn, at 0.7"));
    EXPECT_THAT(waterfall.headline, HasSubstr("of the read bandwidth"));
    EXPECT_EQ(waterfall.bars.front().id, "ffn") << "the largest loss comes first";
    EXPECT_THAT(waterfall.detail, HasSubstr("NVIDIA H200"));
    const Insight insight = insightOf(waterfall);
    EXPECT_EQ(insight.id, kRoofInsight);
    EXPECT_EQ(insight.title, waterfall.headline);
    EXPECT_EQ(insight.evidence.view, "waterfall");
    EXPECT_THAT(insight.advice, HasSubstr("Begin with ffn"));
}

TEST(Waterfall, SaysHowMuchOfAPrefillWasInitialisationAndHowMuchTheRecorderTook) {
    const Waterfall waterfall = of(samplePath("h200-nosa-tiny.kvtrace"));
    ASSERT_TRUE(waterfall.prefill);
    EXPECT_TRUE(waterfall.prefill->kernels);
    EXPECT_GT(waterfall.prefill->initialisation.ns, 0.8 * waterfall.prefill->wallNs);
    EXPECT_LT(waterfall.prefill->initialisation.ns, waterfall.prefill->wallNs);
    EXPECT_THAT(waterfall.detail, HasSubstr("of the prefill were one-off initialisation"));
    EXPECT_GT(measured(waterfall, "recorder"), 0.2 * waterfall.idleNs) << "flushes of CUPTI's buffers";
}

/// Numbers of a trace by its own SQL. The time in which the GPU did nothing is that between one kernel or copy and the
/// next.
class BySql {
public:
    /// path: a copy of the trace, which gets tables of its own.
    BySql(std::string path, int firstStep, std::int64_t offsetNs) : path_(std::move(path)), first_(firstStep) {
        test::sql(
            path_,
            fmt::format("CREATE TABLE gap AS SELECT p - {0} AS f, a - {0} AS t FROM (SELECT start_ns AS a,"
                        " max(start_ns + duration_ns) OVER (ORDER BY start_ns ROWS BETWEEN UNBOUNDED PRECEDING"
                        " AND 1 PRECEDING) AS p FROM span WHERE run_id = 1 AND kind IN (1, 2)) WHERE a > p UNION ALL"
                        " SELECT max(start_ns + duration_ns) - {0}, 1 << 60 FROM span WHERE run_id = 1 AND kind"
                        " IN (1, 2);"
                        "CREATE TABLE idle AS SELECT e AS f, start_ns AS t FROM (SELECT step, start_ns,"
                        " lag(start_ns + duration_ns) OVER (ORDER BY step) AS e FROM v_step WHERE run_id = 1)"
                        " WHERE step >= {1} AND start_ns > e;"
                        "CREATE TABLE work AS SELECT start_ns AS f, start_ns + duration_ns AS t FROM span"
                        " WHERE run_id = 1 AND track = (SELECT id FROM text WHERE value = 'CUPTI overhead');",
                        offsetNs, firstStep),
            SQLITE_OPEN_READWRITE);
    }
    double number(const std::string& sql) { return std::stod(test::value(path_, sql)); }
    double steps() {
        return number(fmt::format("SELECT count(*) FROM v_step WHERE run_id = 1 AND step >= {}", first_));
    }
    double stage(const std::string& name) {
        const bool inLayers = name != "embed" && name != "lm_head" && name != "sample";
        return number(fmt::format("SELECT total({}_ns) FROM {} WHERE run_id = 1 AND step >= {}", name,
                                  inLayers ? "v_layer" : "v_step", first_));
    }
    double gapsInStage(const std::string& name) {
        return number(
            fmt::format("SELECT total(min(g.t, s.start_ns + s.duration_ns) - max(g.f, s.start_ns)) FROM v_span s"
                        " JOIN gap g ON g.t > s.start_ns AND g.f < s.start_ns + s.duration_ns"
                        " WHERE s.run_id = 1 AND s.track = 'host' AND s.name = '{}' AND s.step >= {}",
                        name, first_));
    }
    double gapsInSteps() {
        return number(
            fmt::format("SELECT total(min(g.t, s.start_ns + s.duration_ns) - max(g.f, s.start_ns)) FROM v_step s"
                        " JOIN gap g ON g.t > s.start_ns AND g.f < s.start_ns + s.duration_ns"
                        " WHERE s.run_id = 1 AND s.step >= {}",
                        first_));
    }
    double recorderInSteps() {
        return number(
            fmt::format("SELECT total(min(w.t, g.t, s.e) - max(w.f, g.f, s.b)) FROM (SELECT start_ns AS b, start_ns +"
                        " duration_ns AS e FROM v_step WHERE run_id = 1 AND step >= {}) s"
                        " JOIN gap g ON g.t > s.b AND g.f < s.e"
                        " JOIN work w ON w.t > max(g.f, s.b) AND w.f < min(g.t, s.e)",
                        first_));
    }
    double idle() { return number("SELECT total(t - f) FROM idle"); }
    double recorderInIdle() {
        return number("SELECT total(min(w.t, i.t) - max(w.f, i.f)) FROM idle i JOIN work w ON w.t > i.f AND w.f < i.t");
    }

private:
    std::string path_;
    int first_;
};

TEST(Waterfall, HasTheNumbersOfTheTracesOwnSql) {
    const test::Folder folder;
    for (const char* name : {"h200-nosa-8b.kvtrace", "h200-nosa-tiny.kvtrace"}) {
        SCOPED_TRACE(name);
        const std::string path = (folder / name).string(); // the statements below add tables
        std::filesystem::copy_file(samplePath(name), path);
        const Waterfall waterfall = of(path);
        const TraceReader reader(path);
        BySql sql(path, 2, linkClockOf(*ReaderAccess::of(reader).connection, 1).offsetNs);
        const double steps = sql.steps();
        ASSERT_EQ(waterfall.run.steps, int(steps));
        const double exposed = sql.number("SELECT total(exposed_ns) FROM v_layer WHERE run_id = 1 AND step > 1");
        EXPECT_NEAR(transfers(waterfall), exposed / steps, 1e-3);
        for (const std::string_view stage : kStageNames) {
            const std::string id(stage);
            const double waited = id == "offloading" ? exposed : 0;
            EXPECT_NEAR(measured(waterfall, id), (sql.stage(id) - waited - sql.gapsInStage(id)) / steps, 1e-3) << id;
        }
        for (const std::string_view stage : kStepStageNames) {
            const std::string id(stage);
            EXPECT_NEAR(measured(waterfall, id), (sql.stage(id) - sql.gapsInStage(id)) / steps, 1e-3) << id;
        }
        const double inSteps = sql.recorderInSteps();
        EXPECT_NEAR(measured(waterfall, "gaps"), (sql.gapsInSteps() - inSteps) / steps, 1e-3);
        EXPECT_NEAR(measured(waterfall, "recorder"), (sql.recorderInIdle() + inSteps) / steps, 1e-3);
        EXPECT_NEAR(measured(waterfall, "idle"), (sql.idle() - sql.recorderInIdle()) / steps, 1e-3);
        EXPECT_NEAR(waterfall.idleNs, sql.idle() / steps, 1e-3);
        EXPECT_NEAR(waterfall.stepNs,
                    sql.number("SELECT total(duration_ns) FROM v_step WHERE run_id = 1 AND step > 1") / steps, 1e-3);
    }
}

TEST(Waterfall, HasTheFloorsOfItsFormulas) {
    const Waterfall waterfall = of(samplePath("h200-nosa-8b.kvtrace"));
    const double rate = GpuTable().get("h200").readGbps; // bytes per nanosecond
    const auto weights = [&](double perLayer) { return 32 * perLayer * 2 / rate; };
    EXPECT_NEAR(waterfall.find("ffn")->floorNs, weights(3.0 * 4096 * 16384), 1);
    EXPECT_NEAR(waterfall.find("qkv_linear")->floorNs, weights(4096.0 * (4096 + 2 * 256)), 1);
    EXPECT_NEAR(waterfall.find("o_linear")->floorNs, weights(4096.0 * 4096), 1);
    EXPECT_NEAR(waterfall.find("lm_head")->floorNs, 73448.0 * 4096 * 2 / rate, 1);
    for (const char* id : {"rope", "pooling", "offloading", "embed", "sample"})
        EXPECT_EQ(waterfall.find(id)->floorNs, 0) << id;
    EXPECT_EQ(waterfall.find("ffn")->bound, Resource::MemoryBandwidth);
}

/// A copy of the sample in which time is inserted: every time behind an insertion moves, and every span, step and stage
/// around it is longer.
class Faulty {
public:
    explicit Faulty(const char* sample) : path_((folder_ / "faulty.kvtrace").string()) {
        std::filesystem::copy_file(samplePath(sample), path_);
        execute("CREATE TABLE inserted(at INTEGER NOT NULL, ns INTEGER NOT NULL)");
    }
    /// sql: rows of a time and of how much time is inserted there.
    void insert(const std::string& sql, const std::string& stage = {}, const std::string& more = {}) {
        execute("INSERT INTO inserted " + sql);
        const auto inside = [](const std::string& from, const std::string& to) {
            return fmt::format("(SELECT coalesce(sum(ns), 0) FROM inserted WHERE at >= {} AND at < {})", from, to);
        };
        const std::string before = "(SELECT coalesce(sum(ns), 0) FROM inserted WHERE at < start_ns)";
        if (!stage.empty()) {
            std::string from = "start_ns";
            for (const std::string_view name : kStageNames) {
                if (name == stage) break;
                from += fmt::format(" + {}_ns", name);
            }
            const std::string grown = inside(from, fmt::format("{} + {}_ns", from, stage));
            execute(fmt::format("UPDATE layer_step SET {0}_ns = {0}_ns + {1}{2}", stage, grown,
                                more.empty() ? "" : fmt::format(fmt::runtime(more), grown)));
        }
        execute("UPDATE layer_step SET start_ns = start_ns + " + before);
        execute(fmt::format("UPDATE span SET duration_ns = duration_ns + {}, start_ns = start_ns + {}",
                            inside("start_ns", "start_ns + duration_ns"), before));
        execute(fmt::format("UPDATE step SET duration_ns = duration_ns + {}, start_ns = start_ns + {}",
                            inside("start_ns", "start_ns + duration_ns"), before));
        execute("UPDATE step SET exposed_ns = (SELECT sum(exposed_ns) FROM layer_step l WHERE l.id >> 10 ="
                " step.id), transfer_ns = (SELECT sum(h2d_ns + d2h_ns) FROM layer_step l WHERE l.id >> 10 ="
                " step.id)");
        execute("DROP TABLE inserted");
    }
    void execute(const std::string& sql) const { test::sql(path_, sql, SQLITE_OPEN_READWRITE); }
    const std::string& path() const { return path_; }

private:
    test::Folder folder_;
    std::string path_;
};

/// Every bar but these is as it was; what they gained is returned.
double gained(const Waterfall& before, const Waterfall& after, const std::string& id) {
    for (const WaterfallBar& bar : after.bars) {
        if (bar.id.starts_with(id)) continue;
        EXPECT_NEAR(bar.measuredNs, measured(before, bar.id), 0.002 * before.measuredNs()) << bar.id;
    }
    double sum = 0;
    for (const WaterfallBar& bar : after.bars)
        if (bar.id.starts_with(id)) sum += bar.measuredNs;
    for (const WaterfallBar& bar : before.bars)
        if (bar.id.starts_with(id)) sum -= bar.measuredNs;
    expectToAddUp(after);
    return sum;
}

TEST(Waterfall, ShowsASleepBetweenStepsAsTimeBetweenSteps) {
    const Waterfall before = of(samplePath("h200-nosa-8b.kvtrace"));
    Faulty trace("h200-nosa-8b.kvtrace");
    trace.insert(
        "SELECT s.start_ns + s.duration_ns + (n.start_ns - s.start_ns - s.duration_ns) / 2, 3000000 FROM v_step s"
        " JOIN v_step n ON n.step = s.step + 1 WHERE s.step IN (7, 8, 12)");
    const Waterfall after = of(trace.path());
    EXPECT_NEAR(gained(before, after, "idle"), 9e6 / 23, 10);
    EXPECT_EQ(after.find("idle")->most.durationNs / 1'000'000, 3);
    EXPECT_NEAR(*after.predictedNs, *before.predictedNs, 1e-3);
}

TEST(Waterfall, ShowsAComponentThatTakesATenthLongerInItsOwnBar) {
    const Waterfall before = of(samplePath("h200-nosa-8b.kvtrace"));
    Faulty trace("h200-nosa-8b.kvtrace");
    trace.insert("SELECT start_ns + duration_ns - ffn_ns / 2, ffn_ns / 10 FROM v_layer WHERE step > 1", "ffn");
    const Waterfall after = of(trace.path());
    const double ffn = measured(before, "ffn");
    EXPECT_NEAR(gained(before, after, "ffn"), 0.1 * ffn, 0.001 * ffn);
    EXPECT_EQ(after.find("ffn")->floorNs, before.find("ffn")->floorNs);
    EXPECT_EQ(after.bars.front().id, "ffn");
}

TEST(Waterfall, ShowsSlowerCopiesAmongTheTransfers) {
    const Waterfall before = of(samplePath("h200-nosa-8b.kvtrace"));
    Faulty trace("h200-nosa-8b.kvtrace");
    trace.insert("SELECT start_ns + qkv_linear_ns + rope_ns + compression_ns + stage1_ns + pooling_ns + offloading_ns -"
                 " 3000, h2d_ns / 2 FROM v_layer WHERE step > 1 AND h2d_ns > 0",
                 "offloading", ", h2d_ns = h2d_ns + {0}, exposed_ns = exposed_ns + {0}");
    const Waterfall after = of(trace.path());
    EXPECT_NEAR(gained(before, after, "transfer."), 0.5 * transfers(before), 0.01 * transfers(before));
    EXPECT_NEAR(*after.predictedNs, *before.predictedNs, 1e-3) << "the floor of the transfers is the link's";
}

// A share of the step is another number than a share of the time from step to step.
TEST(Waterfall, SaysWhetherItsSharesAreOfTheStep) {
    Faulty trace("h200-nosa-8b.kvtrace");
    trace.execute("UPDATE step SET start_ns = start_ns + 1000000 * (id & 0x1FFFFFF);"
                  "UPDATE layer_step SET start_ns = start_ns + 1000000 * ((id >> 10) & 0x1FFFFFF);"
                  "UPDATE span SET start_ns = start_ns + 1000000 * step WHERE step > 0");
    const Waterfall waterfall = of(trace.path());
    EXPECT_GT(waterfall.idleNs, 0.1 * waterfall.measuredNs());
    EXPECT_THAT(waterfall.headline, HasSubstr(" % of the time from step to step is ffn, at 0.7"));
}

TEST(Waterfall, OfAnUnknownModelOrMachineHasItsComponentsAndNoRoof) {
    for (const char* unknown : {"UPDATE run SET model = 'mystery'", "UPDATE run SET device = 'NVIDIA Unheard'"}) {
        SCOPED_TRACE(unknown);
        Faulty trace("h200-nosa-8b.kvtrace");
        trace.execute(unknown);
        const Waterfall waterfall = of(trace.path());
        EXPECT_FALSE(waterfall.predictedNs);
        EXPECT_FALSE(waterfall.noRoof.empty());
        expectToAddUp(waterfall);
        EXPECT_EQ(waterfall.headline, "54 % of the step is ffn");
        for (const WaterfallBar& bar : waterfall.bars) EXPECT_EQ(bar.floorNs, 0) << bar.id;
        EXPECT_GT(measured(waterfall, "ffn"), 3e6);
        NamedRoof named;
        named.shape = findModelShape("nosa-8b");
        named.gpu = GpuTable().get("h200");
        EXPECT_TRUE(waterfallOf(TraceReader(trace.path()), 1, GpuTable(), named).predictedNs) << "a person knows them";
    }
}

TEST(Waterfall, CountsModelledTransfersOnNeitherSide) {
    const test::Folder folder;
    synthetic::recordFile(folder / "run.kvtrace", {}, RecordLevel::Counters);
    const Waterfall waterfall = of((folder / "run.kvtrace").string());
    EXPECT_FALSE(waterfall.transfers);
    EXPECT_FALSE(waterfall.kernels);
    EXPECT_EQ(transfers(waterfall), 0);
    EXPECT_EQ(measured(waterfall, "gaps"), 0);
    expectToAddUp(waterfall);
    EXPECT_THAT(waterfall.detail, HasSubstr("modelled"));
}

TEST(Waterfall, TellsGapsInitialisationAndTheRecorderApart) {
    const test::Folder folder;
    synthetic::RunShape shape;
    shape.decodeSteps = 4;
    std::vector<StepRecord> steps = synthetic::stepsOf(shape, RecordLevel::Selections);
    test::retime(steps);
    std::int64_t shift = 0;
    std::vector<SpanRecord> spans;
    const auto span = [&](SpanRecord::Kind kind, const char* track, const std::string& name, std::int64_t from,
                          std::int64_t to) {
        spans.push_back({-1, -1, kind, track, name, from, to - from, 0});
    };
    for (StepRecord& step : steps) {
        step.startNs += shift;
        for (LayerRecord& layer : step.layers) layer.startNs += shift;
        const std::int64_t from = step.startNs, to = from + step.durationNs;
        // One kernel all along, but for a gap of 4 us in the middle; in step 3 a kernel of a new name follows 200 us.
        const std::int64_t middle = from + step.durationNs / 2;
        const bool fresh = step.step == 3;
        span(SpanRecord::Kind::Kernel, "stream 7", "first", from, middle);
        span(SpanRecord::Kind::Kernel, "stream 7", fresh ? "late" : "first", middle + (fresh ? 200'000 : 4'000), to);
        span(SpanRecord::Kind::Range, "CUPTI overhead", "buffer flush", to + 1'000, to + 31'000);
        shift += 50'000; // between steps: 30 us of them are the recorder's
    }
    RunInfo info = synthetic::infoOf(shape);
    info.backend = "cuda";
    const std::string path = (folder / "gaps.kvtrace").string();
    test::write(path, info, steps, spans);
    const Waterfall waterfall = of(path);
    ASSERT_TRUE(waterfall.kernels);
    ASSERT_EQ(waterfall.run.steps, 3) << "the cold step is left out";
    EXPECT_NEAR(measured(waterfall, "gaps"), (2 * 4'000) / 3.0, 1e-6);
    EXPECT_NEAR(measured(waterfall, "initialisation"), 200'000 / 3.0, 1e-6);
    EXPECT_EQ(waterfall.find("initialisation")->most.step, 3);
    EXPECT_NEAR(measured(waterfall, "recorder"), 30'000, 1e-6);
    EXPECT_NEAR(measured(waterfall, "idle"), 20'000, 1e-6);
    EXPECT_NEAR(waterfall.idleNs, 50'000, 1e-6);
    EXPECT_NEAR(measured(waterfall, "unexplained"), 0, 1e-3);
    expectToAddUp(waterfall);
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
