// kvscope-cli eval: its numbers, its progress, and how an interrupt ends it.
#include "tests/app/cli_fixture.h"
#include "tests/support/places.h"

#include <chrono>
#include <fstream>
#include <gmock/gmock.h>
#include <thread>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using nlohmann::json;
using test::cli;
using test::Finished;

using ::testing::HasSubstr;
using ::testing::Not;

class EvalCli : public test::CliFixture {};

TEST_F(EvalCli, SweepsMakeARowEachAndTheDocumentIsComplete) {
    const json out = jsonOf({"eval", "--methods", "full,nosa", "--contexts", "700", "--set", "total_blocks=6", "--set",
                             "window_blocks=2", "--sweep", "k_q=1,3", "--depths", "0.5", "--decode-tokens", "8",
                             "--text-tokens", "16"});
    EXPECT_EQ(out.at("model"), "nosa-tiny");
    EXPECT_EQ(out.at("link"), "modelled");
    ASSERT_EQ(out.at("rows").size(), 3u);
    const json &full = out["rows"][0], &one = out["rows"][1], &three = out["rows"][2];
    EXPECT_EQ(full.at("method"), "full");
    EXPECT_TRUE(full.at("k").is_null());
    EXPECT_EQ(full.at("needle_accuracy"), 1);
    EXPECT_EQ(full.at("recall"), 1);
    EXPECT_EQ(full.at("perplexity_ratio"), 1);
    EXPECT_EQ(one.at("settings").at("select_blocks"), "1");
    EXPECT_EQ(three.at("settings").at("select_blocks"), "3");
    EXPECT_EQ(three.at("parameters").at("select_blocks"), 3);
    for (const json& row : out["rows"]) {
        for (const char* key : {"perplexity", "full_perplexity", "mass", "best_mass", "recall", "tokens_per_s",
                                "tokens_per_s_with_link", "h2d_bytes_per_step", "exposed_ms_per_step"})
            EXPECT_TRUE(row.at(key).is_number()) << key;
        EXPECT_EQ(row.at("context"), 700);
        EXPECT_EQ(row.at("perplexity_by_position").size(), 4u);
        EXPECT_EQ(row["perplexity_by_position"][3].at("to"), 715);
        ASSERT_EQ(row.at("needle_by_depth").size(), 1u);
        EXPECT_EQ(row["needle_by_depth"][0].at("prompts"), 1);
        EXPECT_EQ(row.at("full_perplexity"), full.at("perplexity"));
    }
    EXPECT_EQ(one.at("k"), 6);
    EXPECT_GT(three.at("k_q_share"), one.at("k_q_share"));
    EXPECT_GT(three.at("h2d_bytes_per_step").get<double>(), 0);
    EXPECT_LE(one.at("mass"), one.at("best_mass"));
    const Finished text = cli(
        {"eval", "--methods", "streaming", "--contexts", "600", "--prompts", "0", "--text-tokens", "4", "--no-oracle"});
    EXPECT_EQ(text.status, 0) << text.err;
    EXPECT_EQ(test::linesOf(text.out).size(), 3u) << "what was done, a heading, a row";
    EXPECT_EQ(text.err, "") << "progress is off, and nothing else is to be said";
}

TEST_F(EvalCli, MistakesGetOneSentence) {
    std::ofstream(path("short.txt")) << "too short";
    expectRefusals({"eval"}, {{{"--methods", "magic"}, "known methods"},
                              {{"--set", "colour=red"}, "none of the methods has a parameter 'colour'"},
                              {{"--methods", "full", "--sweep", "k_q=1,2"}, "select_blocks"},
                              {{"--sweep", "k_q"}, "--sweep key=value"},
                              {{"--sweep", "k_q=1,many"}, "whole number"},
                              {{"--contexts", "60000"}, "16384"},
                              {{"--contexts", "900,900"}, "--contexts names 900 twice"},
                              {{"--methods", "full,nosa,full"}, "--methods names full twice"},
                              {{"--depths", "0.5,0.5"}, "--depths names 0.5 twice"},
                              {{"--text", path("none.txt")}, "none.txt"},
                              {{"--text", path("short.txt")}, "are needed"},
                              {{"--prompts", "0", "--text-tokens", "0"}, "nothing is left to measure"},
                              {{"--backend", "abacus"}, "backend"},
                              {{"--depths", "2"}, "depths"},
                              {{"--model", path("nowhere")}, "nosa-tiny"}});
}

TEST_F(EvalCli, InterruptEndsALongCommandCleanly) {
    test::Process process({test::kCommandLine, "eval", "--contexts", "16000", "--prompts", "50"});
    std::this_thread::sleep_for(std::chrono::seconds(1)); // by now the command handles the signal itself
    process.signal(SIGINT);
    const Finished result = process.wait();
    EXPECT_EQ(result.status, 130) << result.err;
    EXPECT_EQ(test::linesOf(result.err).size(), 1u) << result.err;
    EXPECT_THAT(result.err, HasSubstr("cancelled"));
    EXPECT_EQ(result.out, "");
}

TEST_F(EvalCli, ALogHasLinesOfProgressAndAnEndedCommandItsTable) {
    test::Process process({"/usr/bin/env", "KVSCOPE_PROGRESS_SECONDS=0.01", test::kCommandLine, "eval", "--methods",
                           "full,nosa", "--contexts", "600,16000", "--prompts", "2", "--depths", "0.5",
                           "--decode-tokens", "8", "--text-tokens", "4", "-o", path("results")});
    const auto rows = [&] { // of the table, with its heading
        std::ifstream csv(path("results/eval.csv"));
        return test::linesOf({std::istreambuf_iterator<char>(csv), {}}).size();
    };
    for (int i = 0; i < 600 && rows() < 2; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(100));
    EXPECT_GE(rows(), 2u) << "a row is in the table when it is measured";
    process.signal(SIGINT);
    const Finished result = process.wait();
    EXPECT_THAT(result.err, HasSubstr("% full: "));
    EXPECT_GT(test::linesOf(result.err).size(), 3u) << result.err;
    EXPECT_THAT(result.err, Not(HasSubstr("\r"))) << "nothing to rewrite";
}

TEST_F(EvalCli, AFolderIsPickedUpWhereItEnded) {
    const auto command = [&](const std::string& methods, const std::string& seed) {
        return std::vector<std::string>{
            "eval", "--methods",       methods, "--contexts", "600", "--depths", "0.5",           "--text-tokens",
            "4",    "--decode-tokens", "8",     "--seed",     seed,  "-o",       path("results"), "--json"};
    };
    const auto parsed = [](const Finished& result) {
        EXPECT_EQ(result.status, 0) << result.err;
        return json::parse(result.out);
    };
    const json first = parsed(cli(command("streaming", "1")));
    ASSERT_EQ(first.at("rows").size(), 1u);
    const Finished more = cli(command("full,streaming,nosa", "1"));
    EXPECT_THAT(more.err, HasSubstr("1 rows of"));
    const json second = parsed(more);
    ASSERT_EQ(second.at("rows").size(), 3u);
    EXPECT_EQ(second["rows"][0].at("method"), "full");
    EXPECT_EQ(second["rows"][1], first["rows"][0]) << "not measured again, times and all";
    EXPECT_EQ(parsed(cli(command("nosa", "1"))).at("rows").size(), 3u) << "what was there stays";
    std::ifstream csv(path("results/eval.csv")), svg(path("results/eval.svg"));
    std::string line, chart((std::istreambuf_iterator<char>(svg)), {});
    int lines = 0;
    while (std::getline(csv, line)) ++lines;
    EXPECT_EQ(lines, 4) << "a heading and three rows";
    for (const char* name : {">full<", ">streaming<", ">nosa<", "Needles found", "</svg>"})
        EXPECT_THAT(chart, HasSubstr(name));
    const Finished other = cli(command("nosa", "2"));
    EXPECT_EQ(other.status, 1);
    EXPECT_THAT(other.err, HasSubstr("seed 1, now 2"));
    std::ofstream(path("results/eval.json")) << second; // with sorted keys
    EXPECT_EQ(parsed(cli(command("nosa", "1"))).at("rows").size(), 3u) << "the same evaluation";
    json damaged = second;
    damaged["model"] = std::string(5'000, 'x');
    std::ofstream(path("results/eval.json")) << damaged;
    EXPECT_LT(cli(command("nosa", "1")).err.size(), 1'000u);
    const std::pair<const char*, json> faults[] = {{"/method", 5},
                                                   {"/settings", "k_q=1"},
                                                   {"/needle_by_depth/0/correct", 3},
                                                   {"/needle_by_depth/0", nullptr},
                                                   {"/context", "600"},
                                                   {"/k", 1.5},
                                                   {"/unit_tokens", json::object()},
                                                   {"/needle_accuracy", 30},
                                                   {"/tokens_per_s", -944},
                                                   {"/mass", "high"}};
    for (const auto& [place, value] : faults) {
        damaged = second;
        damaged["rows"][1][json::json_pointer(place)] = value;
        std::ofstream(path("results/eval.json")) << damaged;
        const Finished refused = cli(command("nosa", "1"));
        EXPECT_EQ(refused.status, 1) << place;
        EXPECT_THAT(refused.err, HasSubstr("row 2 of " + path("results/eval.json") + " has no '")) << place;
        EXPECT_EQ(refused.out, "") << place;
    }
    damaged = second;
    damaged["rows"][1].erase("exposed_ms_per_step");
    std::ofstream(path("results/eval.json")) << damaged;
    EXPECT_THAT(cli(command("nosa", "1")).err, HasSubstr("'exposed_ms_per_step'"));
    std::ofstream(path("results/eval.json")) << "no json";
    EXPECT_THAT(cli(command("nosa", "1")).err, HasSubstr("is not an evaluation"));
}

class ReplayCheckCli : public test::CliFixture {};

TEST_F(ReplayCheckCli, PredictionsAreCheckedByRunningThem) {
    const std::string trace = path("a.kvtrace");
    record(trace, {"--prompt-needle", "1300", "--method", "infllmv2", "--max-new-tokens", "16"});
    const json out = jsonOf({"replay", trace, "--check", "--policy", "lru", "--cache-blocks", "18,22", "--link", "12"});
    const json& check = out.at("check");
    EXPECT_EQ(check.at("model"), "nosa-tiny");
    EXPECT_EQ(check.at("exact"), true);
    EXPECT_EQ(check.at("timing"), "modelled");
    ASSERT_EQ(check.at("configs").size(), 2u);
    for (const json& config : check["configs"]) {
        EXPECT_EQ(config.at("policy"), "lru");
        EXPECT_EQ(config.at("link_gbps"), 12);
        for (const char* key : {"hits", "misses", "h2d_bytes", "exposed_ms"}) {
            EXPECT_EQ(config.at("predicted").at(key), config.at("run").at(key)) << key;
            EXPECT_EQ(config.at("error_percent").at(key), 0) << key;
        }
        EXPECT_TRUE(config.at("error_percent").at("tokens_per_s").is_number());
    }
    EXPECT_EQ(check.at("control").at("run").at("misses"), out.at("recorded").at("misses"));
    EXPECT_TRUE(check.at("tokens_per_s_error_percent").at("worst").is_number());

    expectRefusals({"replay", trace}, {{{"--check", "--backend", "cuda"}, "recorded on cpu"},
                                       {{"--check", "--policy", "belady"}, "keep-selected,lru"},
                                       {{"--check", "--shared-pool"}, "shared pools"},
                                       {{"--check", "--model", path("nowhere")}, "nosa-tiny"},
                                       {{"--block-size", "100"}, "--block-size 128"},
                                       {{"--block-size", "64,128", "--curves"}, "one --block-size"}});
    test::executeSql(trace, "update run set model = 'elsewhere'; delete from run_meta where key = 'model_path'");
    EXPECT_THAT(cli({"replay", trace, "--check"}).err, HasSubstr("give its folder with --model"));
    // A recording whose bytes are not the engine's is found out.
    test::executeSql(trace, "update run set model = 'nosa-tiny', block_bytes = block_bytes + 4");
    EXPECT_EQ(jsonOf({"replay", trace, "--check=1"}, 3).at("check").at("exact"), false);
}

TEST_F(ReplayCheckCli, LargerBlocksAndThePartsOfTheTime) {
    const std::string trace = path("a.kvtrace");
    record(trace, {"--prompt-needle", "1300", "--max-new-tokens", "16"});
    const json out = jsonOf({"replay", trace, "--policy", "lru", "--block-size", "64,128"});
    ASSERT_EQ(out.at("configs").size(), 2u);
    const json &recorded = out["configs"][0], &larger = out["configs"][1];
    EXPECT_EQ(recorded.at("block_size"), 64);
    EXPECT_EQ(larger.at("block_size"), 128);
    const auto bytesPerMiss = [](const json& c) {
        return c.at("h2d_bytes").get<double>() / c.at("misses").get<double>();
    };
    EXPECT_DOUBLE_EQ(bytesPerMiss(larger), 2 * bytesPerMiss(recorded));
    double parts = 0;
    for (const auto& [name, ms] : out.at("compute_ms_parts").items()) parts += ms.get<double>();
    EXPECT_NEAR(parts, recorded.at("compute_ms").get<double>(), 1e-6);
    EXPECT_NEAR(recorded.at("tokens_per_s").get<double>(),
                recorded.at("tokens").get<double>() * 1e3 /
                    (recorded.at("compute_ms").get<double>() + recorded.at("exposed_ms").get<double>()),
                1e-6);
}

TEST_F(ReplayCheckCli, ProgressIsShownOnATerminalOnly) {
    const std::string trace = path("a.kvtrace");
    record(trace, {"--prompt-needle", "800", "--max-new-tokens", "8"});
    EXPECT_EQ(cli({"replay", trace}).err, "");
    if (test::runProcess({"/bin/sh", "-c", "command -v script"}).status != 0) GTEST_SKIP() << "no script(1) here";
    const Finished watched =
        test::runProcess({"/bin/sh", "-c",
                          "script -qec 'env -u KVSCOPE_PROGRESS_SECONDS " + std::string(test::kCommandLine) +
                              " replay " + trace + "' /dev/null </dev/null"});
    EXPECT_THAT(watched.out, HasSubstr("% replaying"));
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
