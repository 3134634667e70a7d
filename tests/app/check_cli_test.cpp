// kvscope-cli check, and numbers that are refused where rows break rules of the format.
#include "tests/app/cli_fixture.h"
#include "tests/support/places.h"

#include <gmock/gmock.h>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using ::testing::HasSubstr;
using ::testing::Not;

class CheckCli : public test::CliFixture {
protected:
    CheckCli() { record(trace, {"--prompt-needle", "1200", "--max-new-tokens", "8"}); }
    std::string trace = path("run.kvtrace");
};

TEST_F(CheckCli, AGoodTraceBreaksNoRule) {
    const test::Finished result = test::cli({"check", trace});
    EXPECT_EQ(result.status, 0) << result.out;
    EXPECT_THAT(result.out, HasSubstr("0 violations; "));
    EXPECT_THAT(result.out, HasSubstr("could not be tested"));
    EXPECT_EQ(jsonOf({"check", trace}).at("violations"), 0);
    EXPECT_FALSE(jsonOf({"info", trace}).at("runs").at(0).contains("violations"));
}

TEST_F(CheckCli, RunsOfEveryMethodBreakNoRule) {
    for (const auto& method : jsonOf({"methods"})) {
        const std::string name = method.at("name"), file = path(name + ".kvtrace");
        const test::Finished run =
            test::cli({"run", "--prompt-needle", "700", "--max-new-tokens", "6", "--method", name, "--trace", file});
        if (run.status != 0) continue; // refused: the method needs weights that the embedded model lacks
        const test::Finished result = test::cli({"check", file});
        EXPECT_EQ(result.status, 0) << name << ": " << result.out;
    }
}

TEST_F(CheckCli, EveryViolationIsALineAndAStatus) {
    test::executeSql(trace, "UPDATE selection SET kept = 3 * selected WHERE id = (SELECT max(id) FROM selection);"
                            "UPDATE step SET tokens = -944 WHERE id & 0x1FFFFFF = 3");
    const test::Finished result = test::cli({"check", trace});
    EXPECT_EQ(result.status, 3);
    EXPECT_THAT(result.out, HasSubstr("run 1, step 3: tokens is -944 (step-tokens: "));
    EXPECT_THAT(result.out, HasSubstr("KV head 1: kept is "));
    const nlohmann::json document = jsonOf({"check", trace}, 3);
    EXPECT_GE(document.at("violations").get<int>(), 2);
    EXPECT_EQ(document.at("checks").at(1).at("run_id"), 1);
    EXPECT_THAT(test::cli({"check", trace, "--limit", "-1"}).err, HasSubstr("--limit"));
}

TEST_F(CheckCli, ReplayAndRooflineNameTheRulesThatTheirRowsBreak) {
    const std::vector<std::vector<std::string>> commands = {{"replay", trace},
                                                            {"roofline", "--trace", trace, "--gpu", "h200"},
                                                            {"roofline", "--trace", trace, "--waterfall"}};
    for (const auto& command : commands) EXPECT_FALSE(jsonOf(command).contains("broken_rules")) << command[0];
    test::executeSql(trace, "UPDATE step SET tokens = -944 WHERE id & 0x1FFFFFF = 3");
    for (const auto& command : commands) {
        EXPECT_THAT(test::cli(command).err, HasSubstr("rows of run 1 break rules of the trace format")) << command[0];
        EXPECT_THAT(jsonOf(command).at("broken_rules").get<std::string>(), HasSubstr("step-tokens")) << command[0];
    }
}

TEST_F(CheckCli, SlotsThatARunDoesNotKnowAreNotNone) {
    EXPECT_GT(jsonOf({"info", trace}).at("runs").at(0).at("device_slots").get<int>(), 0);
    test::executeSql(trace, R"(UPDATE run_meta SET value = '["selections","step_times"]' WHERE key = 'knows')");
    EXPECT_GT(jsonOf({"info", trace}).at("runs").at(0).at("device_slots").get<int>(), 0) << "it says them all the same";
    test::executeSql(trace, "UPDATE run SET device_slots = 0");
    EXPECT_TRUE(jsonOf({"info", trace}).at("runs").at(0).at("device_slots").is_null());
    EXPECT_THAT(test::cli({"info", trace}).out, HasSubstr("device_slots             not known"));
}

TEST_F(CheckCli, NumbersThatMeanNothingAreNotGiven) {
    test::executeSql(trace,
                     "UPDATE selection SET kept = 3 * selected; UPDATE step SET tokens = -944, exposed_ns = -22;");
    const nlohmann::json run = jsonOf({"info", trace}).at("runs").at(0);
    for (const char* refused :
         {"locality_mean", "locality_min", "tokens_per_s", "tokens_per_s_with_gaps", "exposed_ms"})
        EXPECT_TRUE(run.at(refused).is_null()) << refused << ": " << run.at(refused);
    EXPECT_FALSE(run.at("h2d_bytes").is_null()) << "it is not concerned";
    EXPECT_GT(run.at("violations").get<int>(), 3);
    test::executeSql(trace, "UPDATE step SET hits = hits + 1 WHERE id & 0x1FFFFFF = 3");
    EXPECT_TRUE(jsonOf({"info", trace}).at("runs").at(0).at("hit_rate").is_null());
    const nlohmann::json insights = jsonOf({"insights", trace});
    EXPECT_TRUE(insights.at("exposure").is_null());
    EXPECT_THAT(insights.at("headline").get<std::string>(), HasSubstr("No statement"));
    ASSERT_GE(insights.at("insights").size(), 1u);
    EXPECT_EQ(insights.at("insights").at(0).at("id"), "broken-rules");
    const test::Finished text = test::cli({"insights", trace});
    EXPECT_EQ(text.status, 0);
    EXPECT_THAT(text.out, HasSubstr("break rules of its format"));
    EXPECT_THAT(text.out, Not(HasSubstr("-0.0")));
}

TEST_F(CheckCli, WhatOnlyBlobsTellCountsEverywhere) {
    test::executeSql(trace, "UPDATE selection SET blocks = x'ff00' WHERE id = (SELECT max(id) FROM selection)");
    EXPECT_EQ(jsonOf({"check", trace}, 3).at("violations"), 1);
    const nlohmann::json run = jsonOf({"info", trace}).at("runs").at(0);
    EXPECT_EQ(run.at("violations"), 1);
    EXPECT_THAT(run.at("violated_rules").get<std::string>(), HasSubstr("(blob)"));
    EXPECT_TRUE(run.at("locality_mean").is_null());
    EXPECT_EQ(jsonOf({"insights", trace}).at("insights").at(0).at("id"), "broken-rules");
}

TEST_F(CheckCli, RowsOfNoRunCountEverywhere) {
    test::executeSql(trace, "INSERT INTO run_meta VALUES (9, 'engine', 'abacus')");
    EXPECT_EQ(jsonOf({"info", trace}).at("violations"), 1);
    EXPECT_EQ(jsonOf({"insights", trace}).at("insights").at(0).at("id"), "broken-rules");
}

TEST_F(CheckCli, ALongNameIsShownCut) {
    test::executeSql(trace, "UPDATE run SET name = printf('%.*c', 70000, 'x')");
    const nlohmann::json info = jsonOf({"info", trace});
    EXPECT_EQ(info.at("runs").at(0).at("name").get<std::string>().size(), 65536u + 3);
    EXPECT_THAT(info.at("violated_rules").get<std::string>(), HasSubstr("longer texts are cut"));
    EXPECT_FALSE(info.at("runs").at(0).at("tokens_per_s").is_null()) << "everything else is shown";
    for (const char* command : {"insights", "replay"}) EXPECT_EQ(test::cli({command, trace}).status, 0) << command;
    EXPECT_EQ(test::cli({"report", trace, "-o", path("report.html")}).status, 0);
    EXPECT_EQ(test::cli({"export", trace, "--what", "runs"}).status, 0);
    EXPECT_EQ(test::cli({"export", trace, "--format", "chrome-trace"}).status, 0);
}

class RefusedOptions : public test::CliFixture {};

TEST_F(RefusedOptions, ThatWouldHaveNoEffectOrMakeNoSense) {
    EXPECT_THAT(refusal({"roofline", "--run", "5"}), HasSubstr("--run requires --trace"));
    EXPECT_THAT(refusal({"run", "--prompt-needle", "1200", "--needles", "-1"}), HasSubstr("--needles"));
    EXPECT_THAT(refusal({"run", "--prompt", "a", "--needles", "2"}), HasSubstr("--needles requires --prompt-needle"));
    EXPECT_THAT(refusal({"run", "--prompt-needle", "-5"}), HasSubstr("--prompt-needle"));
    EXPECT_THAT(refusal({"run", "--prompt", "a", "--overwrite"}), HasSubstr("--overwrite requires --trace"));
    EXPECT_THAT(refusal({"run", "--prompt", "a", "--record", "full"}), HasSubstr("--record requires --trace"));
    EXPECT_THAT(refusal({"run", "--prompt", "a", "--batch", "-3"}), HasSubstr("--batch"));
    EXPECT_THAT(refusal({"run", "--prompt", "a", "--threads", "-3"}), HasSubstr("--threads"));
    EXPECT_THAT(refusal({"calibrate", "--steps", "-3"}), HasSubstr("--steps"));
    record(path("run.kvtrace"), {"--prompt", "one two", "--max-new-tokens", "3"});
    const std::string trace = path("run.kvtrace");
    EXPECT_THAT(refusal({"insights", trace, "--run", "-2"}), HasSubstr("--run"));
    EXPECT_THAT(refusal({"export", trace, "--what", "steps", "--format", "jsonl", "--spreadsheet"}),
                HasSubstr("--spreadsheet"));
    EXPECT_THAT(refusal({"export", trace, "--what", "steps", "-o", trace}), HasSubstr("into itself"));
}

#ifdef KVSCOPE_HAVE_DESKTOP
TEST_F(RefusedOptions, OfPicturesThatPointAtNothing) {
    record(path("run.kvtrace"), {"--prompt", "one two", "--max-new-tokens", "3"});
    const auto render = [&](const std::string& option, const std::string& value) {
        return test::runProcess({test::kDesktop, "render", path("run.kvtrace"), "--view", "locality", option, value,
                                 "-o", path("view.png")});
    };
    EXPECT_THAT(render("--step", "99999999").err, HasSubstr("the run has no step 99999999; choose 0 to 2"));
    EXPECT_THAT(render("--layer", "99").err, HasSubstr("the run has no layer 99"));
    EXPECT_THAT(render("--kv-head", "-4").err, HasSubstr("--kv-head"));
    EXPECT_THAT(render("--block", "100000").err, HasSubstr("the run has no block 100000; choose 0 to 0"));
    EXPECT_EQ(render("--block", "0").status, 0);
    for (const char* name : {"view.svg", "view.pdf"}) {
        const auto scaled = test::runProcess(
            {test::kDesktop, "render", path("run.kvtrace"), "--view", "locality", "--scale", "2", "-o", path(name)});
        EXPECT_THAT(scaled.err, HasSubstr("--scale has no effect on")) << name;
        EXPECT_EQ(scaled.status, 1) << name;
    }
    EXPECT_EQ(render("--step", "2").status, 0);
}
#endif

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
