// kvscope-cli sweep: a run for every combination, each as `run` makes it alone, all in one trace.
#include "tests/app/cli_fixture.h"
#include "tests/support/places.h"

#include <gmock/gmock.h>
#include <set>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using nlohmann::json;

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class SweepCli : public test::CliFixture {};

TEST_F(SweepCli, EveryCombinationIsTheRunThatItIsAlone) {
    const std::string trace = path("sweep.kvtrace");
    const json out = jsonOf({"sweep", "--sweep", "method=nosa,streaming", "--sweep", "k_q=1,3", "--sweep",
                             "device-kv=20,24", "--prompt-needle", "700", "--max-new-tokens", "6", "--ignore-eos",
                             "--trace", trace, "--record", "counters"});
    EXPECT_EQ(out.at("completed"), true);
    ASSERT_EQ(out.at("runs").size(), 6u) << "streaming has no k_q: its two combinations are one";
    std::set<std::string> names;
    for (const json& run : out["runs"]) names.insert(run.at("name").get<std::string>());
    EXPECT_EQ(names.size(), 6u);
    EXPECT_TRUE(names.contains("nosa select_blocks=3 device-kv=24")) << out.dump(1);
    EXPECT_TRUE(names.contains("streaming device-kv=20"));
    const json info = jsonOf({"info", trace});
    ASSERT_EQ(info.at("runs").size(), 6u) << "one trace";
    for (const json& run : out["runs"]) {
        if (run.at("name") != "nosa select_blocks=3 device-kv=24") continue;
        const json alone =
            record(path("alone.kvtrace"), {"--prompt-needle", "700", "--max-new-tokens", "6", "--method", "nosa",
                                           "--set", "select_blocks=3", "--device-kv", "24", "--record", "counters"});
        EXPECT_EQ(run.at("h2d_bytes"), alone.at("h2d_bytes"));
        EXPECT_EQ(run.at("steps"), alone.at("steps"));
        EXPECT_EQ(info["runs"][run.at("run_id").get<std::size_t>() - 1].at("name"), run.at("name"));
    }
}

TEST_F(SweepCli, WhatCannotRunIsSaidAndTheOthersGoOn) {
    const std::string trace = path("sweep.kvtrace");
    const json out = jsonOf({"sweep", "--sweep", "device-kv=1,20", "--prompt-needle", "700", "--max-new-tokens", "4",
                             "--trace", trace, "--record", "counters"},
                            1);
    ASSERT_EQ(out.at("runs").size(), 2u);
    EXPECT_THAT(out["runs"][0].at("problem").get<std::string>(), HasSubstr("too small"));
    EXPECT_EQ(out["runs"][1].at("completed"), true);
    expectRefusals({"sweep", "--prompt-needle", "300", "--trace", path("none.kvtrace")},
                   {{{"--sweep", "colour=red"}, "none of the methods has a parameter 'colour'"},
                    {{"--sweep", "k_q"}, "--sweep key=value"},
                    {{"--sweep", "k_q="}, "has no value"},
                    {{"--sweep", "k_q=1,many"}, "whole number"},
                    {{"--sweep", "seed=x"}, "seed=x"},
                    {{"--sweep", "method=magic"}, "known methods"},
                    {{"--sweep", "k=7", "--sweep", "total_blocks=8"}, "'total_blocks' twice"}});
    EXPECT_FALSE(std::filesystem::exists(path("none.kvtrace"))) << "nothing was begun";
}

TEST_F(SweepCli, WhatChangesNothingIsRefused) {
    expectRefusals({"sweep", "--prompt", "x", "--max-new-tokens", "2", "--trace", path("none.kvtrace")},
                   {{{"--sweep", "k=16", "--set", "total_blocks=18"}, "--set total_blocks has no effect"},
                    {{"--sweep", "method=full,nosa", "--method", "quest"}, "--method has no effect"},
                    {{"--sweep", "device-kv=20,24", "--device-kv", "30"}, "--device-kv has no effect"},
                    {{"--sweep", "seed=1,2"}, "--seed has no effect at temperature 0"},
                    {{"--sweep", "k=16", "--seed", "2"}, "--seed has no effect at temperature 0"},
                    {{"--sweep", "link=pcie4,pcie5", "--method", "full"}, "--link has no effect with method full"}});
    EXPECT_FALSE(std::filesystem::exists(path("none.kvtrace"))) << "nothing was begun";
    // Runs at temperature 0 are one, whatever the seed.
    const json out = jsonOf({"sweep", "--prompt", "x", "--max-new-tokens", "2", "--trace", path("a.kvtrace"), "--sweep",
                             "temperature=0,1", "--sweep", "seed=3,4"});
    std::vector<std::string> names;
    for (const json& run : out.at("runs")) names.push_back(run.at("name"));
    EXPECT_THAT(names, ElementsAre("nosa temperature=0", "nosa temperature=1 seed=3", "nosa temperature=1 seed=4"));
}

TEST_F(SweepCli, TokensAreComparedWithTheFirstRunThatWasMade) {
    const test::Finished result = test::cli({"sweep", "--prompt", "x", "--max-new-tokens", "2", "--trace",
                                             path("a.kvtrace"), "--sweep", "method=full,nosa", "--device-kv", "50"});
    EXPECT_EQ(result.status, 1);
    EXPECT_THAT(result.out, HasSubstr("--device-kv has no effect with method full"));
    EXPECT_THAT(result.out, HasSubstr("as the first"));
    EXPECT_THAT(result.err, HasSubstr("1 of 2 runs could not be made"));
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
