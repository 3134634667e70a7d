// Files of other tools and the exported timeline, on the command line.
#include "tests/app/cli_fixture.h"

#include <gmock/gmock.h>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using test::cli;
using test::Finished;
using testing::HasSubstr;

class ImportCli : public test::CliFixture {
protected:
    ImportCli() { setenv("XDG_CACHE_HOME", path("cache").c_str(), 1); }
    ~ImportCli() override { unsetenv("XDG_CACHE_HOME"); }
    std::string write(const std::string& name, const std::string& text) const {
        std::ofstream(path(name), std::ios::binary) << text;
        return path(name);
    }
    std::string timeline() const {
        return write("timeline.bin", R"({"traceEvents":[
            {"ph":"X","pid":1,"tid":1,"ts":10,"dur":4,"name":"outer"},
            {"ph":"X","pid":1,"tid":1,"ts":11,"dur":1,"name":"inner"},
            {"ph":"C","pid":1,"ts":10,"name":"load","args":{"value":3}},
            {"ph":"B","pid":1,"tid":2,"ts":12,"name":"open"}]})");
    }
};

TEST_F(ImportCli, ImportWritesATraceAndSaysWhatWasLost) {
    const std::string in = timeline(), out = path("out.kvtrace");
    const Finished first = cli({"import", in, "-o", out});
    ASSERT_EQ(first.status, 0) << first.err;
    EXPECT_THAT(first.out, HasSubstr("3 spans, 1 counter values, 0 flows imported from trace-event JSON"));
    EXPECT_THAT(first.err, HasSubstr("1 range had no end of its own"));
    const Finished again = cli({"import", in, "-o", out});
    EXPECT_EQ(again.status, 1);
    EXPECT_THAT(again.err, HasSubstr("--overwrite"));
    const nlohmann::json document = jsonOf({"import", in, "-o", out, "--overwrite"});
    EXPECT_EQ(document["spans"], 3);
    EXPECT_EQ(document["remarks"].size(), 1u);
}

TEST_F(ImportCli, InfoAndExportTakeTheFileItself) {
    const std::string in = timeline();
    const nlohmann::json document = jsonOf({"info", in});
    ASSERT_EQ(document["runs"].size(), 1u);
    const nlohmann::json& run = document["runs"][0];
    EXPECT_THAT(run["status"].get<std::string>(), HasSubstr("imported from trace-event JSON"));
    EXPECT_EQ(run["spans"], 3);
    EXPECT_EQ(run["tracks"].size(), 2u);
    EXPECT_EQ(run["tracks"][0]["track"], "thread 1");
    EXPECT_EQ(run["tracks"][0]["total_ms"], 0.004) << "what lies inside a span is not added again";
    const auto rows = test::linesOf(cli({"export", in, "--what", "spans"}).out);
    EXPECT_EQ(rows.size(), 4u);
    EXPECT_EQ(rows[0], "run_id,step,layer,track,name,start_ns,duration_ns,depth,category,args");
    EXPECT_EQ(rows[1], "1,-1,-1,thread 1,outer,0,4000,0,,");
    // Commands that need steps say so in one sentence.
    for (const char* command : {"insights", "replay", "roofline"}) {
        const Finished refused = cli({command, in});
        EXPECT_NE(refused.status, -1) << command;
        EXPECT_LE(test::linesOf(refused.err).size(), 1u) << command << ": " << refused.err;
    }
}

TEST_F(ImportCli, ARecordedRunComesBackFromItsTimeline) {
    record(path("run.kvtrace"), {"--prompt", "The quick brown fox", "--max-new-tokens", "12"});
    ASSERT_EQ(cli({"export", path("run.kvtrace"), "--format", "chrome-trace", "-o", path("run.json")}).status, 0);
    ASSERT_EQ(cli({"import", path("run.json"), "-o", path("again.kvtrace")}).status, 0);
    const auto spansOf = [&](const std::string& trace) {
        return test::linesOf(cli({"export", trace, "--what", "spans"}).out).size();
    };
    EXPECT_GE(spansOf(path("again.kvtrace")), spansOf(path("run.kvtrace")));
    EXPECT_GT(spansOf(path("run.kvtrace")), 100u);
}

TEST_F(ImportCli, WrongAndUnwritableFilesGetOneSentence) {
    const struct {
        std::vector<std::string> arguments;
        const char* says;
    } cases[] = {
        {{"import", path("none.json"), "-o", path("o.kvtrace")}, "there is no file"},
        {{"import", write("text.json", "hello"), "-o", path("o.kvtrace")}, "no format that can be imported"},
        {{"import", write("cut.json", "[{\"ph\":"), "-o", path("o.kvtrace")}, "cut short"},
        {{"import", timeline(), "-o", path("no/such/o.kvtrace")}, "there is no folder"},
        {{"import", timeline(), "-o", timeline(), "--overwrite"}, "into itself"},
        {{"info", write("cut2.json", "{\"traceEvents\":[")}, "cut short"},
    };
    for (const auto& one : cases) {
        const Finished result = cli(one.arguments);
        EXPECT_EQ(result.status, 1) << one.says;
        EXPECT_EQ(test::linesOf(result.err).size(), 1u) << result.err;
        EXPECT_THAT(result.err, HasSubstr(one.says));
        EXPECT_FALSE(std::filesystem::exists(path("o.kvtrace")));
    }
}

TEST_F(ImportCli, AFullDiskLeavesNoHalfExport) {
    if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
    record(path("run.kvtrace"), {"--prompt", "The quick brown fox", "--max-new-tokens", "4"});
    for (const char* what : {"spans", "selections"}) {
        const Finished result = cli({"export", path("run.kvtrace"), "--what", what, "-o", "/dev/full"});
        EXPECT_EQ(result.status, 1);
        EXPECT_EQ(test::linesOf(result.err).size(), 1u) << result.err;
        EXPECT_THAT(result.err, HasSubstr("No space left on device"));
    }
    EXPECT_EQ(cli({"export", path("run.kvtrace"), "--what", "nothing", "-o", path("x.csv")}).status, 1);
    EXPECT_FALSE(std::filesystem::exists(path("x.csv")));
    for (const auto& entry : std::filesystem::directory_iterator(folder_))
        EXPECT_EQ(entry.path().string().find(".writing-"), std::string::npos);
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
