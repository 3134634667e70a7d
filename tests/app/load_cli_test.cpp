// kvscope-cli load as a person uses it: the engine serves a workload by the wall clock.
#include "tests/app/cli_fixture.h"
#include "tests/app/interrupted.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <chrono>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using nlohmann::json;
using ::testing::HasSubstr;

class Load : public test::CliFixture {
protected:
    /// A workload of eight requests in half a second.
    std::string workload() const {
        std::ofstream out(path("w.jsonl"));
        for (int i = 0; i < 8; ++i)
            out << json{{"timestamp", 60 * i},
                        {"input_length", 60 + 190 * (i % 3)},
                        {"output_length", 3 + i},
                        {"seed", i}}
                       .dump()
                << "\n";
        return path("w.jsonl");
    }
    std::vector<std::string> command(const std::vector<std::string>& more = {}, const char* hostKv = "256M") const {
        return test::commandOf({"load", "--workload", workload(), "--threads", "1"}, test::smallServer(more, hostKv));
    }
};

TEST_F(Load, MeasuresWhatRequestsWaitedAndWritesCostsForTheSimulator) {
    const std::string costs = path("c.json");
    const json out = jsonOf(command({"--costs-out", costs}));
    EXPECT_EQ(out.at("simulated"), false);
    ASSERT_EQ(out.at("points").size(), 1u);
    const json& point = out["points"][0];
    EXPECT_EQ(point.at("measured"), true);
    EXPECT_EQ(point.at("requests").at("counted"), 8);
    EXPECT_EQ(point.at("requests").at("finished"), 8);
    EXPECT_EQ(point.at("failed"), 0);
    EXPECT_EQ(point.at("rows_apart"), 0) << "there are such rows on a GPU only";
    EXPECT_EQ(point.at("ttft_ms").at("samples"), 8);
    EXPECT_GT(point.at("ttft_ms").at("mean"), point.at("queue_ms").at("mean"));
    EXPECT_EQ(point.at("tbt_ms").at("samples"), 2 + 3 + 4 + 5 + 6 + 7 + 8 + 9);
    EXPECT_GT(point.at("iterations"), 0);
    EXPECT_GE(point.at("hit_rate"), 0);
    EXPECT_LE(point.at("hit_rate"), 1);
    EXPECT_THAT(out.at("backend"), HasSubstr("cpu"));

    std::ifstream fitted(costs);
    EXPECT_EQ(json::parse(fitted).at("link_gbps").dump(), R"({"batched":null,"calls":null,"kernel":null})")
        << "the steps hold their loads, so that there is no rate to state";
    EXPECT_TRUE(out.at("costs").at("link_gbps").at("kernel").is_null())
        << "likewise in the table that plans were made from";

    fitted.clear(), fitted.seekg(0);
    const json own = json::parse(fitted).at("fitted");
    for (const char* key : {"decode_ms", "decode_us_per_ktoken", "prefill_us_per_token", "link_gbps", "gap_ms"})
        EXPECT_EQ(std::count(own.begin(), own.end(), key), 1) << key;
    EXPECT_EQ(std::count(own.begin(), own.end(), "full_us_per_ktoken"), 0) << "one method ran";

    // The simulator reads the fitted costs, and the engine's own shape is among them.
    const json simulated =
        jsonOf({"simulate", "--workload", workload(), "--costs", costs, "--warm-up", "0", "--warm-up-seconds", "0"});
    EXPECT_EQ(simulated["costs"]["shape"]["piece_tokens"], 512);
    EXPECT_EQ(simulated["costs"]["shape"]["host_run_blocks"], 1);
    for (const char* term : {"offload_ms", "offload_us_per_row"})
        EXPECT_EQ(simulated["costs"][term]["kernel"], 0) << "the steps hold that as well";
    for (const char* term : {"gap_us_per_row", "admit_ms", "admit_us_per_token"})
        EXPECT_GE(simulated["costs"].at(term), 0);
    EXPECT_EQ(simulated["costs"]["version"], 2);
    EXPECT_GT(simulated["costs"]["prefill_us_per_token"], 0);
    EXPECT_GE(simulated["costs"]["decode_ms"].size(), 1u);
    EXPECT_NE(simulated["costs"]["decode_us_per_ktoken"], 0.23) << "the default";
    EXPECT_EQ(simulated["seeds"][0]["points"][0].at("measured"), false);
    EXPECT_EQ(simulated["seeds"][0]["points"][0]["requests"]["finished"], 8);
}

TEST_F(Load, PrintsTheTableOfSimulate) {
    const test::Finished result = test::cli(
        command({"--method", "quest", "--set", "total_blocks=8", "--knob", "cache=global-lru", "--rate", "20"}));
    ASSERT_EQ(result.status, 0) << result.err;
    for (const char* word : {"20 requests/s offered", "queue delay", "TTFT", "TBT, all tokens", "attainment", "hits",
                             "measured with quest on"})
        EXPECT_THAT(result.out, HasSubstr(word));
}

/// Processor time of one thread: what the machine does beside does not count, and nobody sleeps until the next arrival.
TEST_F(Load, CountsProcessorTimeAndSkipsWaits) {
    const auto began = std::chrono::steady_clock::now();
    const json out = jsonOf(command({"--processor-time", "--rate", "0.02"})); // eight requests in 400 s
    const double wallS = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    const json& point = out["points"][0];
    EXPECT_EQ(out.at("clock"), "processor");
    EXPECT_EQ(point["requests"]["finished"], 8);
    EXPECT_GT(point.at("window_s"), 300.0) << "by its own clock";
    EXPECT_LT(wallS, 200.0);
    EXPECT_LT(point.at("queue_ms").at("mean"), point.at("ttft_ms").at("mean"));
    EXPECT_GT(point.at("tbt_ms").at("mean"), 0.0);
    const test::Finished refused = test::cli({"load", "--workload", workload(), "--threads", "2", "--processor-time"});
    EXPECT_NE(refused.status, 0);
    EXPECT_THAT(refused.err, HasSubstr("--threads 1"));
}

TEST_F(Load, SearchesTheCapacityWithTheEngine) {
    const json out = jsonOf(command({"--processor-time", "--search", "--slo", "tbt=10000"}));
    const double capacity = out.at("capacity_per_s");
    ASSERT_GT(capacity, 0.0);
    EXPECT_GT(out.at("simulated_capacity_per_s"), 0.0);
    EXPECT_NE(out.at("broke_first"), "");
    double kept = 0, broken = 1e300;
    for (const json& point : out["points"]) {
        EXPECT_EQ(point.at("measured"), true);
        if (point.at("broken").is_null())
            kept = std::max(kept, point.at("rate").get<double>());
        else
            broken = std::min(broken, point.at("rate").get<double>());
    }
    EXPECT_EQ(kept, capacity);
    EXPECT_LE(broken, 1.0251 * capacity) << "the first rate that does not hold lies close above";
}

/// What a server was asked is a workload for another one, in the simulator and with an engine.
TEST_F(Load, ATraceOfAServingRunIsAWorkload) {
    std::ofstream(path("long.jsonl"))
        << R"({"timestamp": 0, "input_length": 1500, "output_length": 12, "class": "a"})"
        << "\n"
        << R"({"timestamp": 9000, "input_length": 1400, "output_length": 16, "class": "b"})"
        << "\n";
    const std::string trace = path("served.kvtrace");
    jsonOf(test::commandOf({"load", "--workload", path("long.jsonl"), "--threads", "1"},
                           test::smallServer({"--processor-time", "--trace", trace, "--record", "selections"})));
    const std::string lines = path("again.jsonl");
    ASSERT_EQ(test::cli({"simulate", "--workload", trace, "--write", lines}).status, 0);
    std::ifstream in(lines);
    std::vector<json> requests;
    for (std::string line; std::getline(in, line);) requests.push_back(json::parse(line));
    ASSERT_GE(requests.size(), 2u) << "more of the same may arrive while the window ends";
    EXPECT_EQ(requests[0].at("input_length"), 1500);
    EXPECT_EQ(requests[0].at("output_length"), 12);
    EXPECT_EQ(requests[0].at("class"), "a");
    EXPECT_EQ(requests[1].at("input_length"), 1400);
    EXPECT_EQ(requests[1].at("output_length"), 16);
    EXPECT_NEAR(requests[1].at("timestamp"), 9000, 2);

    const std::vector<std::string> simulate{"simulate", "--workload",        trace, "--warm-up", "0", "--counted",
                                            "2",        "--warm-up-seconds", "0"};
    const json plain = jsonOf(simulate);
    std::vector<std::string> recorded = simulate;
    recorded.insert(recorded.end(), {"--selections", trace});
    const json own = jsonOf(recorded);
    EXPECT_EQ(own["seeds"][0]["points"][0]["requests"]["finished"], 2);
    EXPECT_NE(own["costs"]["drift"], plain["costs"]["drift"]) << "that of the recorded selections";
    EXPECT_NE(own["costs"]["lru_hits"], plain["costs"]["lru_hits"]);

    const std::string decoded = path("run.kvtrace");
    ASSERT_EQ(test::cli({"run", "--prompt", "Once", "--max-new-tokens", "2", "--trace", decoded}).status, 0);
    EXPECT_THAT(test::cli({"simulate", "--workload", decoded}).err, HasSubstr("served requests"));
}

/// Several rates are one fit: the table of two rates has the steps of both.
TEST_F(Load, FitsOneTableToAllRates) {
    const std::string one = path("one.json"), two = path("two.json");
    jsonOf(command({"--processor-time", "--rate", "0.5", "--costs-out", one}));
    jsonOf(command({"--processor-time", "--rate", "0.5,1000", "--costs-out", two}));
    const auto rowsOf = [](const std::string& file) {
        std::ifstream in(file);
        return json::parse(in).at("decode_ms").size();
    };
    EXPECT_LT(rowsOf(one), rowsOf(two)) << "only the second has steps of many rows";
}

/// Such a request has left when its iteration is told: the length of its prompt must still be known.
TEST_F(Load, FitsCostsToPromptsWhoseFirstTokenIsTheirLast) {
    std::ofstream(path("single.jsonl")) << R"({"timestamp": 0, "input_length": 700, "output_length": 1})"
                                        << "\n"
                                        << R"({"timestamp": 9, "input_length": 900, "output_length": 1})"
                                        << "\n";
    std::vector<std::string> arguments = command({"--costs-out", path("c.json")});
    arguments[2] = path("single.jsonl");
    const json planned = jsonOf(arguments).at("costs");
    std::ifstream fitted(path("c.json"));
    const json costs = json::parse(fitted);
    EXPECT_NE(costs.at("prefill_us_per_token"), planned.at("prefill_us_per_token"));
    EXPECT_GT(costs.at("prefill_us_per_token"), 0);
    EXPECT_EQ(costs.at("decode_ms"), planned.at("decode_ms")) << "no step was made";
}

TEST_F(Load, SaysWhereCostsAreOfAnotherModelAndOverwritesNoTableThatItReads) {
    const std::string costs = path("c.json");
    std::ofstream(costs) << R"({"full_us_per_ktoken": 7})";
    const test::Finished served = test::cli(command({"--costs", costs, "--costs-out", path("d.json")}));
    EXPECT_EQ(served.status, 0);
    EXPECT_THAT(served.err, HasSubstr("costs of another model"));
    std::ifstream in(path("d.json"));
    const json table = json::parse(in);
    const json& own = table.at("fitted");
    EXPECT_EQ(table.at("full_us_per_ktoken"), 7);
    EXPECT_EQ(std::count(own.begin(), own.end(), "full_us_per_ktoken"), 1) << "it was given";
    EXPECT_EQ(std::count(own.begin(), own.end(), "drift"), 0);
    EXPECT_THAT(test::cli(command({"--costs", path("d.json")})).err, testing::Not(HasSubstr("another model")));
    expectRefusals(command(), {{{"--costs", costs, "--costs-out", path("./c.json")}, "would overwrite the table"}});
}

/// A table of full attention was taken for a sparse method's: +sparse read every key and value.
TEST_F(Load, ATableOfFullAttentionIsNotTakenForASparseMethods) {
    const std::string costs = path("c.json");
    jsonOf(command({"--method", "full", "--costs-out", costs}));
    std::ifstream in(costs);
    const json table = json::parse(in);
    EXPECT_EQ(table.at("method"), "full");
    EXPECT_EQ(table.at("full_us_per_ktoken"), table.at("decode_us_per_ktoken"));
    const json& own = table.at("fitted");
    EXPECT_EQ(std::count(own.begin(), own.end(), "full_us_per_ktoken"), 1);
    EXPECT_THAT(refusal({"simulate", "--workload", workload(), "--costs", costs, "--search", "--rungs", "+sparse"}),
                HasSubstr("measured with full attention"));
    EXPECT_THAT(refusal(command({"--costs", costs, "--search", "--rungs", "full,+sparse"})),
                HasSubstr("measured with full attention"));
}

/// The engine searches every rung, by processor time, and a search that goes on finds the same.
TEST_F(Load, TheLadderIsSearchedWithTheEngineToo) {
    const std::string points = path("points.jsonl");
    std::vector<std::string> climb =
        command({"--search", "--rungs", "+sparse,+partition", "--resume", points, "--engine", "--processor-time",
                 "--counted", "8", "--queue", "0.2", "--slo", "tbt=10000"});
    const json out = jsonOf(climb);
    ASSERT_EQ(out.at("rungs").size(), 2u);
    double product = 1;
    for (const json& rung : out["rungs"]) {
        EXPECT_FALSE(rung.contains("measured")) << "no rate is served for the simulator's sake";
        const json& measured = rung.at("measured_search");
        ASSERT_EQ(measured.at("capacities_per_s").size(), 1u);
        EXPECT_GT(measured["capacities_per_s"][0], 0);
        EXPECT_EQ(measured.at("capacity_per_s"), measured["capacities_per_s"][0]);
        EXPECT_EQ(measured.at("at_capacity").at("measured"), true);
        EXPECT_NE(measured.at("broke_first"), "");
        EXPECT_NEAR(measured.at("simulated_error"),
                    rung.at("capacity_per_s").get<double>() / measured["capacity_per_s"].get<double>() - 1, 1e-12);
        if (measured.at("gain").is_number()) product *= measured["gain"].get<double>();
    }
    EXPECT_EQ(out["rungs"][0]["measured_search"]["gain"], nullptr);
    EXPECT_DOUBLE_EQ(out.at("product_of_measured_gains"), product);
    EXPECT_EQ(jsonOf(climb), out) << "the file has every point";
    climb.erase(std::find(climb.begin(), climb.end(), "--processor-time"));
    EXPECT_THAT(refusal(climb), HasSubstr("clock"));
    EXPECT_THAT(refusal(command({"--engine"})), HasSubstr("--rungs"));
    EXPECT_THAT(refusal(command({"--rule", "attainment", "--queue", "1"})), HasSubstr("--rule attainment"));
}

/// The ladder measures each way to offload once, says the tables, and keeps them with its points.
TEST_F(Load, TheLadderSaysWhatOffloadingCostsOnEachOfItsWays) {
    const std::string points = path("points.jsonl");
    std::vector<std::string> climb =
        command({"--method", "nosa", "--search", "--rungs", "+sparse,+kernel,+partition", "--resume", points,
                 "--counted", "32"}); // the workload four times, so that a backlog shows
    for (const char* setting : {"sink_blocks=1", "window_blocks=1", "select_blocks=4", "total_blocks=8"})
        climb.insert(climb.end(), {"--set", setting});
    const json out = jsonOf(climb);
    ASSERT_EQ(out.at("rungs").size(), 3u);
    const json& ways = out.at("costs_offloading");
    ASSERT_EQ(ways.size(), 2u);
    for (const char* way : {"global-lru", "partition"}) {
        const json& costs = ways.at(way);
        EXPECT_EQ(costs.at("decode_ms"), out["costs"]["decode_ms"]) << "a step on the device";
        EXPECT_EQ(costs.at("lru_hits"), out["costs"]["lru_hits"]);
        for (const char* term : {"offload_ms", "offload_us_per_row", "link_gbps"})
            EXPECT_EQ(costs.at(term).at("calls"), costs.at(term).at("kernel")) << "on the CPU transfers are one";
        EXPECT_GE(costs.at("offload_ms").at("kernel"), 0);
        EXPECT_NE(costs.at("gap_ms").dump() + costs.at("gap_us_per_row").dump() + costs.at("admit_us_per_token").dump(),
                  out["costs"]["gap_ms"].dump() + out["costs"]["gap_us_per_row"].dump() +
                      out["costs"]["admit_us_per_token"].dump())
            << "measured by itself";
    }
    EXPECT_EQ(jsonOf(climb).at("costs_offloading"), ways) << "the file has them";

    std::ifstream in(points);
    const std::string text{std::istreambuf_iterator<char>(in), {}};
    std::string before = text; // of a version without these terms
    before.replace(before.find("\"costs_version\":2"), 17, "\"costs_version\":1");
    std::ofstream(points) << before;
    EXPECT_THAT(refusal(climb), HasSubstr("found with another 'costs_version'"));
}

TEST_F(Load, CostsThatCannotBeWrittenLeaveTheResults) {
    const std::vector<std::string> arguments = command({"--json", "--costs-out", "/dev/full"});
    const test::Finished result = test::cli(arguments);
    EXPECT_EQ(result.status, 1);
    EXPECT_THAT(result.err, HasSubstr("/dev/full"));
    const json out = json::parse(result.out, nullptr, false);
    ASSERT_TRUE(out.is_object()) << result.out;
    EXPECT_EQ(out.at("points").size(), 1u);
}

TEST_F(Load, FilesThatCannotBeWrittenAreFoundBeforeTheWork) {
    for (const char* option : {"--costs-out", "--trace"})
        EXPECT_THAT(refusal(command({option, path("none/file.kvtrace")})), HasSubstr("none")) << option;
}

// The second rate would take a quarter of an hour.
TEST_F(Load, AnInterruptKeepsTheRatesThatAreFinished) {
    const test::Finished result =
        test::interrupted(command({"--rate", "200,0.01", "--json"}), " 0.01 requests/s", path("said.txt"));
    EXPECT_EQ(result.status, 130) << result.err;
    const json out = json::parse(result.out, nullptr, false);
    ASSERT_TRUE(out.is_object()) << result.out;
    EXPECT_EQ(out.at("cancelled"), true);
    ASSERT_EQ(out.at("points").size(), 1u);
    EXPECT_EQ(out["points"][0].at("rate"), 200);
    EXPECT_EQ(out["points"][0].at("requests").at("finished"), 8);
}

TEST_F(Load, SaysWhyARequestWasRefused) {
    const json out = jsonOf(command({}, "1M"));
    EXPECT_GT(out["points"][0]["requests"]["refused"], 0);
    EXPECT_THAT(out["points"][0]["first_refusal"].get<std::string>(), HasSubstr("--host-kv at least"));
}

TEST_F(Load, RefusesWhatItCannotServeInOneSentence) {
    const auto refused = [&](std::vector<std::string> arguments, const char* says) {
        arguments.insert(arguments.begin(), "load");
        const test::Finished result = test::cli(arguments);
        EXPECT_NE(result.status, 0) << says;
        EXPECT_THAT(result.err, HasSubstr(says));
        EXPECT_EQ(test::linesOf(result.err).size(), 1u) << result.err;
    };
    refused({}, "no workload");
    refused({"--workload", "longmix", "--method", "nosuch"}, "nosuch");
    refused({"--workload", "longmix", "--method", "losa"}, "losa");
    refused({"--workload", "longmix", "--backend", "cuda"}, "--backend cpu");
    refused({"--workload", "longmix", "--knob", "rowz=3"}, "unknown parameter 'rowz'");
    refused({"--workload", "longmix", "--set", "rowz=3"}, "rowz");
    refused({"--workload", "longmix", "--host-kv", "1000000G"}, "lower --host-kv");
}

TEST_F(Load, MethodsSaysWhichServe) {
    for (const json& method : jsonOf({"methods"})) {
        const bool denoises =
            method.at("name") == "losa" || method.at("name") == "sparsed" || method.at("name") == "sparse-dllm";
        EXPECT_EQ(method.at("serves"), !denoises) << method.at("name");
        EXPECT_EQ(method.contains("serves_not_because"), denoises) << method.at("name");
        for (const char* backend : {"cpu", "cuda"}) {
            const json& on = method.at("serves_on").at(backend);
            EXPECT_EQ(on.at("serves"), !denoises) << method.at("name") << " on " << backend;
            EXPECT_EQ(on.contains("because"), denoises) << method.at("name") << " on " << backend;
        }
    }
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
