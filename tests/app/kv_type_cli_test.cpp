// run --kv-type: what the command line, the trace and what reads traces say of quantised KV blocks.
#include "core/model/bundled_models.h"
#include "core/model/model.h"
#include "tests/app/cli_fixture.h"

#include <gmock/gmock.h>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using nlohmann::json;
using test::cli;
using ::testing::Contains;
using ::testing::HasSubstr;

class KvTypes : public test::CliFixture {
protected:
    void SetUp() override {
        if (!hasBundledModel(kDefaultModel)) GTEST_SKIP() << "this checkout leaves out resources/models/nosa-tiny";
    }
    const std::vector<std::string> small_{"--prompt-needle",
                                          "400",
                                          "--method",
                                          "nosa",
                                          "--set",
                                          "block_size=16",
                                          "--set",
                                          "total_blocks=9",
                                          "--set",
                                          "kernel_size=8",
                                          "--set",
                                          "kernel_stride=4",
                                          "--set",
                                          "window_blocks=2",
                                          "--set",
                                          "select_blocks=3",
                                          "--max-new-tokens",
                                          "20"};
    std::vector<std::string> with(std::vector<std::string> more) const {
        more.insert(more.begin(), small_.begin(), small_.end());
        return more;
    }
};

TEST_F(KvTypes, ARunSaysItsTypeAndCountsItsBytes) {
    const std::string trace = path("int8.kvtrace");
    const json run = record(trace, with({"--kv-type", "int8", "--verify"}));
    EXPECT_EQ(run.at("verified"), true);
    const json info = jsonOf({"info", trace});
    EXPECT_EQ(info.at("runs").at(0).at("kv_type"), "int8");
    const std::int64_t bytes = info.at("runs").at(0).at("block_bytes"), misses = run.at("misses");
    // Keys and values of 16 tokens and 64 channels, their scales, and eviction scores.
    EXPECT_EQ(bytes, (2 * 16 * 64 + 2 * 64 + 2 * 16 + 4 * 16 + 127) / 128 * 128);
    EXPECT_GT(misses, 0);
    EXPECT_EQ(run.at("h2d_bytes"), misses * bytes);
    const json replayed = jsonOf({"replay", trace, "--policy", "lru"});
    for (const json& config : replayed.at("configs")) {
        EXPECT_GT(config.at("h2d_bytes").get<std::int64_t>(), 0);
        EXPECT_EQ(config.at("h2d_bytes").get<std::int64_t>() % bytes, 0);
    }
}

TEST_F(KvTypes, AForkKeepsTheTypeOrChangesIt) {
    const std::string trace = path("run.kvtrace"), fork = path("fork.kvtrace");
    record(trace, with({"--kv-type", "int4"}));
    const test::Finished other = cli({"run", "--fork", trace + "@4", "--kv-type", "int8", "--trace", fork, "--json"});
    ASSERT_EQ(other.status, 0) << other.err;
    EXPECT_THAT(other.out, HasSubstr("KV blocks as int8"));
}

TEST_F(KvTypes, WhatCannotIsRefused) {
    EXPECT_THAT(refusal({"run", "--prompt", "one two", "--kv-type", "int3"}), HasSubstr("int3"));
    EXPECT_THAT(refusal({"run", "--prompt", "one two", "--method", "h2o", "--kv-type", "int8"}),
                HasSubstr("reads single keys and values of its KV blocks"));
    for (const json& method : jsonOf({"methods"})) {
        if (method.at("name") == "nosa") {
            EXPECT_THAT(method.at("kv_types").at("cpu"), Contains("int4"));
        }
        if (method.at("name") == "h2o") {
            EXPECT_EQ(method.at("kv_types").at("cpu"), json::array({"f32"}));
            EXPECT_EQ(method.at("kv_types").at("cuda"), json::array({"bf16"}));
        }
    }
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
