// A recorded serving run in the simulator: its requests, its server as it was set, and what changes of that do.
#include "profiler/replay/recorded_server.h"

#include "profiler/replay/hit_curves.h"
#include "tests/profiler/sql_rows.h"
#include "tests/profiler/synthetic_serving.h"
#include "tests/profiler/temporary_folder.h"
#include "tests/support/refusal.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

class RecordedServerTest : public ::testing::Test {
protected:
    std::string record(bool steps, const char* facts = synthetic::kServerFacts, int requests = 24) const {
        const std::string file = (folder / "served.kvtrace").string();
        std::filesystem::remove(file);
        synthetic::recordServing(file, requests, true, RunStatus::Finished, steps, facts);
        return file;
    }
    static RecordedServer serverOf(const std::string& file) {
        const TraceReader reader(file);
        return readRecordedServer(reader, reader.runs().front());
    }

    const test::Folder folder;
};

TEST_F(RecordedServerTest, HasTheRequestsAndTheServerOfTheRun) {
    const std::string file = record(false);
    const RecordedServer server = serverOf(file);
    EXPECT_EQ(std::to_string(server.workload.lines.size()), test::value(file, "SELECT count(*) FROM v_request"));
    std::int64_t prompts = 0;
    for (const serve::WorkloadLine& line : server.workload.lines) prompts += line.promptTokens;
    EXPECT_EQ(std::to_string(prompts), test::value(file, "SELECT sum(prompt_tokens) FROM v_request"));
    EXPECT_EQ(std::to_string(server.workload.lines.back().arrivalUs * 1000),
              test::value(file, "SELECT max(arrival_ns) - min(arrival_ns) FROM v_request"));
    const serve::SimulationOptions& options = server.options;
    EXPECT_EQ(options.scheduler.rows, 3);
    EXPECT_EQ(options.scheduler.cache, serve::CachePlan::GlobalLru);
    EXPECT_EQ(options.slo.tbtMs, 25);
    EXPECT_EQ(options.budget.device, 512 << 10);
    EXPECT_EQ(options.costs.shape.layers, 4);
    EXPECT_EQ(options.costs.decodeMs.at(3), 6);
    EXPECT_FALSE(server.hitsRecorded);
    EXPECT_FALSE(server.whyNoHits.empty());
    EXPECT_EQ(server.whyNoHits.find(std::filesystem::path(file).parent_path().string()), std::string::npos)
        << server.whyNoHits << ": pictures of the view show no folder";
    // Every iteration took 9.5 ms and was predicted to take 10.
    EXPECT_NEAR(server.predictionError, 0.5 / 9.5, 1e-9);
}

TEST_F(RecordedServerTest, TakesHitsFromRecordedSelections) {
    const std::string file = record(true);
    const RecordedServer server = serverOf(file);
    ASSERT_TRUE(server.hitsRecorded) << server.whyNoHits;
    const HitCurves hits = hitCurvesOf(loadSelectionTrace(TraceReader(file), 1));
    EXPECT_EQ(server.options.costs.lruHits.points, hits.pool);
    EXPECT_EQ(server.options.costs.drift, hits.drift);
}

TEST_F(RecordedServerTest, SimulatesEveryRequestOnceAndCountsWhatIsGood) {
    const RecordedServer server = serverOf(record(true));
    const serve::ServingResult result = simulateServer(server);
    EXPECT_EQ(result.counted, int(server.workload.lines.size()));
    EXPECT_EQ(result.finished + result.refused + result.unfinished, result.counted);
    EXPECT_NEAR(result.attainment, double(result.good) / result.counted, 1e-12);
    EXPECT_NEAR(result.goodput, result.good / (double(server.workload.spanUs) / 1e6), 1e-6);
    EXPECT_TRUE(result.outcomes.empty());
    EXPECT_FALSE(result.measured);
    // The same simulation as that of the scheduler alone.
    serve::SimulationOptions options = server.options;
    const serve::ServingResult plain = serve::simulate(server.workload, options);
    EXPECT_EQ(plain.good, result.good);
    EXPECT_EQ(plain.pauses, result.pauses);
}

TEST_F(RecordedServerTest, ChangesOneThingAtATime) {
    const RecordedServer server = serverOf(record(true));
    for (const ServerChange change : kServerChanges) {
        const std::vector<double> values = valuesAround(server, change);
        ASSERT_GE(values.size(), 3u);
        EXPECT_TRUE(std::is_sorted(values.begin(), values.end()));
        EXPECT_EQ(std::adjacent_find(values.begin(), values.end()), values.end());
        const double recorded = valueOf(server, change);
        EXPECT_TRUE(std::any_of(values.begin(), values.end(),
                                [&](double v) { return std::abs(v - recorded) < 1e-9 * recorded; }));
        for (const double value : values) {
            const RecordedServer other = changed(server, change, value);
            EXPECT_NEAR(valueOf(other, change), value, 0.001 * value);
            for (const ServerChange rest : kServerChanges)
                if (rest != change) {
                    EXPECT_EQ(valueOf(other, rest), valueOf(server, rest));
                }
        }
    }
    // Without room for a row's blocks nobody can run; with a tenth of the load nobody waits.
    const serve::ServingResult none = simulateServer(changed(server, ServerChange::DeviceMemory, 1024));
    EXPECT_EQ(none.refused, none.counted);
    EXPECT_EQ(none.attainment, 0);
    const serve::ServingResult busy = simulateServer(server),
                               calm = simulateServer(
                                   changed(server, ServerChange::Rate, valueOf(server, ServerChange::Rate) / 10));
    EXPECT_LT(calm.queue.mean, busy.queue.mean);
    EXPECT_LT(calm.utilisation, busy.utilisation);
}

TEST_F(RecordedServerTest, IsRefusedWhereTheRunDoesNotSayWhatIterationsCost) {
    const std::string old = record(false, R"({"rows":3})");
    EXPECT_NE(test::refusalOf([&] { serverOf(old); }, "does not say what its server's iterations cost"), "");
    const std::string damaged = record(false, R"({"rows":"many","device_kv_bytes":1,"costs":{}})");
    EXPECT_NE(test::refusalOf([&] { serverOf(damaged); }, "rows"), "");
    const std::string poor = record(false, R"({"rows":3,"device_kv_bytes":-4,"costs":{}})");
    EXPECT_NE(test::refusalOf([&] { serverOf(poor); }, "device_kv_bytes"), "");
    std::stop_source stop;
    stop.request_stop();
    const TraceReader reader(record(true));
    EXPECT_THROW(readRecordedServer(reader, reader.runs().front(), stop.get_token()), Error);
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
