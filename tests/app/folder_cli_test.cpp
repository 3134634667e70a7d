// kvscope-cli info FOLDER.
#include "tests/app/cli_fixture.h"

#include <gmock/gmock.h>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using test::cli;
using test::Finished;
using test::linesOf;
using testing::HasSubstr;
using testing::StartsWith;

class FolderCli : public test::CliFixture {
protected:
    FolderCli() {
        record(path("b.kvtrace"),
               {"--model", "nosa-tiny", "--method", "quest", "--prompt", "one", "--max-new-tokens", "4"});
        record(path("b.kvtrace"),
               {"--model", "nosa-tiny", "--method", "full", "--prompt", "two", "--max-new-tokens", "3"});
        record(path("a.kvtrace"),
               {"--model", "nosa-tiny", "--method", "nosa", "--prompt", "three", "--max-new-tokens", "5"});
        std::ofstream(path("bad.kvtrace")) << "not a trace";
        std::ofstream(path("notes.txt")) << "passed over";
        test::executeSql(path("a.kvtrace"), "INSERT INTO run_meta VALUES (1, 'rank', '3')");
    }
};

TEST_F(FolderCli, ListsRunsAndUnreadableFiles) {
    const Finished result = cli({"info", folder_.string()});
    EXPECT_EQ(result.status, 0) << result.err;
    const std::vector<std::string> lines = linesOf(result.out);
    ASSERT_EQ(lines.size(), 6u) << result.out;
    EXPECT_THAT(lines[0], StartsWith("FILE"));
    EXPECT_THAT(lines[1], StartsWith("a.kvtrace"));
    EXPECT_TRUE(lines[1].ends_with("  3")) << lines[1];
    EXPECT_THAT(lines[2], HasSubstr("quest"));
    EXPECT_THAT(lines[3], HasSubstr("full"));
    EXPECT_THAT(lines[4], HasSubstr("bad.kvtrace  unreadable: "));
    EXPECT_EQ(lines[5], "3 files, 3 runs, 1 unreadable");
}

TEST_F(FolderCli, OneFileAndOneRunAreCalledSo) {
    std::filesystem::remove(path("b.kvtrace"));
    std::filesystem::remove(path("bad.kvtrace"));
    EXPECT_EQ(linesOf(cli({"info", folder_.string()}).out).back(), "1 file, 1 run");
}

TEST_F(FolderCli, ALongNameWidensNoColumn) {
    std::string name;
    for (int i = 0; i < 5000; ++i) name += "ä";
    test::executeSql(path("a.kvtrace"), "UPDATE run SET name = '" + name + "'");
    const Finished result = cli({"info", folder_.string()});
    EXPECT_THAT(result.out, HasSubstr("ä…  "));
    for (const std::string& line : linesOf(result.out)) EXPECT_LT(line.size(), 400u);
    EXPECT_EQ(jsonOf({"info", folder_.string()})["runs"][0]["name"], name);
}

TEST_F(FolderCli, TheDocumentHasWhatTheRunsSay) {
    const nlohmann::json document = jsonOf({"info", folder_.string()});
    EXPECT_EQ(document["kind"], "folder");
    EXPECT_EQ(document["files"], 3);
    ASSERT_EQ(document["runs"].size(), 3u);
    const nlohmann::json trace = jsonOf({"info", path("b.kvtrace")});
    for (int i = 0; i < 2; ++i)
        for (const char* key : {"run_id", "name", "method", "model", "engine", "created_utc", "status", "steps"})
            EXPECT_EQ(document["runs"][std::size_t(i) + 1][key], trace["runs"][std::size_t(i)][key]) << key;
    EXPECT_EQ(trace["runs"][0]["steps"], trace["runs"][0]["decode_steps"]) << "reading the prompt is no step";
    EXPECT_EQ(document["runs"][1]["steps"], 3) << "four tokens, the first by the prompt";
    EXPECT_EQ(document["runs"][0]["rank"], 3);
    EXPECT_TRUE(document["runs"][1]["rank"].is_null());
    ASSERT_EQ(document["unreadable"].size(), 1u);
    EXPECT_EQ(document["unreadable"][0]["file"], "bad.kvtrace");
}

TEST_F(FolderCli, AModelsFolderIsStillAModelAndAnEmptyOneIsRefused) {
    std::filesystem::create_directories(path("empty"));
    const Finished empty = cli({"info", path("empty")});
    EXPECT_EQ(empty.status, 1);
    EXPECT_THAT(empty.err, HasSubstr("without .kvtrace files"));
    EXPECT_EQ(linesOf(empty.err).size(), 1u);
    std::ofstream(path("config.json")) << "{}";
    const Finished model = cli({"info", folder_.string()});
    EXPECT_EQ(model.status, 1);
    EXPECT_THAT(model.err, testing::Not(HasSubstr("traces")));
    std::filesystem::remove(path("config.json"));
    EXPECT_THAT(cli({"info", folder_.string(), "--batch", "2"}).err, HasSubstr("--batch has no effect on a folder"));
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
