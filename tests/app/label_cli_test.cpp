// kvscope-cli label: what a person says of a run stays with the trace, and nothing else in it changes.
#include "tests/app/cli_fixture.h"
#include "tests/support/places.h"

#include <gmock/gmock.h>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using nlohmann::json;
using test::cli;

class LabelCli : public test::CliFixture {};

TEST_F(LabelCli, NamesNotesAndTagsStayWithTheTrace) {
    const std::string trace = path("a.kvtrace");
    record(trace, {"--prompt", "Once", "--max-new-tokens", "3", "--record", "counters", "--name", "first"});
    record(trace, {"--prompt", "Twice", "--max-new-tokens", "3", "--record", "counters", "--name", "second"});
    const json out = jsonOf({"label", trace, "--run", "1", "--name", "baseline", "--note", "before the change", "--tag",
                             "slow", "--tag", "cpu", "--pin"});
    EXPECT_EQ(out.at("name"), "baseline");
    EXPECT_EQ(out.at("tags"), json({"cpu", "slow"})) << "sorted";
    EXPECT_EQ(jsonOf({"label", trace, "--run", "1", "--tag", "slow"}).at("tags"), json({"cpu", "slow"})) << "each once";
    EXPECT_EQ(out.at("pinned"), true);
    const json info = jsonOf({"info", trace});
    EXPECT_EQ(info.at("runs")[0].at("name"), "baseline") << "everybody reads the new name";
    EXPECT_EQ(info["runs"][1].at("name"), "second");
    EXPECT_EQ(jsonOf({"info", folder_.string()}).at("runs")[0].at("name"), "baseline") << "and in lists";
    EXPECT_EQ(jsonOf({"label", trace, "--run", "2", "--pin"}).at("pinned"), true);
    EXPECT_EQ(jsonOf({"label", trace, "--run", "1", "--unpin"}).at("pinned"), false);
    const std::string listed = cli({"info", folder_.string()}).out;
    EXPECT_LT(listed.find("second"), listed.find("baseline")) << "the pinned run is first";
    EXPECT_EQ(jsonOf({"label", trace, "--run", "1"}).at("note"), "before the change") << "asking changes nothing";
    EXPECT_EQ(jsonOf({"label", trace, "--run", "1", "--untag", "slow", "--name", "", "--unpin"}).at("name"), "first")
        << "its own name again";
    EXPECT_EQ(jsonOf({"label", trace, "--run", "1"}).at("tags"), json({"cpu"}));
    EXPECT_EQ(jsonOf({"label", trace, "--run", "1", "--clear"}).at("note"), "");
    EXPECT_EQ(cli({"check", trace}).status, 0) << "no rule is broken";
}

TEST_F(LabelCli, AReadOnlyFileSystemIsNamed) {
    const std::string trace = path("a.kvtrace"), disk = path("disk");
    record(trace, {"--prompt", "Once", "--max-new-tokens", "3", "--record", "counters"});
    std::filesystem::create_directory(disk);
    // of a name space of mounts that ends with the shell
    const test::Finished result = test::runProcess(
        {"/usr/bin/unshare", "-rm", "sh", "-c",
         "mount -t tmpfs none \"$1\" && cp \"$2\" \"$1/a.kvtrace\" && mount -o remount,ro none \"$1\" || exit 77; "
         "exec \"$0\" label \"$1/a.kvtrace\" --note here",
         test::kCommandLine, disk, trace});
    if (result.status == 77 || result.status == 127 || result.err.starts_with("unshare"))
        GTEST_SKIP() << "nothing can be mounted here: " << result.err;
    EXPECT_EQ(result.status, 1);
    EXPECT_THAT(result.err, testing::HasSubstr(disk + "/a.kvtrace cannot be written: its file system is read-only"));
}

TEST_F(LabelCli, MistakesGetOneSentence) {
    const std::string trace = path("a.kvtrace");
    record(trace, {"--prompt", "Once", "--max-new-tokens", "3", "--record", "counters"});
    expectRefusals({"label"}, {{{path("none.kvtrace")}, "none.kvtrace"},
                               {{trace, "--run", "9", "--pin"}, "9"},
                               {{trace, "--untag", "red"}, "no tag 'red'"},
                               {{trace, "--tag", "red", "--untag", "red"}, "both name 'red'"},
                               {{trace, "--pin", "--unpin"}, "--pin"},
                               {{trace, "--note", std::string(70'000, 'x')}, "shorter note"}});
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
