// Traces of every kind of diffusion run through the commands that read traces: canvases of LLaDA and Dream, also with
// tokens that are evicted or not computed, and SparseD's masks on all families. What does not apply to them is refused
// in a sentence, and nothing is false.
#include "profiler/export/export.h"
#include "tests/app/cli_fixture.h"
#include "tests/support/places.h"

#include <gmock/gmock.h>
#include <regex>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

struct Diffusion {
    const char *name, *family, *method;
    int prompt;
    std::vector<std::string> options;
};
std::ostream& operator<<(std::ostream& out, const Diffusion& of) { return out << of.name; }

const Diffusion kRuns[] = {
    {"llada", "llada", "full", 41, {"--set", "block_length=8", "--max-new-tokens", "32"}},
    {"llada_dual", "llada", "full", 41, {"--set", "block_length=8", "--set", "cache=dual", "--max-new-tokens", "32"}},
    {"dream", "dream", "full", 30, {"--set", "alg=entropy", "--set", "steps=30", "--max-new-tokens", "12"}},
    {"dream_dual", "dream", "full", 30, {"--set", "block_length=8", "--set", "cache=dual", "--max-new-tokens", "32"}},
    {"evicting", "llada", "sparse-dllm", 41, {"--set", "block_length=8", "--max-new-tokens", "32"}},
    {"evicting_dream", "dream", "sparse-dllm", 41, {"--set", "block_length=8", "--max-new-tokens", "32"}},
    {"features",
     "llada",
     "full",
     41,
     {"--set", "block_length=8", "--set", "cache=dllm", "--set", "prompt_interval_steps=9", "--set",
      "gen_interval_steps=4", "--max-new-tokens", "32"}},
    {"features_dream",
     "dream",
     "full",
     30,
     {"--set", "cache=dllm", "--set", "gen_interval_steps=4", "--max-new-tokens", "80"}},
    {"tiles_llada",
     "llada",
     "sparsed",
     10,
     {"--set", "block_length=8", "--set", "tile=32", "--set", "select=0.1", "--max-new-tokens", "32"}},
    {"tiles_dream", "dream", "sparsed", 30, {"--set", "tile=64", "--max-new-tokens", "70"}},
    {"sparsed",
     "sdar",
     "sparsed",
     200,
     {"--set", "block=32", "--set", "tile=16", "--set", "budget=40", "--max-new-tokens", "40"}},
    {"offloaded",
     "sdar",
     "losa",
     200,
     {"--set", "block=8", "--set", "budget=48", "--device-kv", "4", "--link", "pcie4", "--max-new-tokens", "30"}},
    {"sdar_full", "sdar", "full", 40, {"--set", "block=8", "--max-new-tokens", "30"}},
};

class DiffusionTraces : public test::CliFixture, public ::testing::WithParamInterface<Diffusion> {
protected:
    bool canvas() const { return std::string(GetParam().family) != "sdar"; }
    bool hasTiles() const { return std::string(GetParam().method) == "sparsed"; }
    bool travels() const { return std::string(GetParam().name) == "offloaded"; }
    bool computesSome() const { return std::string(GetParam().name).find("features") == 0; }
    bool sparse() const { return std::string(GetParam().method) != "full" || computesSome(); }
    json recordIt(const std::string& file, const std::string& level = "full") const {
        std::ofstream ids(path("ids.json"));
        ids << '[';
        for (int i = 0; i < GetParam().prompt; ++i) ids << (i > 0 ? "," : "") << 2 + i * 7 % 50;
        ids << ']';
        ids.close();
        std::vector<std::string> arguments = GetParam().options;
        arguments.insert(arguments.end(),
                         {"--model", test::source("tests/golden/denoise/") + GetParam().family, "--prompt-ids",
                          path("ids.json"), "--method", GetParam().method, "--batch", "2", "--record", level});
        return record(file, arguments);
    }
    std::string trace = path("run.kvtrace");
};

TEST_P(DiffusionTraces, BreakNoRuleAtAnyLevel) {
    for (const char* level : {"counters", "selections", "full"}) {
        const std::string file = path(std::string(level) + ".kvtrace");
        recordIt(file, level);
        const test::Finished check = test::cli({"check", file});
        EXPECT_EQ(check.status, 0) << level << ": " << check.out << check.err;
    }
}

TEST_P(DiffusionTraces, AreDescribedAsWhatTheyAre) {
    const json out = recordIt(trace);
    EXPECT_EQ(out.at("prefill_ms").is_null(), canvas()) << "a canvas reads the prompt in every forward";
    EXPECT_EQ(out.contains("density_mean"), sparse());
    EXPECT_EQ(out.at("locality_mean").is_null(), !sparse());
    const json info = jsonOf({"info", trace}).at("runs").at(0);
    EXPECT_EQ(info.at("prefill_ms").is_null(), canvas());
    EXPECT_EQ(info.at("prompt_tokens"), 2 * GetParam().prompt);
    EXPECT_EQ(info.at("locality_mean").is_null(), !sparse());
    EXPECT_EQ(info.at("misses") > 0, travels());
    const json found = jsonOf({"insights", trace});
    for (const json& insight : travels() ? json::array() : found.at("insights"))
        EXPECT_THAT(insight.dump(), Not(HasSubstr("misses ("))) << "nothing is ever missed";
}

TEST_P(DiffusionTraces, AreExportedInEveryTableAndFormat) {
    recordIt(trace);
    for (const std::string& table : exportTableNames())
        for (const char* format : {"csv", "jsonl"}) {
            const test::Finished done = test::cli({"export", trace, "--what", table, "--format", format});
            EXPECT_EQ(done.status, 0) << table << ' ' << format << ": " << done.err;
            const std::size_t lines = test::linesOf(done.out).size() - (std::string(format) == "csv" ? 1 : 0);
            if (lines == 0) {
                EXPECT_NE(done.err, "") << table << ' ' << format << " is empty without a word";
            }
            if (std::string(format) == "csv") continue;
            for (const std::string& line : test::linesOf(done.out)) EXPECT_TRUE(json::accept(line)) << line;
        }
    const test::Finished timeline = test::cli({"export", trace, "--format", "chrome-trace"});
    EXPECT_EQ(timeline.status, 0) << timeline.err;
    EXPECT_TRUE(json::accept(timeline.out));
}

TEST_P(DiffusionTraces, ExportRowsOfTilesBesideTheUnion) {
    recordIt(trace, "selections");
    int withRows = 0;
    for (const std::string& line :
         test::linesOf(test::cli({"export", trace, "--what", "denoising", "--format", "jsonl"}).out)) {
        const json forward = json::parse(line);
        for (const json& layer : forward.at("layers")) {
            EXPECT_EQ(layer.contains("rows"), hasTiles() && layer.at("mode") == "sparse");
            if (!layer.contains("rows")) continue;
            ++withRows;
            ASSERT_EQ(layer.at("rows").size(), layer.at("density").size());
            for (std::size_t head = 0; head < layer.at("rows").size(); ++head) {
                double most = 0, sum = 0;
                for (const json& queryHead : layer.at("rows")[head]) {
                    EXPECT_EQ(queryHead.size(), 2u) << "all blocks and canvases here have two rows of tiles";
                    for (const json& row : queryHead)
                        most = std::max(most, row.get<double>()), sum += row.get<double>();
                }
                EXPECT_LE(most, layer.at("density")[head].get<double>() + 1e-6);
                EXPECT_GE(sum, layer.at("density")[head].get<double>() - 1e-6);
            }
        }
    }
    EXPECT_EQ(withRows > 0, hasTiles());
    const std::string counters = path("counters.kvtrace");
    recordIt(counters, "counters");
    EXPECT_THAT(test::cli({"export", counters, "--what", "denoising", "--format", "jsonl"}).out,
                Not(HasSubstr("rows")));
}

TEST_P(DiffusionTraces, AreRefusedWhereTokensAreDecodedOneByOne) {
    recordIt(trace);
    for (const std::vector<std::string>& command :
         {std::vector<std::string>{"replay", trace}, {"roofline", "--trace", trace}}) {
        const test::Finished done = test::cli(command);
        EXPECT_NE(done.status, 0) << command.front();
        EXPECT_THAT(done.err, HasSubstr("diffusion model")) << command.front();
    }
}

TEST_P(DiffusionTraces, AreComparedWithThemselves) {
    recordIt(trace);
    const std::string again = path("again.kvtrace");
    recordIt(again);
    const test::Finished done = test::cli({"compare", trace, again});
    EXPECT_EQ(done.status, 0) << done.err;
}

TEST_P(DiffusionTraces, AReportsCommandRecordsTheSameTokens) {
    const json first = recordIt(trace);
    const test::Finished report = test::cli({"report", trace, "-o", path("report.html")});
    ASSERT_EQ(report.status, 0) << report.err;
    std::ifstream stream(path("report.html"));
    const std::string html{std::istreambuf_iterator<char>(stream), {}};
    EXPECT_EQ(html.find("every forward reads the prompt") != std::string::npos, canvas());
    EXPECT_EQ(html.find("no bound: what queries choose together") != std::string::npos, hasTiles() || travels());
    std::smatch found;
    ASSERT_TRUE(std::regex_search(html, found, std::regex("kvscope-cli (run --model [^<\"]*again\\.kvtrace)")));
    std::vector<std::string> arguments;
    std::istringstream words(found[1].str());
    for (std::string word; words >> word;) {
        if (word == GetParam().family) word = test::source("tests/golden/denoise/") + word;
        if (word.find("run.kvtrace:") == 0) word = path(word);
        if (word == "again.kvtrace") word = path(word);
        arguments.push_back(word);
    }
    arguments.emplace_back("--json");
    const test::Finished again = test::cli(arguments);
    ASSERT_EQ(again.status, 0) << again.err << found[1].str();
    const json second = json::parse(again.out, nullptr, false);
    EXPECT_EQ(second.at("generated_ids"), first.at("generated_ids"));
    EXPECT_EQ(second.at("parameters"), first.at("parameters"));
}

INSTANTIATE_TEST_SUITE_P(Runs, DiffusionTraces, ::testing::ValuesIn(kRuns),
                         [](const auto& run) { return std::string(run.param.name); });

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
