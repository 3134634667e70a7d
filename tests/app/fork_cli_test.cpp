// run --fork, and what a trace says of the needles in its prompt.
#include "profiler/read/trace_reader.h"
#include "tests/app/cli_fixture.h"

#include <gmock/gmock.h>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using nlohmann::json;
using test::cli;
using test::executeSql;
using test::Finished;
using ::testing::HasSubstr;

class ForkCli : public test::CliFixture {
protected:
    /// A needle prompt that the budget does not fit.
    json recordNeedle(const std::string& trace, std::vector<std::string> more = {}) const {
        std::vector<std::string> arguments{"--prompt-needle", "900",   "--method",        "infllmv2",         "--set",
                                           "total_blocks=6",  "--set", "window_blocks=2", "--max-new-tokens", "12"};
        arguments.insert(arguments.end(), more.begin(), more.end());
        return record(trace, arguments);
    }
    json fork(const std::string& place, const std::string& trace, std::vector<std::string> more = {}) const {
        std::vector<std::string> arguments{"run", "--fork", place, "--trace", trace};
        arguments.insert(arguments.end(), more.begin(), more.end());
        return jsonOf(arguments);
    }
    static void expectRefused(std::vector<std::string> arguments, const std::string& named) {
        const Finished result = cli(std::move(arguments));
        EXPECT_EQ(result.status, 1);
        EXPECT_EQ(test::linesOf(result.err).size(), 1U) << result.err;
        EXPECT_THAT(result.err, HasSubstr(named));
    }
};

TEST_F(ForkCli, WithNothingChangedGivesTheSameRun) {
    const std::string source = path("a.kvtrace"), out = path("fork.kvtrace");
    for (const std::vector<std::string>& sampling :
         {std::vector<std::string>{}, {"--temperature", "0.8", "--seed", "4"}}) {
        std::filesystem::remove(source);
        std::filesystem::remove(out);
        const json recorded = recordNeedle(source, sampling);
        const json report = fork(source + ":1@5", out);
        EXPECT_EQ(report.at("changes"), json::array());
        EXPECT_EQ(report.at("generated_ids").at(0), recorded.at("generated_ids"));
        EXPECT_EQ(report.at("run_id"), 2);
        EXPECT_EQ(report.at("unchanged").at("run_id"), 1);
        const json& parted = report.at("sequences").at(0);
        EXPECT_EQ(parted.at("same_text"), true);
        EXPECT_EQ(parted.at("first_selection"), nullptr);
        EXPECT_EQ(parted.at("step"), nullptr);
    }
    // without -o the fork goes into the trace of the recorded run, and that run is not repeated
    const json report = fork(source + "@5", source);
    EXPECT_EQ(report.at("run_id"), 2);
    EXPECT_EQ(report.at("unchanged").at("run_id"), 1);
    EXPECT_EQ(report.at("sequences").at(0).at("same_text"), true);
    const json info = jsonOf({"info", source});
    EXPECT_EQ(info.at("runs").size(), 2U);
    EXPECT_EQ(info.at("runs").at(1).at("fork").at("step"), 5);
    EXPECT_EQ(info.at("runs").at(1).at("fork").at("run"), 1);
    EXPECT_EQ(info.at("runs").at(1).at("name"), "fork at 5: unchanged");
}

TEST_F(ForkCli, KeepsTheTextBeforeTheStepAndSaysWhereTheSelectionsDiffer) {
    const std::string source = path("a.kvtrace"), out = path("fork.kvtrace");
    const json recorded = recordNeedle(source);
    const json report = fork(source + "@4", out, {"--set", "total_blocks=4", "--max-new-tokens", "9"});
    EXPECT_EQ(report.at("changes"), json({"total_blocks 4", "max-new-tokens 9"}));
    const json& before = recorded.at("generated_ids");
    const json& after = report.at("generated_ids").at(0);
    ASSERT_EQ(after.size(), 9U);
    for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(after.at(i), before.at(i));
    const json& parted = report.at("sequences").at(0);
    ASSERT_TRUE(parted.at("first_selection").is_object());
    EXPECT_GE(parted.at("first_selection").at("step"), 4);
    EXPECT_FALSE(parted.at("first_selection").at("only_recorded").empty());
    EXPECT_TRUE(parted.at("first_selection").at("only_fork").empty()) << "a smaller budget adds nothing in layer order";
    // the first run of the file repeats the recorded run
    const json info = jsonOf({"info", out});
    ASSERT_EQ(info.at("runs").size(), 2U);
    EXPECT_THAT(info.at("runs").at(0).at("name").get<std::string>(), HasSubstr("again: "));
    EXPECT_EQ(info.at("runs").at(1).at("parameters").at("total_blocks"), 4);
    EXPECT_EQ(info.at("runs").at(1).at("fork").at("file"), "a.kvtrace");
    EXPECT_EQ(cli({"check", out}).status, 0);
}

TEST_F(ForkCli, LeavesABlockOut) {
    const std::string source = path("a.kvtrace"), out = path("fork.kvtrace");
    recordNeedle(source);
    const json report = fork(source + "@3", out, {"--without-block", "5"});
    EXPECT_EQ(report.at("changes"), json({"without block 5"}));
    const TraceReader reader(out);
    int before = 0, from = 0;
    for (int layer = 0; layer < reader.run(2)->layers; ++layer)
        for (int head = 0; head < reader.run(2)->kvHeads; ++head)
            for (const SelectionRow& row : reader.selections(2, layer, 0, head))
                if (findBlock(row.blocks, 5) != nullptr) ++(row.step < 3 ? before : from);
    EXPECT_GT(before, 0) << "choose a block that is selected before";
    EXPECT_EQ(from, 0);
    for (const json& sentence : report.at("sequences").at(0).at("sentences"))
        EXPECT_TRUE(sentence.get<std::string>().ends_with("."));
}

TEST_F(ForkCli, AnotherMethodHasItsOwnSettings) {
    const std::string source = path("a.kvtrace"), out = path("fork.kvtrace");
    recordNeedle(source);
    const json report = fork(source + "@2", out, {"--method", "full"});
    EXPECT_EQ(report.at("changes"), json({"method full"}));
    EXPECT_EQ(report.at("sequences").at(0).at("first_selection"), nullptr) << "full attention chooses nothing";
    EXPECT_EQ(jsonOf({"info", out}).at("runs").at(1).at("method"), "full");
}

TEST_F(ForkCli, AMethodWhoseBudgetIsOfQueryHeadsIsForkedAndReadLikeAnother) {
    const std::string source = path("a.kvtrace");
    for (const std::vector<std::string>& method :
         {std::vector<std::string>{"infinigen-token"}, {"quest", "--set", "group=per_query_head"}}) {
        std::filesystem::remove(source);
        std::vector<std::string> arguments{"--prompt-needle", "300", "--max-new-tokens", "6", "--method"};
        arguments.insert(arguments.end(), method.begin(), method.end());
        record(source, arguments);
        EXPECT_EQ(jsonOf({"insights", source}).at("run_id"), 1);
        EXPECT_EQ(cli({"report", source, "-o", path("report.html")}).status, 0);
        const json report = fork(source + "@2", path("fork.kvtrace"), {"--max-new-tokens", "5", "--overwrite"});
        EXPECT_EQ(report.at("sequences").at(0).at("step"), nullptr) << "the texts part nowhere";
    }
}

TEST_F(ForkCli, SaysWhyARunCannotBeForked) {
    const std::string source = path("a.kvtrace"), out = path("fork.kvtrace");
    recordNeedle(source);
    const auto forked = [&](const std::string& place, std::vector<std::string> more = {}) {
        std::vector<std::string> arguments{"run", "--fork", place, "--trace", out};
        arguments.insert(arguments.end(), more.begin(), more.end());
        return arguments;
    };
    expectRefused(forked(source), "cannot read --fork");
    expectRefused(forked(source + "@12"), "it has no step 12; its last is 11");
    expectRefused(forked(source + ":9@1"), "has no run 9");
    expectRefused(forked(path("none.kvtrace") + "@1"), "none.kvtrace");
    expectRefused(forked(source + "@2", {"--prompt", "x"}), "--prompt has no effect on a fork");
    expectRefused(forked(source + "@2", {"--method", "qest"}), "unknown method 'qest'");
    expectRefused(forked(source + "@6", {"--max-new-tokens", "6"}), "at least --max-new-tokens 7");
    expectRefused(forked(source + "@2", {"--without-block", "14"}), "block 14 cannot be left out");
    expectRefused({"run", "--fork", source + "@2"}, "name the trace with --trace");
    expectRefused({"run", "--fork", source + "@2", "--trace", source, "--overwrite"}, "--overwrite would replace");

    const auto altered = [&](const std::string& sql, const std::string& named) {
        const std::string copy = path("copy.kvtrace");
        std::filesystem::remove(copy);
        std::filesystem::copy_file(source, copy);
        executeSql(copy, sql);
        expectRefused(forked(copy + "@4"), named);
        std::filesystem::remove(copy);
        std::filesystem::remove(copy + "-wal");
        std::filesystem::remove(copy + "-shm");
    };
    altered("DELETE FROM prompt", "does not hold the prompt");
    altered("UPDATE run_meta SET value = '/nowhere/model' WHERE key = 'model_path'", "/nowhere/model");
    altered("UPDATE run_meta SET value = 'vllm' WHERE key = 'engine'", "was recorded by vllm");
    altered("UPDATE run_meta SET value = '1:2:3' WHERE key = 'model_fingerprint'", "fingerprint");
    altered("INSERT INTO run_meta VALUES (1, 'denoising_canvas', '64')", "denoising forwards");
    altered("INSERT INTO run_meta VALUES (1, 'serving', '{}')", "served requests");
    // a token that this machine does not write
    altered("UPDATE token SET token_id = token_id + 1 WHERE id = (SELECT min(id) FROM token)", "cannot be restored");
}

TEST_F(ForkCli, DamagedJsonOfATraceIsShownAsItsText) {
    const std::string source = path("a.kvtrace");
    recordNeedle(source);
    executeSql(source, "UPDATE run SET params_json = '{<p'; INSERT INTO run_meta VALUES (1, 'fork', '{<f')");
    const json run = jsonOf({"info", source}).at("runs").at(0);
    EXPECT_EQ(run.at("parameters"), "{<p");
    EXPECT_EQ(run.at("fork"), "{<f");
}

TEST_F(ForkCli, TheAnswerOfANeedlePromptIsJudged) {
    const std::string source = path("a.kvtrace");
    recordNeedle(source, {"--batch", "2"});
    json run = jsonOf({"info", source}).at("runs").at(0);
    ASSERT_EQ(run.at("answers").size(), 2U);
    for (const json& answer : run.at("answers")) {
        EXPECT_EQ(answer.at("expected").get<std::string>().size(), 5U);
        const bool correct = answer.at("answered") == answer.at("expected");
        EXPECT_EQ(answer.at("verdict"), correct ? "correct" : "other");
    }
    // The repeated prompt takes its needles along; a prompt without any says nothing.
    record(path("b.kvtrace"), {"--prompt-trace", source, "--max-new-tokens", "2"});
    run = jsonOf({"info", path("b.kvtrace")}).at("runs").at(0);
    EXPECT_EQ(run.at("answers").size(), 2U);
    record(path("c.kvtrace"), {"--prompt", "One two", "--max-new-tokens", "2"});
    EXPECT_FALSE(jsonOf({"info", path("c.kvtrace")}).at("runs").at(0).contains("answers"));
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
