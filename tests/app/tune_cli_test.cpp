// kvscope-cli tune, against a brute-force run of every candidate, against eval and against recorded runs.
#include "tests/app/cli_fixture.h"
#include "tests/app/interrupted.h"
#include "tests/support/places.h"

#include <fstream>
#include <gmock/gmock.h>
#include <map>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using nlohmann::json;
using test::Finished;

using ::testing::HasSubstr;

class TuneCli : public test::CliFixture {
protected:
    /// A grid of five candidates, one of which is too large for the memory.
    static std::vector<std::string> grid(std::vector<std::string> more) {
        std::vector<std::string> all{"tune",
                                     "--methods",
                                     "nosa,streaming,full",
                                     "--budgets",
                                     "256,320",
                                     "--context",
                                     "500",
                                     "--prompt-count",
                                     "3",
                                     "--memory",
                                     "3300K",
                                     "--threads",
                                     "1",
                                     "--link",
                                     "1",
                                     "--decode-tokens",
                                     "10"};
        all.insert(all.end(), more.begin(), more.end());
        return all;
    }
    static std::string nameOf(const json& row) {
        std::string name = row.at("method");
        for (const auto& [key, value] : row.at("settings").items()) name += " " + key + "=" + value.get<std::string>();
        return name;
    }
};

TEST_F(TuneCli, TheChoiceIsThatOfABruteForceRun) {
    const json all = jsonOf(grid({"--runs", "99", "--floor", "0.6"})),
               few = jsonOf(grid({"--runs", "2", "--floor", "0.6"}));
    ASSERT_EQ(all.at("rows").size(), 4u);
    std::map<std::string, json> brute;
    std::string fastest;
    for (const json& row : all["rows"]) {
        ASSERT_TRUE(row.at("measured").is_object()) << nameOf(row);
        EXPECT_LE(row.at("device_bytes").get<double>(), 3300 * 1024) << nameOf(row);
        brute[nameOf(row)] = row;
        const json& measured = row["measured"];
        const bool reaches = measured.at("good").get<double>() >= 0.6 * measured.at("of").get<double>();
        EXPECT_EQ(row.at("reaches_floor"), reaches) << nameOf(row);
        if (reaches && (fastest.empty() ||
                        measured.at("step_ms").get<double>() < brute[fastest]["measured"].at("step_ms").get<double>()))
            fastest = nameOf(row);
    }
    ASSERT_FALSE(fastest.empty()) << all.dump(1);
    EXPECT_EQ(nameOf(all["rows"][all.at("choice").at("row").get<std::size_t>()]), fastest);
    ASSERT_EQ(all.at("left_out").size(), 1u);
    EXPECT_THAT(all["left_out"][0].at("why").get<std::string>(), HasSubstr("nothing of it can leave"));

    // A short tuning measures the same answers and bytes of what it runs, and chooses among these alone.
    std::size_t run = 0;
    for (const json& row : few.at("rows")) {
        if (row.at("measured").is_null()) {
            EXPECT_EQ(row.at("recommended"), false) << "nothing is recommended that was not run";
            continue;
        }
        ++run;
        const json& same = brute.at(nameOf(row)).at("measured");
        if (row["measured"].at("gave_up") == true) continue;
        for (const char* key : {"good", "of", "h2d_bytes_per_token", "hit_rate"})
            EXPECT_EQ(row["measured"].at(key), same.at(key)) << nameOf(row) << " " << key;
    }
    EXPECT_EQ(run, few.at("order").size());
    for (std::size_t i = 0; i < 2; ++i) EXPECT_EQ(few["order"][i], i) << "the best predicted come first";
    const json& chosen = few["rows"][few.at("choice").at("row").get<std::size_t>()];
    EXPECT_EQ(brute.at(nameOf(chosen)).at("reaches_floor"), true);
    EXPECT_EQ(few["choice"].at("first_predicted"), chosen.at("predicted").at("rank") == 1);
    EXPECT_THAT(few.at("verdict").get<std::string>(),
                HasSubstr("Recommended: " + chosen.at("method").get<std::string>()));
    // The command line is one that runs.
    std::istringstream words(few["choice"].at("command").get<std::string>());
    std::vector<std::string> command;
    for (std::string word; words >> word;) command.push_back(word);
    command[0] = test::kCommandLine;
    EXPECT_EQ(test::runProcess(command).status, 0);
}

TEST_F(TuneCli, AnswersAreThoseOfEval) {
    const json tuned = jsonOf(grid({"--runs", "99", "--floor", "0"}));
    const json eval = jsonOf({"eval", "--methods", "nosa", "--contexts", "500", "--depths", "0.1,0.3,0.7",
                              "--text-tokens", "0", "--decode-tokens", "10", "--set", "total_blocks=4", "--set",
                              "window_blocks=1", "--set", "select_blocks=1"});
    const auto row = std::find_if(tuned.at("rows").begin(), tuned["rows"].end(), [](const json& each) {
        return each.at("method") == "nosa" && each.at("settings").value("total_blocks", "") == "4";
    });
    ASSERT_NE(row, tuned["rows"].end()) << tuned.dump(1);
    EXPECT_EQ(row->at("settings"), json({{"total_blocks", "4"}, {"window_blocks", "1"}, {"select_blocks", "1"}}));
    EXPECT_EQ(row->at("measured").at("quality"), eval.at("rows")[0].at("needle_accuracy"));
}

TEST_F(TuneCli, ARecordedRunIsReplayedAndItsBytesAreExact) {
    const std::string trace = path("a.kvtrace");
    const std::vector<std::string> load{"tune", "--methods", "infllmv2", "--budgets",      "448", "--context",
                                        "1300", "--memory",  "6M",       "--runs",         "1",   "--floor",
                                        "0",    "--threads", "1",        "--prompt-count", "1",   "--decode-tokens",
                                        "24"};
    const json first = jsonOf(load);
    ASSERT_EQ(first.at("rows").size(), 1u);
    const json& row = first["rows"][0];
    EXPECT_THAT(row.at("predicted").at("from").get<std::string>(), HasSubstr("roofline"));
    std::vector<std::string> recorded{"--prompt-needle", "1300",     "--needle-depth",   "0.1",
                                      "--method",        "infllmv2", "--max-new-tokens", "24"};
    for (const auto& [key, value] : row.at("settings").items())
        recorded.insert(recorded.end(), {"--set", key + "=" + value.get<std::string>()});
    record(trace, recorded); // with as few slots as it needs: the replay is asked for more
    std::vector<std::string> again = load;
    again.insert(again.end(), {"--from", trace});
    const json second = jsonOf(again);
    const json& replayed = second["rows"][0];
    EXPECT_GT(replayed.at("device_kv_blocks").get<int>(), 7);
    EXPECT_THAT(replayed.at("predicted").at("from").get<std::string>(), HasSubstr("replay of run 1 of a.kvtrace"));
    EXPECT_GT(replayed.at("measured").at("h2d_bytes_per_token").get<double>(), 0);
    EXPECT_EQ(replayed["predicted"].at("h2d_bytes_per_token"), replayed["measured"].at("h2d_bytes_per_token"));
    test::executeSql(trace, "UPDATE run SET params_json = json_set(params_json, '$.kv_type', 'int4')");
    again.emplace_back("--json");
    const test::Finished quantised = test::cli(again);
    EXPECT_THAT(json::parse(quantised.out)["rows"][0].at("predicted").at("from").get<std::string>(),
                HasSubstr("roofline"))
        << "quantised blocks have fewer bytes than a candidate's";
    EXPECT_THAT(quantised.err, HasSubstr("no run of --from stands for a candidate"));
}

TEST_F(TuneCli, NothingIsRecommendedBelowTheFloor) {
    const json out = jsonOf({"tune", "--methods", "streaming", "--budgets", "192,256", "--context", "500",
                             "--prompt-count", "5", "--decode-tokens", "8", "--threads", "1"},
                            1);
    EXPECT_TRUE(out.at("choice").is_null());
    EXPECT_THAT(out.at("verdict").get<std::string>(), HasSubstr("Nothing is recommended"));
    for (const json& row : out.at("rows")) EXPECT_EQ(row.at("recommended"), false);
    EXPECT_EQ(out.at("order").size(), 2u);
    // Five right answers of five do not make sure of nine in ten.
    const std::vector<std::string> full{"tune", "--methods",       "full", "--context", "400", "--prompt-count",
                                        "5",    "--decode-tokens", "8",    "--threads", "1"};
    EXPECT_TRUE(jsonOf(full).at("choice").is_object());
    std::vector<std::string> unwritten = full; // what was measured is printed, be the file as it may
    unwritten.insert(unwritten.end(), {"--json", "-o", "/dev/full"});
    const Finished told = test::cli(unwritten);
    EXPECT_EQ(told.status, 1);
    EXPECT_THAT(told.err, HasSubstr("/dev/full"));
    EXPECT_TRUE(json::parse(told.out, nullptr, false).is_object()) << told.out;
    std::vector<std::string> sure = full;
    sure.push_back("--sure");
    EXPECT_TRUE(jsonOf(sure, 1).at("choice").is_null());
}

TEST_F(TuneCli, AFileThatCannotBeWrittenIsFoundBeforeTheWork) {
    expectRefusals({"tune", "-o"},
                   {{{path("none/tune.json")}, "No such file or directory"}, {{folder_.string()}, "Is a directory"}});
    const std::string trace = path("a.kvtrace");
    record(trace, {"--prompt", "Once", "--max-new-tokens", "2"});
    expectRefusals({"tune", "-o"}, {{{trace}, "a database"}});
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1) << "nothing is left of the trial";
}

TEST_F(TuneCli, AgreementWithFullAttentionIsOneForFullAttention) {
    std::ofstream(path("own.jsonl")) << R"({"prompt": "The magic number for silver lantern is 73398. The magic"})"
                                     << "\n\n"
                                     << R"({"prompt": "The river runs to the sea, and the sea"})"
                                     << "\n";
    const json out =
        jsonOf({"tune", "--methods", "full", "--prompts", path("own.jsonl"), "--decode-tokens", "9", "--threads", "1"});
    EXPECT_EQ(out.at("floor").at("measure"), "agreement");
    EXPECT_EQ(out.at("rows")[0].at("measured").at("of"), 2 * 8);
    EXPECT_EQ(out["rows"][0]["measured"].at("quality"), 1);
    const json near =
        jsonOf({"tune", "--methods", "streaming", "--budgets", "256", "--prompts", "document", "--context", "500",
                "--prompt-count", "2", "--floor", "0", "--threads", "1", "--batch", "2"});
    const double share = near.at("rows")[0].at("measured").at("quality").get<double>();
    EXPECT_GT(share, 0.2);
    EXPECT_LT(share, 1);
}

TEST_F(TuneCli, MistakesGetOneSentence) {
    std::ofstream(path("bad.jsonl")) << R"({"prompt": "a"})"
                                     << "\n"
                                     << R"({"text": "b"})"
                                     << "\n";
    std::ofstream(path("other.jsonl")) << R"({"prompt": "a", "reply": "b"})";
    std::ofstream(path("mixed.jsonl")) << R"({"prompt": "a", "answer": "b"})"
                                       << "\n"
                                       << R"({"prompt": "b"})"
                                       << "\n";
    for (const auto& [arguments, expected] : std::vector<std::pair<std::vector<std::string>, std::string>>{
             {{"--methods", "magic"}, "known methods"},
             {{"--memory", "much"}, "--memory 'much'"},
             {{"--memory", "64K", "--methods", "nosa", "--budgets", "256", "--context", "500"}, "takes at least"},
             {{"--prompts", path("none.jsonl")}, "needles, document"},
             {{"--prompts", path("bad.jsonl")}, "line 2"},
             {{"--prompts", path("other.jsonl")}, "has 'reply', which is neither prompt nor answer"},
             {{"--prompts", path("mixed.jsonl")}, "only one of them has an answer"},
             {{"--prompts", "document", "--measure", "answered"}, "has no answers"},
             {{"--prompts", path("bad.jsonl"), "--context", "100"}, "--context has no effect"},
             {{"--methods", "full", "--budgets", "256"}, "--budgets has no effect with method full alone"},
             {{"--floor", "2"}, "floor"},
             {{"--model", "losa-tiny"}, "denoises"},
             {{"--from", path("none.kvtrace")}, "none.kvtrace"},
             {{"--gpu", "abacus"}, "abacus"},
             {{"--model", path("nowhere")}, "nosa-tiny"}}) {
        std::vector<std::string> command{"tune"};
        command.insert(command.end(), arguments.begin(), arguments.end());
        if (std::find(arguments.begin(), arguments.end(), "--prompts") == arguments.end() &&
            std::find(arguments.begin(), arguments.end(), "--context") == arguments.end())
            command.insert(command.end(), {"--context", "200", "--prompt-count", "1"});
        EXPECT_THAT(refusal(command), HasSubstr(expected));
    }
}

TEST_F(TuneCli, AnInterruptKeepsWhatIsMeasured) {
    const Finished result =
        test::interrupted({"tune", "--methods", "streaming,full", "--budgets", "256", "--context", "1500",
                           "--prompt-count", "4", "--decode-tokens", "400", "--runs", "2", "--threads", "1", "--json"},
                          "running full", path("said.txt"));
    EXPECT_EQ(result.status, 130) << result.err;
    const json out = json::parse(result.out, nullptr, false);
    ASSERT_TRUE(out.is_object()) << result.out;
    EXPECT_EQ(out.at("cancelled"), true);
    EXPECT_EQ(out.at("order").size(), 1u);
    EXPECT_TRUE(out.at("rows")[0].at("measured").is_object());
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
