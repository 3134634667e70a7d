// kvscope-cli quality: the same numbers in one go and in parts, and its mistakes.
#include "tests/app/cli_fixture.h"
#include "tests/app/interrupted.h"
#include "tests/support/places.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>
#include <set>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using nlohmann::json;
using test::cli;
using ::testing::HasSubstr;

class QualityCli : public test::CliFixture {
protected:
    void SetUp() override {
        if (!std::filesystem::exists(test::source("resources/models/losa-tiny/model.safetensors")))
            GTEST_SKIP() << "this checkout leaves out resources/models/losa-tiny";
    }
    static std::vector<std::string> with(std::vector<std::string> more) {
        std::vector<std::string> all{
            "quality",   "--tasks",        "passkey",   "--contexts",      "300",       "--pace",    "slow",
            "--methods", "full,losa",      "--budgets", "16,4096",         "--prompts", "3",         "--batch",
            "2",         "--bound-blocks", "3",         "--bound-context", "64",        "--threads", "1"};
        all.insert(all.end(), more.begin(), more.end());
        return all;
    }
    static json withoutTimes(json document) {
        for (json& row : document["rows"]) row.erase("prompt_ms"), row.erase("decode_ms");
        return document;
    }
};

TEST_F(QualityCli, AnInterruptKeepsWhatIsMeasured) {
    std::vector<std::string> words = with({"--json"});
    *(std::ranges::find(words, "--prompts") + 1) = "400"; // hundreds of batches
    const test::Finished result = test::interrupted(words, "losa", path("said.txt"));
    EXPECT_EQ(result.status, 130) << result.err;
    const json out = json::parse(result.out, nullptr, false);
    ASSERT_TRUE(out.is_object()) << result.out;
    EXPECT_EQ(out.at("cancelled"), true);
    EXPECT_GT(out.at("rows")[0].at("right").at("of"), 0);
}

TEST_F(QualityCli, PartsGiveWhatOneGoGives) {
    const std::string file = path("whole.jsonl"), part = path("part.jsonl");
    const json whole = withoutTimes(jsonOf(with({"--resume", file, "--json"})));
    ASSERT_EQ(whole.at("rows").size(), 3u);
    for (const json& row : whole.at("rows")) {
        EXPECT_EQ(row.at("right").at("of"), 3);
        EXPECT_LE(row.at("right").at("low"), row.at("right").at("share"));
        EXPECT_GE(row.at("right").at("high"), row.at("right").at("share"));
        EXPECT_GT(row.at("forwards_per_block"), 2);
    }
    const json &full = whole["rows"][0], &small = whole["rows"][1], &large = whole["rows"][2];
    EXPECT_EQ(full.at("same_text").at("share"), 1);
    EXPECT_TRUE(full.at("density").is_null());
    EXPECT_EQ(large.at("density"), 1) << "more than there is";
    EXPECT_LT(small.at("density"), 0.5);
    EXPECT_EQ(small.at("same_text").at("of"), 3);
    ASSERT_EQ(whole.at("bounds").size(), 1u) << "that of full attention";
    EXPECT_EQ(whole["bounds"][0].at("terms"), 48);
    // A file of the first lines, the last one cut: it goes on from there.
    std::ifstream in(file);
    std::ofstream out(part);
    std::string line;
    for (int i = 0; i < 4 && std::getline(in, line); ++i) out << line << "\n";
    std::getline(in, line);
    out << line.substr(0, line.size() / 2);
    out.close();
    const auto stopped = cli(with({"--resume", part, "--seconds", "0.000001"}));
    EXPECT_EQ(stopped.status, 0) << stopped.err;
    EXPECT_THAT(stopped.err, HasSubstr("the time is up: 3 of 8 batches are in " + part));
    EXPECT_EQ(withoutTimes(jsonOf(with({"--resume", part, "--json"}))), whole);
    EXPECT_EQ(withoutTimes(jsonOf(with({"--json"}))), whole) << "without a file";
    EXPECT_THAT(cli(with({"--resume", file})).out, HasSubstr("same text"));
    EXPECT_THAT(cli(with({"--resume", file, "--seed", "2"})).err, HasSubstr("another 'seed'"));
    std::ofstream(part, std::ios::app) << R"({"key": "passkey 300 slow full #0+2", "point": {"right": [1, 1]}})"
                                       << "\n";
    EXPECT_THAT(cli(with({"--resume", part})).err, HasSubstr("is not complete"));
}

/// Cells with other settings stand beside those of the same file, and full attention takes none of losa's.
TEST_F(QualityCli, TakesParametersOfTheMethodsThatHaveThem) {
    const std::string file = path("shares.jsonl");
    jsonOf(with({"--resume", file, "--json"}));
    const json shared = jsonOf(with({"--set", "agnostic_share=0.5", "--resume", file, "--json"}));
    ASSERT_EQ(shared.at("rows").size(), 3u);
    EXPECT_EQ(shared["rows"][0].at("settings"), json::object());
    EXPECT_EQ(shared["rows"][1].at("settings").at("agnostic_share"), "0.5");
    std::ifstream in(file);
    std::set<std::string> lines;
    for (std::string line; std::getline(in, line);)
        EXPECT_TRUE(lines.insert(line).second) << "nothing is measured twice";
}

TEST_F(QualityCli, MistakesGetOneSentence) {
    for (const auto& [arguments, expected] : std::vector<std::pair<std::vector<std::string>, std::string>>{
             {{"--tasks", "sums"}, "passkey, keys4, keys16"},
             {{"--pace", "medium"}, "slow, fast"},
             {{"--tasks", "passkey,keys4,passkey"}, "--tasks names passkey twice"},
             {{"--contexts", "300,300"}, "--contexts names 300 twice"},
             {{"--pace", "slow,slow"}, "--pace names slow twice"},
             {{"--methods", "full,losa,full"}, "--methods names full twice"},
             {{"--budgets", "16,64,16"}, "--budgets names 16 twice"},
             {{"--methods", "magic"}, "known methods"},
             {{"--methods", "nosa"}, "budget"},
             {{"--set", "budget=9"}, "--budgets"},
             {{"--methods", "full,quest", "--set", "agnostic_share=0.5"}, "none of the methods"},
             {{"--prompts", "0", "--set", "page=32"}, "--set has no effect with --prompts 0"},
             {{"--model", "nosa-tiny"}, "losa-tiny"},
             {{"--prompts", "0", "--bound-blocks", "0"}, "nothing is left to measure"},
             {{"--bound-blocks", "0", "--text", "x"}, "--text has no effect with --bound-blocks 0"},
             {{"--methods", "full", "--budgets", "64"}, "--budgets has no effect with method full alone"},
             {{"--seconds", "5"}, "--resume"},
             {{"--text", path("none.txt")}, "none.txt"}}) {
        std::vector<std::string> command{"quality"};
        command.insert(command.end(), arguments.begin(), arguments.end());
        const test::Finished result = cli(command);
        EXPECT_TRUE(result.status == 1 || result.status == 2) << expected;
        EXPECT_THAT(result.err, HasSubstr(expected));
        EXPECT_EQ(test::linesOf(result.err).size(), 1u) << result.err;
    }
    EXPECT_THAT(cli({"eval", "--model", "losa-tiny", "--methods", "losa", "--contexts", "300"}).err,
                HasSubstr("use kvscope-cli quality"));
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
