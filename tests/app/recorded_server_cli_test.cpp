// A trace of a server holds what the simulator needs: the same numbers come from the trace alone and from the command
// line, which is given the table of costs, the selections and the budgets one by one.
#include "tests/app/cli_fixture.h"

#include "core/serve/scheduler_options.h"
#include "profiler/replay/recorded_server.h"

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using nlohmann::json;

class RecordedServerCli : public test::CliFixture {
protected:
    /// Serves eight requests and records the blocks that they select.
    std::string serve() const {
        std::ofstream lines(path("w.jsonl"));
        for (int i = 0; i < 8; ++i)
            lines << json{{"timestamp", 400 * i},
                          {"input_length", 100 + 150 * (i % 3)},
                          {"output_length", 4 + i},
                          {"seed", i}}
                         .dump()
                  << "\n";
        lines.close();
        std::ofstream(path("given.json")) << test::cli({"simulate", "--print-costs"}).out;
        jsonOf(test::commandOf({"load", "--costs", path("given.json"), "--workload", path("w.jsonl"), "--threads", "1",
                                "--processor-time"},
                               test::smallServer({"--knob", "cache=global-lru", "--knob", "window=3", "--trace",
                                                  path("s.kvtrace"), "--record", "selections"})));
        return path("s.kvtrace");
    }
};

TEST_F(RecordedServerCli, TheTraceAndTheCommandLineSimulateTheSame) {
    const std::string trace = serve();
    const TraceReader reader(trace);
    const RunRow run = reader.runs().front();
    const json facts = json::parse(run.metaOr("serving"));
    for (const Parameter& knob : serve::schedulerParameters()) EXPECT_TRUE(facts.contains(knob.key)) << knob.key;
    EXPECT_EQ(facts["window"], 3);
    std::ofstream(path("c.json")) << facts["costs"].dump();

    const RecordedServer server = readRecordedServer(reader, run);
    EXPECT_TRUE(server.hitsRecorded) << server.whyNoHits;
    const serve::ServingResult here = simulateServer(server);
    const json there =
        jsonOf(test::commandOf({"simulate", "--workload", trace, "--costs", path("c.json"), "--selections", trace},
                               test::smallServer({"--set", "cache=global-lru", "--set", "window=3"})));
    const json& point = there["seeds"][0]["points"][0];
    EXPECT_EQ(point["requests"]["counted"], here.counted);
    EXPECT_EQ(point["requests"]["good"], here.good);
    EXPECT_EQ(point["pauses"], here.pauses);
    EXPECT_EQ(point["iterations"], here.iterations);
    EXPECT_NEAR(point["hit_rate"].get<double>(), here.hitRate, 1e-9);
    EXPECT_NEAR(point["utilisation"].get<double>(), here.utilisation, 1e-9);
    EXPECT_NEAR(point["decode_iteration_ms"].get<double>(), here.meanIterationMs, 1e-6);
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
