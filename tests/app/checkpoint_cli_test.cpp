// A checkpoint as somebody else checks it: token ids in, ids and logits out, beside what transformers computed.
#include "tests/app/process.h"
#include "tests/core/golden_file.h"
#include "tests/profiler/temporary_folder.h"
#include "tests/support/places.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using test::Finished;
using ::testing::HasSubstr;

const std::string kFamilies = test::source("tests/golden/families/");

class CheckpointCli : public ::testing::Test {
protected:
    std::string path(const std::string& name) const { return (folder_ / name).string(); }
    Finished run(const std::string& model, std::vector<std::string> more) const {
        std::vector<std::string> arguments{test::kCommandLine, "run",  "--model",      model,
                                           "--method",         "full", "--ignore-eos", "--json"};
        arguments.insert(arguments.end(), more.begin(), more.end());
        return test::runProcess(arguments);
    }
    test::Folder folder_;
};

TEST_F(CheckpointCli, GivesTheIdsAndLogitsOfTransformersFromIds) {
    for (const std::string name : {"llama2-mha", "qwen3", "deepseek2-lite"}) {
        SCOPED_TRACE(name);
        const test::GoldenFile reference(kFamilies + name + "/reference.safetensors");
        const auto want = reference.floats("logits");
        const auto ids = reference.ints("generated_ids");
        std::ofstream(path("ids.json")) << nlohmann::json(reference.ints("prompt_ids"));
        const Finished result =
            run(kFamilies + name, {"--prompt-ids", path("ids.json"), "--max-new-tokens", std::to_string(ids.size()),
                                   "--logits", path("out.safetensors")});
        ASSERT_EQ(result.status, 0) << result.err;
        const auto document = nlohmann::json::parse(result.out);
        EXPECT_EQ(document.at("generated_ids").get<std::vector<std::int32_t>>(), ids);
        EXPECT_THAT(document.at("text").get<std::string>(), ::testing::StartsWith("<" + std::to_string(ids[0]) + ">"));
        const auto got = test::GoldenFile(path("out.safetensors")).floats("logits.0");
        ASSERT_EQ(got.size(), want.size());
        double difference = 0, scale = 0;
        for (std::size_t i = 0; i < got.size(); ++i) {
            difference = std::max(difference, std::abs(double(got[i]) - double(want[i])));
            scale = std::max(scale, std::abs(double(want[i])));
        }
        EXPECT_LT(difference / scale, 1e-4);
    }
}

TEST_F(CheckpointCli, LogitsOfABatchGoToTheirSequences) {
    std::ofstream(path("ids.json")) << "[1, 2, 3, 4, 5, 6, 7]";
    const auto logitsOf = [&](const char* batch, const char* sequence) {
        const Finished result = run(kFamilies + "qwen3", {"--prompt-ids", path("ids.json"), "--max-new-tokens", "5",
                                                          "--batch", batch, "--logits", path("out.safetensors")});
        EXPECT_EQ(result.status, 0) << result.err;
        return test::GoldenFile(path("out.safetensors")).floats(sequence);
    };
    const auto alone = logitsOf("1", "logits.0");
    ASSERT_GT(alone.size(), 0u);
    for (const char* sequence : {"logits.0", "logits.1"}) { // each step wrote one row of either sequence
        const auto together = logitsOf("2", sequence);
        ASSERT_EQ(together.size(), alone.size());
        for (std::size_t i = 0; i < alone.size(); ++i)
            ASSERT_NEAR(together[i], alone[i], 1e-3 * (1 + std::abs(alone[i]))) << sequence << ' ' << i;
    }
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_.path()), {}), 2) << "no spool is left behind";
}

TEST_F(CheckpointCli, WithoutATokenizerATextIsRefusedWithTheWayOut) {
    const Finished result = run(kFamilies + "qwen3", {"--prompt", "Hello"});
    EXPECT_NE(result.status, 0);
    EXPECT_THAT(result.err, HasSubstr("has no tokenizer.json"));
    EXPECT_THAT(result.err, HasSubstr("--prompt-ids"));
}

TEST_F(CheckpointCli, LogitsThatCannotBeWrittenAreNamed) {
    std::ofstream(path("ids.json")) << "[1, 2, 3]";
    const std::string target = path("nowhere/out.safetensors");
    const Finished result =
        run(kFamilies + "qwen3", {"--prompt-ids", path("ids.json"), "--max-new-tokens", "2", "--logits", target});
    EXPECT_NE(result.status, 0);
    EXPECT_THAT(result.err, HasSubstr("nowhere"));
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
