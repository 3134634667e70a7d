// tools/run_tests.py with a ctest and test programs made here: what passes, fails, is skipped, stops its process or
// takes too long is counted once each, and the tests behind it still run.
#include "tests/support/places.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sstream>
#include <string>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

/// A program that behaves like one of GoogleTest: it runs the tests of its filter in their order.
constexpr const char* kProgram = R"bash(#!/bin/bash
if [[ $1 == *NeedsGpu* ]]; then
    echo "../tests/core/backend.cpp:17: Skipped"
    echo "there is no NVIDIA GPU"
    echo "[  PASSED  ] 2 tests."
    exit 0
fi
for test in $(echo "${1#--gtest_filter=}" | tr : ' '); do
    echo "[ RUN      ] $test"
    case $test in
    *Passes*) echo "[       OK ] $test (1 ms)" ;;
    *Fails*) echo "the reason"; echo "[  FAILED  ] $test, where GetParam() = 7 (1 ms)"; status=1 ;;
    *Skips*) echo "[  SKIPPED ] $test (0 ms)" ;;
    *Leaks*) echo "[       OK ] $test (1 ms)"; leaked=23 ;;
    *Crashes*) kill -SEGV $$ ;;
    *Hangs*) sleep 60 ;;
    esac
done
exit ${leaked:-${status:-0}}
)bash";

std::string textOf(const fs::path& file) {
    std::ifstream in(file);
    std::stringstream text;
    text << in.rdbuf();
    return text.str();
}

class RunTests : public ::testing::Test {
protected:
    void SetUp() override {
        std::string pattern = (fs::temp_directory_path() / "kvscope-run-tests-XXXXXX").string();
        folder_ = mkdtemp(pattern.data());
        program("program", kProgram);
    }
    void TearDown() override { fs::remove_all(folder_); }

    void program(const std::string& name, const std::string& text) const {
        std::ofstream(folder_ / name) << text;
        fs::permissions(folder_ / name, fs::perms::owner_all);
    }

    /// Adds a test to those that ctest tells of.
    void add(const std::string& name, const std::string& properties = "") {
        tests_ += (tests_.empty() ? "" : ",\n") + std::string(R"({"name": "program.)") + name + R"(", "command": [")" +
                  (folder_ / "program").string() + R"(", "--gtest_filter=)" + name +
                  R"("], "properties": [{"name": "TIMEOUT", "value": 2})" + properties + "]}";
    }

    /// Runs them, with options of ctest. Returns the status; what was printed and the line of counts are kept.
    int run(const std::string& options = "") {
        program("ctest", "#!/bin/bash\ncat <<'END'\n{\"tests\": [" + tests_ + "]}\nEND\n");
        const std::string command = "PATH=" + folder_.string() + ":$PATH " + test::source("tools/run_tests.py") + " " +
                                    folder_.string() + " " + (folder_ / "counts").string() + " " + options + " >" +
                                    (folder_ / "printed").string() + " 2>&1";
        const int status = std::system(command.c_str()); // NOLINT(concurrency-mt-unsafe): one thread
        printed_ = textOf(folder_ / "printed");
        counts_ = textOf(folder_ / "counts");
        failed_ = textOf(folder_ / "failed_tests.txt");
        return status;
    }

    fs::path folder_;
    std::string tests_, printed_, counts_, failed_;
};

TEST_F(RunTests, CountsWhatPassesAndIsSkipped) {
    for (int i = 0; i < 45; ++i) add("Suite.Passes" + std::to_string(i)); // three processes
    add("Suite.Skips");
    add("Suite.PassesAlone", R"(, {"name": "LABELS", "value": ["kill"]})");
    add("Suite.PassesLast", R"(, {"name": "RUN_SERIAL", "value": true})");
    EXPECT_EQ(run(), 0) << printed_;
    EXPECT_EQ(counts_, "47 0 1\n");
    EXPECT_THAT(printed_, HasSubstr("skipped: 1, by suite:\n      1  program.Suite\n"));
    EXPECT_EQ(failed_, "");
}

TEST_F(RunTests, CountsAsSkippedWhatTheProgramsSetUpSkips) {
    add("Suite.NeedsGpu");
    add("Suite.Passes");
    EXPECT_EQ(run(), 0) << printed_;
    EXPECT_EQ(counts_, "0 0 2\n");
}

TEST_F(RunTests, NamesEveryTestThatFails) {
    add("Suite.Passes1");
    add("Suite.Fails");
    add("Suite.Crashes");
    add("Suite.Passes2");
    add("Suite.Hangs");
    add("Suite.Passes3");
    tests_ += R"(, {"name": "other_tests_NOT_BUILT", "properties": []})";
    EXPECT_NE(run(), 0);
    EXPECT_EQ(counts_, "3 4 0\n") << printed_;
    EXPECT_THAT(printed_, HasSubstr("FAILED program.Suite.Fails: failed\n[ RUN      ] Suite.Fails\nthe reason"));
    EXPECT_THAT(printed_, HasSubstr("FAILED program.Suite.Crashes: ended by signal 11"));
    EXPECT_THAT(printed_, HasSubstr("FAILED program.Suite.Hangs: took longer than 2 s"));
    EXPECT_THAT(printed_, HasSubstr("FAILED other_tests_NOT_BUILT: its program was not built"));
    EXPECT_THAT(printed_, Not(HasSubstr("Passes")));
    for (const char* name :
         {"Suite.Fails: failed\n[ RUN      ] Suite.Fails\nthe reason", "Suite.Crashes", "Suite.Hangs"}) {
        EXPECT_THAT(failed_, HasSubstr("FAILED program." + std::string(name)));
    }
}

TEST_F(RunTests, BeginsWithTheBatchesThatTakeLongest) {
    program("ask", R"python(#!/usr/bin/env python3
import sys
sys.path.insert(0, sys.argv[1])
sys.dont_write_bytecode = True
import run_tests
entries = [{"name": f"p.S.T{i}", "command": ["p", f"--gtest_filter=S.T{i}"]} for i in range(50)]
entries[47]["properties"] = [{"name": "LABELS", "value": ["slow"]}]
tests = [run_tests.Test(entry) for entry in entries]
tests[45].seconds = 90 # as in the run before
print(*[f"{batch[0].name}x{len(batch)}" for batch in run_tests.batches_of(tests)])
)python");
    const std::string command =
        (folder_ / "ask").string() + " " + test::source("tools") + " >" + (folder_ / "printed").string() + " 2>&1";
    ASSERT_EQ(std::system(command.c_str()), 0) << textOf(folder_ / "printed"); // NOLINT(concurrency-mt-unsafe)
    EXPECT_EQ(textOf(folder_ / "printed"), "p.S.T45x1 p.S.T46x4 p.S.T0x20 p.S.T20x20 p.S.T40x5\n")
        << "a batch with a slow test comes before twenty quick ones";
}

TEST_F(RunTests, KeepsTheTimesOfTestsThatWereNotChosen) {
    const fs::path times = folder_ / "test_times.txt";
    std::ofstream(times) << "7.000 program.Suite.NotChosen\n3.000 program.Suite.Passes\n";
    add("Suite.Passes");
    EXPECT_EQ(run("-R Passes"), 0) << printed_;
    EXPECT_EQ(textOf(times), "7.000 program.Suite.NotChosen\n0.001 program.Suite.Passes\n");
    EXPECT_EQ(run(), 0) << printed_;
    EXPECT_EQ(textOf(times), "0.001 program.Suite.Passes\n") << "all were chosen, and that test is no more";
}

TEST_F(RunTests, FindsTheTestAfterWhichItsProcessEndsWrongly) {
    add("Suite.Passes");
    add("Suite.Leaks");
    EXPECT_NE(run(), 0);
    EXPECT_EQ(counts_, "1 1 0\n") << printed_;
    EXPECT_THAT(printed_, HasSubstr("FAILED program.Suite.Leaks: ended with status 23"));
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
