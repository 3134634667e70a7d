// kvscope-cli compare: verdicts, refusals and exit statuses.
#include "tests/app/cli_fixture.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using nlohmann::json;
using test::cli;
using test::Finished;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class CompareCli : public test::CliFixture {
protected:
    CompareCli() { record(a_, {"--prompt-needle", "1200", "--max-new-tokens", "48"}); }
    /// A copy of A whose steps take `factor` times as long.
    std::string slowed(double factor) const {
        const std::string copy = path("b.kvtrace");
        std::filesystem::copy_file(a_, copy, std::filesystem::copy_options::overwrite_existing);
        test::executeSql(copy, fmt::format("update step set duration_ns = cast(duration_ns * {} as integer)", factor));
        return copy;
    }
    const std::string a_ = path("a.kvtrace");
};

TEST_F(CompareCli, AKnownSlowdownDecidesTheExitStatus) {
    const std::string b = slowed(1.1);
    const json slow = jsonOf({"compare", a_, b, "--fail-over", "3%"}, 3);
    EXPECT_EQ(slow.at("verdict"), "slower");
    EXPECT_NEAR(slow.at("ratio").at("value").get<double>(), 1.1, 1e-6);
    EXPECT_EQ(slow.at("exit_status"), 3);
    EXPECT_EQ(slow.at("fail_over"), 0.03);
    EXPECT_EQ(slow.at("exposed_is"), "modelled");
    EXPECT_THAT(slow.at("sentence").get<std::string>(), StartsWith("Slower: B takes 10.0 % more time"));
    EXPECT_EQ(jsonOf({"compare", a_, b}).at("verdict"), "slower") << "without a threshold nothing fails";
    EXPECT_EQ(jsonOf({"compare", a_, b, "--fail-over", "15%"}).at("verdict"), "within the threshold");
    EXPECT_EQ(jsonOf({"compare", b, a_, "--fail-over", "3%"}).at("verdict"), "faster");
    const json same = jsonOf({"compare", a_, a_, "--fail-over", "0%"});
    EXPECT_EQ(same.at("verdict"), "no difference within noise");
    EXPECT_EQ(same.at("ratio").at("low"), 1);

    double sum = 0;
    for (const json& c : slow.at("components")) sum += c.at("delta_ms").at("value").get<double>();
    EXPECT_NEAR(sum, slow.at("step").at("delta_ms").at("value").get<double>(), 1e-6);
    const json info = jsonOf({"info", a_}).at("runs")[0];
    for (const json& q : slow.at("quantities"))
        if (q.at("name") == "hit_rate") {
            EXPECT_EQ(q.at("a"), info.at("hit_rate")) << "one definition";
        }
    const Finished text = cli({"compare", a_, b, "--fail-over", "3%"});
    EXPECT_EQ(text.status, 3);
    EXPECT_THAT(text.out, StartsWith("Slower: B takes 10.0 % more time than A"));
    EXPECT_THAT(text.out, HasSubstr("stage2"));
    EXPECT_EQ(cli({"compare", a_, b, "--json"}).out, cli({"compare", a_, b, "--json"}).out) << "deterministic";
}

TEST_F(CompareCli, ANumberThatARunDoesNotKnowIsADash) {
    const std::string b = slowed(1.1);
    for (const std::string& file : {a_, b})
        test::executeSql(file,
                         R"(UPDATE run_meta SET value = '["selections","hits","bytes","step_times","stage_times"]')"
                         " WHERE key = 'knows'");
    const Finished text = cli({"compare", a_, b});
    EXPECT_EQ(text.status, 0) << text.err;
    EXPECT_THAT(text.out, Not(HasSubstr("nan")));
    EXPECT_THAT(text.out, HasSubstr("exposed_per_step                  -              - ms"));
    EXPECT_THAT(cli({"replay", a_, "--windows", "2"}).out, Not(HasSubstr("nan")));
}

TEST_F(CompareCli, RepeatsMayBeRunsOfOneFileOrOfSeveral) {
    const std::string b = slowed(1.5), again = path("again.kvtrace"), third = path("third.kvtrace"),
                      slowAgain = path("slow.kvtrace");
    std::filesystem::copy_file(a_, again);
    std::filesystem::copy_file(a_, third);
    std::filesystem::copy_file(b, slowAgain);
    const json c =
        jsonOf({"compare", a_, b, "--run-a", "1", "--also-a", again, "--also-a", third, "--also-b", slowAgain});
    EXPECT_EQ(c.at("a").size(), 3u);
    EXPECT_EQ(c.at("b").size(), 2u);
    EXPECT_THAT(cli({"compare", a_, b, "--run-a", "1,1"}).err, HasSubstr("given twice"));
    EXPECT_NEAR(c.at("between_runs").get<double>(), 0, 1e-12);
    EXPECT_NEAR(c.at("ratio").at("value").get<double>(), 1.5, 1e-6);
}

TEST_F(CompareCli, RunsThatCannotBeComparedAreRefusedWithTheReason) {
    const std::string b = path("other.kvtrace");
    record(b, {"--prompt-needle", "600", "--max-new-tokens", "48"});
    const Finished refused = cli({"compare", a_, b});
    EXPECT_EQ(refused.status, 4);
    EXPECT_THAT(refused.err, HasSubstr("not comparable: context length"));
    EXPECT_THAT(refused.err, HasSubstr("--anyway"));
    EXPECT_EQ(refused.out, "");
    const json reasons = jsonOf({"compare", a_, b}, 4);
    EXPECT_EQ(reasons.at("verdict"), "not comparable");
    ASSERT_EQ(reasons.at("reasons").size(), 1u);
    EXPECT_EQ(reasons["reasons"][0].at("anyway"), true);
    const json anyway = jsonOf({"compare", a_, b, "--anyway"});
    EXPECT_THAT(anyway.at("notes")[0].get<std::string>(), StartsWith("compared anyway: context length"));

    record(b, {"--prompt-needle", "1200", "--max-new-tokens", "48", "--batch", "2", "--overwrite"});
    const Finished batch = cli({"compare", a_, b, "--anyway"});
    EXPECT_EQ(batch.status, 4);
    EXPECT_THAT(batch.err, HasSubstr("batch 1 against 2"));
    record(b, {"--prompt-needle", "1200", "--max-new-tokens", "12", "--overwrite"});
    EXPECT_THAT(cli({"compare", a_, b}).err, HasSubstr("a verdict needs 20"));

    expectRefusals({"compare"}, {{{a_}, "b is required"},
                                 {{a_, path("none.kvtrace")}, "none.kvtrace"},
                                 {{a_, a_, "--run-b", "7"}, "no run 7"},
                                 {{a_, a_, "--fail-over", "3"}, "--fail-over 3%"},
                                 {{a_, a_, "--fail-over", "-3%"}, "--fail-over 3%"},
                                 {{a_, a_, "--confidence", "100"}, "confidence"}});
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
