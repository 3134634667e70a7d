// The benchmark of serving on a small server: that it counts what it says. Its times are not judged here.
#include "tests/app/cli_fixture.h"

#include <string>
#include <vector>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using nlohmann::json;
using test::cli;
using test::Finished;
using ::testing::HasSubstr;

using BenchOfServing = test::CliFixture;

json measured(std::vector<std::string> settings) {
    std::vector<std::string> command{"bench", "serving", "--json"};
    for (const std::string& setting : settings) command.insert(command.end(), {"--set", setting});
    const Finished finished = cli(command);
    EXPECT_EQ(finished.status, 0) << finished.err;
    return finished.status == 0 ? json::parse(finished.out).at("serving") : json();
}

TEST_F(BenchOfServing, UnknownPartsAndSettingsAreRefused) {
    const Finished part = cli({"bench", "serving", "--set", "only=plans,cooking"});
    EXPECT_EQ(part.status, 1);
    EXPECT_THAT(part.err, HasSubstr("serving has no part 'cooking'"));
    EXPECT_THAT(cli({"bench", "serving", "--set", "backend=tpu"}).err, HasSubstr("unknown backend 'tpu'"));
    EXPECT_THAT(cli({"bench", "serving", "--set", "rows=3"}).err, HasSubstr("no setting 'rows'"));
}

TEST_F(BenchOfServing, PlansAreThoseOfFullServers) {
    const json result = measured({"only=plans"});
    ASSERT_FALSE(result.is_null());
    EXPECT_FALSE(result.contains("http"));
    const json& servers = result.at("plans").at("servers");
    ASSERT_EQ(servers.size(), 7U);
    for (const json& server : servers) {
        EXPECT_EQ(server.at("admitted"), 0) << server;
        EXPECT_EQ(server.at("refused"), 0) << server;
        EXPECT_NE(server.at("limited_by"), "none") << server;
        EXPECT_EQ(server.at("paused").get<int>() > 0, server.at("full") == "requests must be paused") << server;
        const json& p99 = server.at("plan_p99_us");
        EXPECT_EQ(p99.at("missed"), p99.at("value") >= p99.at("aim_below")) << server;
    }
}

TEST_F(BenchOfServing, EveryRequestOfASmallServerIsCounted) {
    if (cli({"serve", "--port", "1", "--limit", "nothing"}).err.find("without Asio") != std::string::npos)
        GTEST_SKIP() << "this build has no server";
    std::ofstream(path("costs.json")) << cli({"simulate", "--print-costs"}).out; // so that none are measured
    const json result = measured({"only=recording,http,connects", "costs=" + path("costs.json"), "threads=1",
                                  "streams=3", "prompt=40", "tokens=8", "requests=4", "pairs=2", "connects=30",
                                  "device-mib=64", "host-mib=256", "scratch-mib=64"});
    ASSERT_FALSE(result.is_null());
    EXPECT_EQ(result.at("recording").at("requests_of_a_run"), 9);
    EXPECT_EQ(result.at("recording").at("dropped_records"), 0);
    EXPECT_GT(result.at("recording").at("p99_tbt_ms_recorded").at("p50"), 0);
    const json& http = result.at("http");
    EXPECT_EQ(http.at("requests"), 3 * (4 - 2)); // neither the first nor the last of a stream
    EXPECT_GE(http.at("gaps"), 6 * (4 - 1));
    EXPECT_LE(http.at("gaps"), 6 * (8 - 1));
    EXPECT_GT(http.at("ttft_added_p50_ms").at("value"), 0); // a client hears of a token after the engine has made it
    EXPECT_GT(http.at("mean_decode_rows"), 1);
    const json& connects = result.at("connects");
    EXPECT_EQ(connects.at("answers").at("value"), 30);
    EXPECT_EQ(connects.at("answers").at("missed"), false);
    EXPECT_EQ(connects.at("answers_by_status"), json({{"200", 30}}));
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
