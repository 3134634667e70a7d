// A block-diffusion run from the command line to its trace: text, forwards with the fixtures' keys, no rule broken, and
// other commands that say what they cannot do with it.
#include "tests/app/cli_fixture.h"
#include "tests/support/places.h"

#include <gmock/gmock.h>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

const std::string kFixture = test::source("tests/golden/losa/text_losa_budget64.json");
const std::string kModel = test::source("resources/models/losa-tiny/model.safetensors");

class DenoisingCli : public test::CliFixture {
protected:
    void SetUp() override {
        if (!std::filesystem::exists(kModel)) GTEST_SKIP() << "this checkout leaves out resources/models/losa-tiny";
        fixture = json::parse(std::ifstream(kFixture));
        std::ofstream(path("ids.json")) << fixture.at("prompt_ids").dump();
    }
    json run(const std::string& level) const {
        const test::Finished done =
            test::cli({"run", "--model", "losa-tiny", "--prompt-ids", path("ids.json"), "--method", "losa", "--set",
                       "budget=64", "--max-new-tokens", "40", "--trace", trace, "--record", level, "--json"});
        EXPECT_EQ(done.status, 0) << done.err;
        return json::parse(done.out, nullptr, false);
    }
    json fixture;
    std::string trace = path("run.kvtrace");
};

TEST_F(DenoisingCli, ExportsTheForwardsWithTheKeysOfTheFixtures) {
    const json out = run("selections");
    EXPECT_EQ(out.at("generated_ids"), fixture.at("generated_ids"));
    EXPECT_NEAR(out.at("density_mean").get<double>(), fixture.at("mean_density").get<double>(), 1e-6);
    const test::Finished exported = test::cli({"export", trace, "--what", "denoising", "--format", "jsonl"});
    ASSERT_EQ(exported.status, 0) << exported.err;
    const auto lines = test::linesOf(exported.out);
    const json& forwards = fixture.at("forwards");
    ASSERT_EQ(lines.size(), forwards.size());
    for (std::size_t i = 0; i < lines.size(); ++i) {
        SCOPED_TRACE(i);
        const json got = json::parse(lines[i]), &want = forwards[i];
        EXPECT_EQ(got.at("run_id"), 1);
        EXPECT_EQ(got.at("seq"), 0);
        for (const char* key : {"block", "step", "kind", "ids", "masked", "written"}) {
            EXPECT_EQ(got.contains(key), want.contains(key)) << key;
            if (got.contains(key)) {
                EXPECT_EQ(got.at(key), want.at(key)) << key;
            }
        }
        EXPECT_EQ(got.contains("tokens"), want.contains("tokens"));
        ASSERT_EQ(got.contains("confidence"), want.contains("confidence"));
        if (got.contains("confidence")) {
            for (std::size_t t = 0; t < 16; ++t)
                EXPECT_NEAR(got.at("confidence")[t].get<double>(), want.at("confidence")[t].get<double>(), 3e-4);
        }
        ASSERT_EQ(got.at("layers").size(), want.at("layers").size());
        for (std::size_t l = 0; l < 8; ++l) {
            const json &mine = got.at("layers")[l], &theirs = want.at("layers")[l];
            for (const char* key : {"mode", "active", "pages", "density", "delta"})
                EXPECT_EQ(mine.contains(key), theirs.contains(key)) << l << key;
            for (const char* key : {"mode", "active", "pages"})
                if (mine.contains(key)) {
                    EXPECT_EQ(mine.at(key), theirs.at(key)) << l << key;
                }
        }
    }
}

TEST_F(DenoisingCli, ATraceOfEveryMethodBreaksNoRule) {
    for (const char* method : {"full", "quest", "losa", "sparsed"}) {
        const std::string file = path(std::string(method) + ".kvtrace");
        const test::Finished done = test::cli({"run", "--model", "losa-tiny", "--prompt", "The kernel is", "--batch",
                                               "2", "--method", method, "--max-new-tokens", "20", "--trace", file});
        ASSERT_EQ(done.status, 0) << done.err;
        const test::Finished check = test::cli({"check", file});
        EXPECT_EQ(check.status, 0) << method << ": " << check.out;
        for (const char* command : {"info", "insights"})
            EXPECT_EQ(test::cli({command, file}).status, 0) << method << command;
    }
}

TEST_F(DenoisingCli, CheckNamesForwardsThatContradictThemselves) {
    run("selections");
    test::executeSql(trace,
                     "UPDATE denoise SET written = masked + 1 WHERE id = (SELECT min(id) FROM denoise);"
                     "UPDATE denoise_token SET confidence = 2 WHERE id = (SELECT min(id) FROM denoise_token WHERE"
                     " confidence IS NOT NULL); UPDATE denoise_layer SET pages = pages + 1 WHERE id = (SELECT min(id)"
                     " FROM denoise_layer WHERE mode = 1)");
    const test::Finished check = test::cli({"check", trace});
    EXPECT_EQ(check.status, 3);
    for (const char* rule : {"denoise-counts", "denoise-written", "denoise-tokens", "denoise-token: ", "denoise-pages"})
        EXPECT_THAT(check.out, HasSubstr(rule));
}

TEST_F(DenoisingCli, AtLevelCountersPagesAndChangesAreLeftOut) {
    run("counters");
    const test::Finished exported = test::cli({"export", trace, "--what", "denoising", "--format", "jsonl"});
    EXPECT_EQ(exported.status, 0);
    EXPECT_THAT(exported.err, HasSubstr("counters"));
    for (const std::string& line : test::linesOf(exported.out)) {
        const json forward = json::parse(line);
        for (const json& layer : forward.at("layers")) {
            EXPECT_FALSE(layer.contains("pages"));
            EXPECT_FALSE(layer.contains("delta"));
        }
    }
    EXPECT_EQ(test::cli({"check", trace}).status, 0);
}

TEST_F(DenoisingCli, ALayerWhereNoTokenChoosesHasAnEmptyListOfPages) {
    const test::Finished done = test::cli({"run", "--model", "losa-tiny", "--prompt-ids", path("ids.json"), "--method",
                                           "losa", "--set", "active=0", "--max-new-tokens", "8", "--trace", trace});
    ASSERT_EQ(done.status, 0) << done.err;
    const test::Finished exported = test::cli({"export", trace, "--what", "denoising", "--format", "jsonl"});
    ASSERT_EQ(exported.status, 0) << exported.err;
    EXPECT_THAT(exported.err, Not(HasSubstr("counters"))) << "the pages are recorded: there are none";
    int sparse = 0;
    for (const std::string& line : test::linesOf(exported.out)) {
        const json forward = json::parse(line);
        for (const json& layer : forward.at("layers")) {
            if (layer.at("mode") != "sparse") continue;
            ++sparse;
            EXPECT_EQ(layer.value("pages", json()), json::parse("[[],[]]"));
            EXPECT_EQ(layer.value("density", json()), json::parse("[0,0]"));
        }
    }
    EXPECT_GT(sparse, 0);
    const test::Finished checked = test::cli({"check", trace});
    EXPECT_EQ(checked.status, 0) << checked.out;
}

/// In some forwards of a threshold no token of a layer is active, before others are and between them.
TEST_F(DenoisingCli, ATraceOfAThresholdBreaksNoRule) {
    for (const char* sets : {"layer", "kv_head"}) {
        const test::Finished done =
            test::cli({"run", "--model", "losa-tiny", "--prompt-ids", path("ids.json"), "--method", "losa", "--set",
                       "active_threshold=0.5", "--set", std::string("active_set=") + sets, "--max-new-tokens", "24",
                       "--trace", trace, "--overwrite"});
        ASSERT_EQ(done.status, 0) << done.err;
        int empty = 0, chosen = 0;
        const test::Finished forwards = test::cli({"export", trace, "--what", "denoising", "--format", "jsonl"});
        for (const std::string& line : test::linesOf(forwards.out)) {
            const json forward = json::parse(line);
            for (const json& layer : forward.at("layers"))
                for (const json& pages : layer.value("pages", json::array())) ++(pages.empty() ? empty : chosen);
        }
        EXPECT_GT(empty, 0) << sets;
        EXPECT_GT(chosen, 0) << sets;
        const test::Finished checked = test::cli({"check", trace});
        EXPECT_EQ(checked.status, 0) << sets << "\n" << checked.out;
    }
}

TEST_F(DenoisingCli, StreamsTheTextAndSaysWhatItCannotDo) {
    const test::Finished done = test::cli({"run", "--model", "losa-tiny", "--prompt-ids", path("ids.json"), "--method",
                                           "losa", "--set", "budget=64", "--max-new-tokens", "40"});
    EXPECT_THAT(done.out, HasSubstr("If you have a migration cost"));
    const auto refusal = [&](std::vector<std::string> more) {
        more.insert(more.begin(), {"run", "--model", "losa-tiny", "--prompt", "The"});
        const test::Finished refused = test::cli(more);
        EXPECT_NE(refused.status, 0);
        return refused.err;
    };
    EXPECT_THAT(refusal({"--method", "nosa"}), HasSubstr("use method full, quest, losa"));
    EXPECT_THAT(refusal({"--method", "losa", "--set", "block_size=64"}), HasSubstr("block_size"));
    EXPECT_THAT(refusal({"--method", "full", "--device-kv", "16"}), HasSubstr("--device-kv"));
    EXPECT_THAT(refusal({"--method", "losa", "--link", "pcie4"}), HasSubstr("--link"));
    EXPECT_THAT(refusal({"--method", "full", "--logits", path("x.safetensors")}), HasSubstr("next token"));
    EXPECT_THAT(test::cli({"run", "--prompt", "The", "--method", "losa"}).err, HasSubstr("block diffusion"));
}

TEST_F(DenoisingCli, OtherTracesHaveNoForwards) {
    record(trace, {"--prompt", "The", "--max-new-tokens", "2"});
    const test::Finished exported = test::cli({"export", trace, "--what", "denoising", "--format", "jsonl"});
    EXPECT_EQ(exported.status, 0);
    EXPECT_EQ(exported.out, "");
    EXPECT_THAT(exported.err, HasSubstr("token by token"));
}

#ifdef KVSCOPE_HAVE_DESKTOP
TEST_F(DenoisingCli, IsReportedWithoutTheFiguresThatItHasNot) {
    run("full");
    for (const char* report : {"report.pdf", "report.html"}) {
        const test::Finished done = test::runProcess({test::kDesktop, "report", trace, "-o", path(report)});
        EXPECT_EQ(done.status, 0) << done.err;
        EXPECT_TRUE(std::filesystem::exists(path(report)));
    }
}
#endif

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
