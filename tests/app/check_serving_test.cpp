// tools/check_serving: a served run is what Algorithm 1 says, iteration by iteration, and the tool finds a changed
// number.
#include "tests/app/cli_fixture.h"
#include "tests/app/serve_fixture.h"
#include "tests/support/places.h"

#include <cstdlib>
#include <filesystem>
#include <gmock/gmock.h>
#include <string>
#include <vector>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using test::executeSql;
using ::testing::HasSubstr;

class CheckServing : public test::CliFixture {
protected:
    void SetUp() override {
        if (std::system("python3 -c 'import sqlite3' > /dev/null 2>&1") != 0)
            GTEST_SKIP() << "python3 with sqlite3 is not installed";
    }
    static test::Finished tool(std::vector<std::string> arguments) {
        arguments.insert(arguments.begin(), {"/usr/bin/env", "python3", test::source("tools/check_serving")});
        return test::runProcess(arguments);
    }
    /// Records the workload and knobs of a seed into the test's folder and checks the run.
    test::Finished recordAndCheck(const std::string& seed) const {
        return tool({"--random", "1", "--first-seed", seed, "--keep", path(""), test::kCommandLine});
    }
};

/// A server's requests come when they like, and some of its answers end at a text, between two iterations.
using CheckServed = test::ServeFixture;
TEST_F(CheckServed, AServerWhoseAnswersEndAtATextIsWhatTheAlgorithmSays) {
    if (std::system("python3 -c 'import sqlite3' > /dev/null 2>&1") != 0)
        GTEST_SKIP() << "python3 with sqlite3 is not installed";
    start({"--trace", path("served.kvtrace")}); // of nosa, whose index has no whole number of bytes for a block
    if (IsSkipped()) return;
    for (const char* end : {"e", " the", "never in a text"}) {
        nlohmann::json body = test::bodyOf("Once upon a time", 20);
        body["stop"] = end;
        EXPECT_EQ(complete(body).status, 200) << end;
    }
    EXPECT_EQ(stop().status, 0);
    const test::Finished done =
        test::runProcess({"/usr/bin/env", "python3", test::source("tools/check_serving"), path("served.kvtrace")});
    EXPECT_EQ(done.status, 0) << done.out << done.err;
    EXPECT_THAT(done.out, HasSubstr("all the same"));
}

TEST_F(CheckServing, RunsAreWhatTheAlgorithmSaysAndAChangedNumberIsFound) {
    for (const char* seed : {"31", "113"}) { // with slots for each row, and with one pool for all
        const test::Finished done = recordAndCheck(seed);
        EXPECT_EQ(done.status, 0) << done.out << done.err;
        EXPECT_THAT(done.out, HasSubstr("all the same"));
    }
    const std::string trace = path("113.kvtrace"), changed = path("changed.kvtrace");
    const auto differenceAfter = [&](const std::string& sql) {
        std::filesystem::copy_file(trace, changed, std::filesystem::copy_options::overwrite_existing);
        executeSql(changed, sql);
        const test::Finished done = tool({changed});
        EXPECT_EQ(done.status, 1) << sql << ": " << done.out << done.err;
        return done.out;
    };
    const std::string lastDecode = " WHERE id = (SELECT max(id) FROM member WHERE kind = 0)",
                      last = " WHERE id = (SELECT max(id) FROM iteration)";
    EXPECT_THAT(differenceAfter("UPDATE member SET hits = hits - 1, misses = misses + 1" + lastDecode),
                HasSubstr("hits and misses of request"));
    EXPECT_THAT(differenceAfter("UPDATE member SET ws_bytes = ws_bytes + 1" + lastDecode),
                HasSubstr("working set of request"));
    EXPECT_THAT(differenceAfter("UPDATE iteration SET waiting = waiting + 1" + last), HasSubstr("how many wait"));
    EXPECT_THAT(differenceAfter("UPDATE iteration SET scratch_bytes = scratch_bytes + 1" + last),
                HasSubstr("scratch bytes"));
    EXPECT_THAT(differenceAfter("UPDATE iteration SET limited_by = 'rows'" + last), HasSubstr("what limits"));
    EXPECT_THAT(differenceAfter("UPDATE member SET tokens = tokens - 1 WHERE id = (SELECT max(id) FROM member WHERE"
                                " kind = 1)"),
                HasSubstr("prompt tokens"));
}

TEST_F(CheckServing, TheSimulatorIsTheOneMadeFromTheText) {
    const test::Finished done = tool({"--simulate", "12", "--first-seed", "24", test::kCommandLine});
    EXPECT_EQ(done.status, 0) << done.out << done.err;
    EXPECT_THAT(done.out, HasSubstr("seed 35: 344 iterations simulated, 2 pauses, all the same"));
}

TEST_F(CheckServing, WhatCannotBeCheckedIsSaidInASentence) {
    const test::Finished absent = tool({path("absent.kvtrace")});
    EXPECT_EQ(absent.status, 2);
    EXPECT_THAT(absent.err, HasSubstr("cannot read " + path("absent.kvtrace")));
    const test::Finished gpu = tool({test::source("resources/samples/h200-serving.kvtrace")});
    EXPECT_EQ(gpu.status, 2);
    EXPECT_THAT(gpu.err, HasSubstr("was served by a GPU"));
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
