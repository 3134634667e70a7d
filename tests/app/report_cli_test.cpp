// kvscope-cli report, and the command in it that repeats a run.
#include "tests/app/cli_fixture.h"
#include "tests/support/places.h"

#include <gmock/gmock.h>
#include <sys/wait.h>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using nlohmann::json;
using test::cli;
using test::Finished;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class ReportCli : public test::CliFixture {
protected:
    std::string contentOf(const std::string& name) const {
        std::ifstream file(path(name), std::ios::binary);
        return {std::istreambuf_iterator<char>(file), {}};
    }
    /// Runs the command of the report in the folder of the trace, as a person would paste it into a shell.
    json repeat(const std::string& trace) const {
        const Finished written = cli({"report", path(trace), "--csv", path("csv"), "-o", path("report.html")});
        EXPECT_EQ(written.status, 0) << written.err;
        const auto lines = test::linesOf(contentOf("csv/reproduce.csv"));
        std::string command = lines.at(1).substr(lines[1].find("kvscope-cli"));
        command = command.substr(0, command.find("again.kvtrace") + 13); // the note follows
        if (lines[1].find('"') != std::string::npos)                     // quotes of the CSV
            for (std::size_t at = 0; (at = command.find("\"\"", at)) != std::string::npos; ++at) command.erase(at, 1);
        command = "cd '" + folder_.string() + "' && '" + test::kCommandLine + "'" + command.substr(11) +
                  " --overwrite --json > again.json 2> again.err";
        const int status = std::system(command.c_str());
        EXPECT_EQ(WEXITSTATUS(status), 0) << command << "\n" << contentOf("again.err");
        return json::parse(contentOf("again.json"), nullptr, false);
    }
    void recordAndRepeat(const std::string& trace, const std::vector<std::string>& arguments) const {
        const json first = record(path(trace), arguments), again = repeat(trace);
        for (const char* key : {"generated_ids", "parameters", "prompt_tokens", "hits", "misses", "h2d_bytes",
                                "d2h_bytes", "locality_mean", "device_slots", "link", "link_description"})
            EXPECT_EQ(first.at(key), again.at(key)) << key;
    }
};

TEST_F(ReportCli, TheCommandOfAReportRepeatsTheRun) {
    recordAndRepeat("a.kvtrace", {"--prompt-needle", "1200", "--max-new-tokens", "10"});
    // Every option that changes what is decoded or moved, and a name that a shell must not take apart.
    recordAndRepeat("it's a run.kvtrace", {"--prompt-document",
                                           "700",
                                           "--batch",
                                           "2",
                                           "--method",
                                           "infllmv2",
                                           "--set",
                                           "block_size=32",
                                           "--set",
                                           "total_blocks=12",
                                           "--max-new-tokens",
                                           "8",
                                           "--temperature",
                                           "0.8",
                                           "--top-p",
                                           "0.9",
                                           "--top-k",
                                           "40",
                                           "--seed",
                                           "5",
                                           "--device-kv",
                                           "20",
                                           "--cache-policy",
                                           "lru",
                                           "--link",
                                           "12.5",
                                           "--record",
                                           "selections",
                                           "--threads",
                                           "1"});
    recordAndRepeat("c.kvtrace",
                    {"--prompt", "One two three", "--method", "full", "--max-new-tokens", "4", "--no-offload"});
}

TEST_F(ReportCli, PromptsOfATraceAreTheIdsOfTheReport) {
    const json first = record(path("a.kvtrace"), {"--prompt-needle", "600", "--max-new-tokens", "4"});
    ASSERT_EQ(cli({"report", path("a.kvtrace"), "--csv", path("csv")}).status, 0);
    for (const auto& [option, value] : {std::pair<std::string, std::string>{"--prompt-ids", path("csv/prompt-1.json")},
                                        {"--prompt-trace", path("a.kvtrace")},
                                        {"--prompt-trace", path("a.kvtrace") + ":1"}})
        EXPECT_EQ(jsonOf({"run", option, value, "--max-new-tokens", "4", "--ignore-eos"}).at("generated_ids"),
                  first.at("generated_ids"))
            << option << " " << value;
    const Finished wrong = cli({"run", "--prompt-trace", path("a.kvtrace") + ":7"});
    EXPECT_EQ(wrong.status, 1);
    EXPECT_THAT(wrong.err, HasSubstr("has no run 7"));
    EXPECT_EQ(cli({"run", "--prompt-trace", path("none.kvtrace")}).status, 1);
}

TEST_F(ReportCli, MistakesAreOneLineThatNamesThem) {
    record(path("a.kvtrace"), {"--prompt", "One", "--max-new-tokens", "2"});
    const std::pair<std::vector<std::string>, std::string> cases[] = {
        {{"report", path("a.kvtrace")}, "-o OUT.html"},
        {{"report", path("a.kvtrace"), "-o", path("x.pdf")}, "kvscope report"},
        {{"report", path("a.kvtrace"), "-o", path("x.doc")}, "x.doc"},
        {{"report", path("none.kvtrace"), "-o", path("x.html")}, "none.kvtrace"},
        {{"report", path("a.kvtrace"), "-o", path("no/x.html")}, "no/x.html"},
        {{"report", path("a.kvtrace"), "--csv", path("a.kvtrace")}, "a.kvtrace"},
        {{"run", "--chat", "--prompt-trace", path("a.kvtrace")}, "--chat works on texts, not on --prompt-trace"},
    };
    for (const auto& [arguments, named] : cases) {
        const Finished result = cli(arguments);
        EXPECT_EQ(result.status, 1);
        EXPECT_EQ(test::linesOf(result.err).size(), 1U) << result.err;
        EXPECT_THAT(result.err, HasSubstr(named));
    }
    EXPECT_THAT(contentOf("a.kvtrace"), StartsWith("SQLite format 3"));
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
