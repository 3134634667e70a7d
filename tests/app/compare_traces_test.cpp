// tools/compare_traces.py: two recordings of one program are the same, and it says what a change did.
#include "tests/app/cli_fixture.h"
#include "tests/support/places.h"

#include <cstdlib>
#include <gmock/gmock.h>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using test::executeSql;
using ::testing::HasSubstr;
using ::testing::Not;

class CompareTraces : public test::CliFixture {
protected:
    void SetUp() override {
        if (std::system("python3 -c 'import sqlite3' > /dev/null 2>&1") != 0)
            GTEST_SKIP() << "python3 with sqlite3 is not installed";
    }
    static test::Finished tool(std::vector<std::string> arguments) {
        arguments.insert(arguments.begin(), {"/usr/bin/env", "python3", test::source("tools/compare_traces.py")});
        return test::runProcess(arguments);
    }
    test::Finished record(const std::string& folder) const {
        return tool({"record", path(folder), "--program", test::kCommandLine, "--method", "quest", "--method", "sparda",
                     "--mode", "offloaded", "--tokens", "3", "--quiet"});
    }
    test::Finished compare(std::vector<std::string> more = {}) const {
        std::vector<std::string> arguments{"compare", path("before"), path("after")};
        arguments.insert(arguments.end(), more.begin(), more.end());
        return tool(arguments);
    }
    /// Changes the second recording of quest, says what differs, and takes the change back.
    std::string differenceAfter(const std::string& sql) const {
        const std::string trace = path("after/quest.cpu.offloaded.kvtrace"), kept = path("kept.kvtrace");
        std::filesystem::copy_file(trace, kept, std::filesystem::copy_options::overwrite_existing);
        executeSql(trace, sql);
        const test::Finished done = compare();
        std::filesystem::copy_file(kept, trace, std::filesystem::copy_options::overwrite_existing);
        EXPECT_EQ(done.status, done.out.find("all the same") == std::string::npos ? 1 : 0) << done.out << done.err;
        return done.out;
    }
};

TEST_F(CompareTraces, TwoRecordingsOfOneProgramAreTheSameAndAChangeIsNamed) {
    ASSERT_EQ(record("before").status, 0);
    ASSERT_EQ(record("after").status, 0);
    EXPECT_THAT(compare().out, HasSubstr("2 compared")) << compare().err;
    EXPECT_EQ(compare().status, 0) << compare().out;
    EXPECT_EQ(compare({"--times"}).status, 1) << "two runs never take the same times";

    EXPECT_THAT(differenceAfter("UPDATE layer_step SET ffn_ns = ffn_ns + 1"), HasSubstr("all the same"));
    EXPECT_THAT(differenceAfter("UPDATE token SET token_id = token_id + 1 WHERE id = (SELECT max(id) FROM token)"),
                ::testing::ContainsRegex("quest.cpu.offloaded: v_token .*'seq': 2.*token_id"));
    EXPECT_THAT(differenceAfter("UPDATE layer_step SET misses = misses + 1 WHERE id & 1023 = 3"),
                ::testing::AllOf(HasSubstr("'layer': 3"), HasSubstr("misses"), Not(HasSubstr("'layer': 2"))));
    EXPECT_THAT(differenceAfter("UPDATE layer_step SET exposed_ns = exposed_ns + 1 WHERE exposed_ns > 0"),
                HasSubstr("exposed_ns"))
        << "quest waits for every transfer in full: the model alone gives the time";
    EXPECT_THAT(differenceAfter("UPDATE selection SET blocks = x'00' WHERE id = (SELECT max(id) FROM selection)"),
                HasSubstr("selection"));
    EXPECT_THAT(differenceAfter("DELETE FROM selection WHERE id = (SELECT max(id) FROM selection)"),
                HasSubstr("rows before"));
    EXPECT_THAT(differenceAfter("UPDATE run SET block_bytes = 1"), HasSubstr("block_bytes"));
    EXPECT_THAT(differenceAfter("DROP VIEW v_lookahead"), HasSubstr("remark: v_lookahead"));

    std::filesystem::remove(path("after/sparda.cpu.offloaded.logits"));
    EXPECT_THAT(compare().out, HasSubstr("sparda.cpu.offloaded: only before has a logits file"));
    EXPECT_EQ(compare().status, 1);
}

TEST_F(CompareTraces, WhatCannotBeDoneIsSaidInASentence) {
    EXPECT_EQ(tool({"compare", path("nothing"), path("neither")}).status, 2);
    const auto unknown = tool({"record", path("a"), "--program", test::kCommandLine, "--method", "nobody"});
    EXPECT_EQ(unknown.status, 2);
    EXPECT_THAT(unknown.err, HasSubstr("no method nobody"));
    const auto absent = tool({"record", path("a"), "--program", path("absent")});
    EXPECT_EQ(absent.status, 2);
    EXPECT_THAT(absent.err, HasSubstr("cannot ask"));
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
