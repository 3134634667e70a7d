// kvscope-cli simulate as a person uses it.
#include "tests/app/cli_fixture.h"

#include <gmock/gmock.h>

namespace kvscope {
namespace {

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

TEST_F(Simulate, FindsACapacityThatOneSeedRepeats) {
    const std::vector<std::string> search{"simulate", "--workload", "longmix", "--requests",
                                          "64",       "--search",   "--seed",  "3"};
    const json once = jsonOf(search), again = jsonOf(search);
    EXPECT_EQ(once, again);
    EXPECT_GT(once["seeds"][0]["capacity_per_s"], 0.05);
    EXPECT_FALSE(once["seeds"][0]["broke_first"].get<std::string>().empty());
}

TEST_F(Simulate, RefusesWhatItCannotUnderstandInOneSentence) {
    const auto refused = [](std::vector<std::string> arguments, const char* says) {
        arguments.insert(arguments.begin(), "simulate");
        const test::Finished result = test::cli(arguments);
        EXPECT_NE(result.status, 0) << says;
        EXPECT_THAT(result.err, HasSubstr(says));
        EXPECT_EQ(result.out, "");
    };
    refused({}, "no workload");
    refused({"--workload", path("none.jsonl")}, "none.jsonl");
    refused({"--workload", "longmix", "--set", "rowz=3"}, "unknown parameter 'rowz'");
    refused({"--workload", "longmix", "--set", "cache=fifo"}, "partition, global-lru");
    refused({"--workload", "longmix", "--slo", "tbt=-3"}, "--slo");
    refused({"--workload", "longmix", "--device-kv", "4X"}, "--device-kv");
    refused({"--workload", "longmix", "--search", "--rate", "1"}, "--rate");
}

} // namespace
} // namespace kvscope
