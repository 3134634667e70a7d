// kvscope-cli simulate as a person uses it.
#include "tests/app/cli_fixture.h"

#include <gmock/gmock.h>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using nlohmann::json;
using ::testing::HasSubstr;
using Simulate = test::CliFixture;

TEST_F(Simulate, PrintsWaitsAndUtilisationAndGivesNoWaitsNearSaturation) {
    const json out = jsonOf({"simulate", "--workload", "longmix", "--requests", "128", "--rate", "0.3,2"});
    ASSERT_EQ(out.at("seeds").size(), 1u);
    const json &calm = out["seeds"][0]["points"][0], &over = out["seeds"][0]["points"][1];
    EXPECT_EQ(calm.at("ttft_promised"), true);
    EXPECT_LT(calm.at("utilisation"), 0.8);
    EXPECT_GT(calm.at("ttft_ms").at("mean"), calm.at("queue_ms").at("mean"));
    EXPECT_EQ(calm.at("requests").at("counted"), 128);
    EXPECT_EQ(over.at("ttft_promised"), false);
    EXPECT_GT(over.at("utilisation"), 1.0);
    for (const char* key : {"ttft_ms", "queue_ms", "e2e_ms", "attainment", "goodput_per_s"})
        EXPECT_TRUE(over.at(key).is_null()) << key;
    EXPECT_TRUE(over.at("tbt_ms").is_object());
    const auto text = test::cli({"simulate", "--workload", "longmix", "--requests", "64", "--rate", "2"});
    EXPECT_THAT(text.out, HasSubstr("no waiting times"));
    const auto late =
        test::cli({"simulate", "--workload", "longmix", "--requests", "64", "--rate", "0.1", "--slo", "ttft=1"});
    EXPECT_THAT(late.out, HasSubstr("sustained")) << "the bound on TTFT is none of a rate, ";
    EXPECT_THAT(late.out, HasSubstr("attainment 0.000")) << "but of requests";
    EXPECT_THAT(late.out, ::testing::Not(HasSubstr("every bound kept")));
}

TEST_F(Simulate, ReadsTheWorkloadAndTheCostsThatItWrites) {
    const std::string workload = path("w.jsonl"), costs = path("c.json");
    ASSERT_EQ(test::cli({"simulate", "--workload", "longmix", "--requests", "64", "--write", workload}).status, 0);
    const auto table = test::cli({"simulate", "--print-costs"});
    std::ofstream(costs) << table.out;
    const json own =
        jsonOf({"simulate", "--workload", workload, "--costs", costs, "--rate", "0.3", "--warm-up-seconds", "0"});
    const json made =
        jsonOf({"simulate", "--workload", "longmix", "--requests", "64", "--rate", "0.3", "--warm-up-seconds", "0"});
    EXPECT_NEAR(own["seeds"][0]["points"][0]["ttft_ms"]["mean"], made["seeds"][0]["points"][0]["ttft_ms"]["mean"], 25)
        << "the file's span is a mean gap behind its last arrival";
    EXPECT_EQ(own.at("costs"), json::parse(table.out));
}

TEST_F(Simulate, RefusesATableOfCostsByItsName) {
    const std::string costs = path("mine.json");
    for (const char* text : {"", "{", "[]", R"({"decode_ms": 4})", R"({"decode_mss": [[1, 4]]})",
                             R"({"shape": {"layers": 0}})", R"({"link_gbps": 51})"}) {
        std::ofstream(costs) << text;
        const std::string line = refusal({"simulate", "--workload", "longmix", "--costs", costs});
        EXPECT_THAT(line, HasSubstr(costs)) << text;
        EXPECT_THAT(line, HasSubstr("--print-costs")) << text;
    }
}

/// Of a table that names what was measured, full attention is not simulated with the default of another machine.
TEST_F(Simulate, SaysWhichCostsATableDidNotMeasure) {
    const std::string costs = path("c.json");
    const auto table = [&](std::vector<std::string> fitted) {
        std::ofstream(costs) << json{{"decode_us_per_ktoken", 123}, {"fitted", std::move(fitted)}};
    };
    const std::vector<std::string> host{
        "plan_ms",   "gap_ms", "gap_us_per_row", "admit_ms", "admit_us_per_token", "between_ms", "between_us_per_row",
        "request_ms"};
    std::vector<std::string> fitted{"decode_ms", "decode_us_per_ktoken", "prefill_us_per_token",
                                    "prefill_ps_per_token2"};
    fitted.insert(fitted.end(), host.begin(), host.end());
    const std::vector<std::string> once{"simulate", "--workload", "longmix", "--requests", "16",
                                        "--rate",   "0.1",        "--costs", costs};
    std::vector<std::string> lru = once, resident = once;
    lru.insert(lru.end(), {"--set", "cache=global-lru"});
    resident.insert(resident.end(), {"--set", "offload=false"});
    const std::vector<std::string> ladder{"simulate",  "--workload", "longmix",   "--requests", "16",
                                          "--cap",     "16K",        "--search",  "--costs",    costs,
                                          "--outputs", "4",          "--warm-up", "8",          "--warm-up-seconds",
                                          "0",         "--rungs"};
    const auto climb = [&](const char* rungs) {
        std::vector<std::string> all = ladder;
        all.emplace_back(rungs);
        return all;
    };
    table(fitted);
    EXPECT_EQ(jsonOf(lru).at("costs_not_measured"),
              json({"link_gbps", "offload_ms", "offload_us_per_row", "drift", "lru_hits"}));
    EXPECT_THAT(test::cli(lru).err, HasSubstr("not measured in " + costs));
    EXPECT_EQ(jsonOf(resident).at("costs_not_measured"), json::array());
    EXPECT_EQ(test::cli(resident).err, "");
    EXPECT_THAT(refusal(climb("full,+sparse")), HasSubstr("its full_us_per_ktoken was not measured"));
    EXPECT_EQ(jsonOf(climb("+sparse")).at("costs_not_measured"), json::array());
    EXPECT_EQ(json::parse(test::cli({"simulate", "--costs", costs, "--print-costs"}).out).at("fitted"), json(fitted));

    fitted.emplace_back("full_us_per_ktoken");
    table(fitted);
    EXPECT_EQ(jsonOf(climb("full,+sparse")).at("rungs").size(), 2u);
    std::ofstream(costs) << json{{"method", "full"}, {"full_us_per_ktoken", 123}, {"fitted", fitted}};
    EXPECT_EQ(jsonOf(climb("full")).at("rungs").size(), 1u);
    EXPECT_THAT(refusal(climb("full,+sparse")), HasSubstr("its steps were measured with full attention"));
    EXPECT_EQ(json::parse(test::cli({"simulate", "--costs", costs, "--print-costs"}).out).at("method"), "full");
    std::ofstream(costs) << R"({"decode_us_per_ktoken": 123})"; // says nothing of what was measured
    EXPECT_EQ(jsonOf(lru).at("costs_not_measured"), json::array());
    EXPECT_EQ(jsonOf(climb("full")).at("rungs").size(), 1u);
}

TEST_F(Simulate, RefusesMemoryInWhichNoRequestCanEverRun) {
    const std::vector<std::string> simulate{"simulate", "--workload", "longmix", "--requests", "8"};
    expectRefusals(simulate, {{{"--device-kv", "1"}, "no request can ever run"},
                              {{"--device-kv", "1", "--search"}, "give --device-kv at least"},
                              {{"--host-kv", "1"}, "give --host-kv at least"},
                              {{"--device-kv", "1", "--search", "--rungs", "all"}, "no request can ever run"}});
}

TEST_F(Simulate, RefusesWhatNeverEndsOrOutlastsItsClock) {
    const std::string costs = path("slow.json");
    const std::vector<std::string> simulate{"simulate", "--workload", "longmix", "--requests",        "12", "--costs",
                                            costs,      "--warm-up",  "0",       "--warm-up-seconds", "0"};
    const auto with = [&](const char* rate, const char* counted) {
        std::vector<std::string> all = simulate;
        all.insert(all.end(), {"--rate", rate, "--counted", counted});
        return refusal(all);
    };
    std::ofstream(costs) << R"({"prefill_us_per_token": 1e9})"; // hours for a prompt, while requests go on arriving
    EXPECT_THAT(with("1000", "12"), HasSubstr("requests arrived before"));
    std::ofstream(costs) << R"({"prefill_us_per_token": 1e15})";
    EXPECT_THAT(with("1000", "12"), HasSubstr("beyond 100 years"));
    ASSERT_EQ(test::cli({"simulate", "--workload", "longmix", "--requests", "4", "--write", path("w.jsonl")}).status,
              0);
    EXPECT_THAT(refusal({"simulate", "--workload", path("w.jsonl"), "--spread", "1e300"}), HasSubstr("--spread"));
    std::ofstream(costs) << "{}";
    EXPECT_THAT(with("1e-06", "20000"), HasSubstr("20000 requests at 1e-06 per second take more than 100 years"));
}

TEST_F(Simulate, FindsACapacityThatOneSeedRepeats) {
    const std::vector<std::string> search{"simulate", "--workload", "longmix", "--requests",
                                          "64",       "--search",   "--seed",  "3"};
    const json once = jsonOf(search), again = jsonOf(search);
    EXPECT_EQ(once, again);
    EXPECT_GT(once["seeds"][0]["capacity_per_s"], 0.05);
    EXPECT_FALSE(once["seeds"][0]["broke_first"].get<std::string>().empty());
}

const std::vector<std::string> kLadder{
    "simulate", "--workload",        "longmix", "--requests",  "48",      "--cap",
    "16K",      "--outputs",         "4",       "--device-kv", "2G",      "--warm-up",
    "8",        "--warm-up-seconds", "0",       "--search",    "--rungs", "all"};
std::vector<std::string> ladderWith(std::vector<std::string> more) {
    std::vector<std::string> arguments = kLadder;
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
}

TEST_F(Simulate, FindsTheCapacityOfEveryRungOfTheLadder) {
    const json out = jsonOf(kLadder);
    ASSERT_EQ(out.at("rungs").size(), 7u);
    double product = 1, before = 0;
    for (const json& rung : out["rungs"]) {
        ASSERT_EQ(rung.at("void"), false) << rung["rung"];
        const double capacity = rung.at("capacity_per_s");
        EXPECT_GT(capacity, 0.01);
        EXPECT_EQ(rung.at("at_capacity").at("broken"), nullptr);
        if (before > 0) {
            EXPECT_NEAR(rung.at("gain").get<double>(), capacity / before, 1e-9);
            product *= capacity / before;
            const json& why = rung.at("below_the_rung_before");
            EXPECT_EQ(why, capacity < before ? rung.at("broke_first") : json(nullptr)) << rung["rung"];
        }
        before = capacity;
    }
    EXPECT_NEAR(out.at("product_of_gains").get<double>(), product, 1e-9);
    EXPECT_GT(out["rungs"][3]["capacity_per_s"], out["rungs"][2]["capacity_per_s"])
        << "one kernel is faster than calls";
    const json alone = jsonOf({"simulate", "--workload",        "longmix", "--requests",  "48",    "--cap",
                               "16K",      "--outputs",         "4",       "--device-kv", "2G",    "--warm-up",
                               "8",        "--warm-up-seconds", "0",       "--search",    "--set", "cache=global-lru",
                               "--set",    "prefill=chunks"});
    EXPECT_EQ(out["rungs"][4]["capacity_per_s"], alone["seeds"][0]["capacity_per_s"]) << "+control by its knobs";
}

TEST_F(Simulate, GoesOnWithALadderThatWasInterrupted) {
    const std::string points = path("points.jsonl");
    const auto lines = [&] {
        std::vector<std::string> all;
        std::ifstream in(points);
        for (std::string line; std::getline(in, line);) all.push_back(line);
        return all;
    };
    const json whole = jsonOf(ladderWith({"--resume", points}));
    const std::vector<std::string> all = lines();
    ASSERT_GT(all.size(), 20u);
    EXPECT_EQ(jsonOf(ladderWith({"--resume", points})), whole);
    EXPECT_EQ(lines(), all) << "nothing is tried twice";
    {
        std::ofstream cut(points);
        for (std::size_t i = 0; i < 9; ++i) cut << all[i] << "\n";
        cut << all[9].substr(0, all[9].size() / 2); // killed while it wrote
    }
    EXPECT_EQ(jsonOf(ladderWith({"--resume", points})), whole);
    EXPECT_EQ(jsonOf(ladderWith({"--resume", points})), whole) << "the file is whole again";
    const test::Finished other = test::cli(ladderWith({"--resume", points, "--queue", "1"}));
    EXPECT_NE(other.status, 0);
    EXPECT_THAT(other.err, HasSubstr("were found with another 'queue_s'"));
    std::ofstream(points) << "what is this\n";
    EXPECT_THAT(test::cli(ladderWith({"--resume", points})).err, HasSubstr("is not a point of a search"));
}

TEST_F(Simulate, SaysWhyARungIsVoid) {
    std::vector<std::string> arguments = kLadder;
    *std::find(arguments.begin(), arguments.end(), "2G") = "300M"; // 16K tokens of full attention need 512 MiB
    const json out = jsonOf(arguments);
    EXPECT_EQ(out["rungs"][0].at("void"), true);
    EXPECT_THAT(out["rungs"][0].at("broke_first").get<std::string>(), HasSubstr("refused"));
    EXPECT_EQ(out.at("product_of_gains"), nullptr);
    EXPECT_EQ(out["rungs"][6].at("void"), false);
    EXPECT_THAT(test::cli(arguments).out, HasSubstr("void: "));
}

TEST_F(Simulate, RefusesWhatItCannotUnderstandInOneSentence) {
    const auto refused = [](std::vector<std::string> arguments, const char* says) {
        arguments.insert(arguments.begin(), "simulate");
        const test::Finished result = test::cli(arguments);
        EXPECT_NE(result.status, 0) << says;
        EXPECT_THAT(result.err, HasSubstr(says));
        EXPECT_EQ(result.out, "");
    };
    refused({"--workload", "longmix", "--search", "--rungs", "fast"}, "no rung is named 'fast'");
    refused({"--workload", "longmix", "--rungs", "all"}, "--search");
    refused({"--workload", "longmix", "--search", "--resume", "f"}, "--rungs");
    refused({"--workload", "longmix", "--search", "--rungs", "all", "--set", "transfers=calls"},
            "every rung decides it");
    refused({}, "no workload");
    refused({"--workload", path("none.jsonl")}, "none.jsonl");
    refused({"--workload", "longmix", "--set", "rowz=3"}, "unknown parameter 'rowz'");
    refused({"--workload", "longmix", "--set", "cache=fifo"}, "partition, global-lru");
    refused({"--workload", "longmix", "--slo", "tbt=-3"}, "--slo");
    refused({"--workload", "longmix", "--device-kv", "4X"}, "--device-kv");
    for (const char* amount : {"99999999999999999999G", "1048577T"})
        refused({"--workload", "longmix", "--device-kv", amount}, "is too large; give at most 1048576T");
    refused({"--workload", "longmix", "--search", "--rate", "1"}, "--rate");
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
