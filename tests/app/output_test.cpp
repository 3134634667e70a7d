// What the programs say when their output cannot be written, and how a terminal shows text of strangers.
#include "app/terminal/output.h"
#include "tests/app/cli_fixture.h"
#include "tests/support/places.h"

#include <chrono>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <pty.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <system_error>
#include <thread>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(ShownSafely, EscapesWhatATerminalObeysAndNothingElse) {
    EXPECT_EQ(shownSafely("plain, tab\t, line\n, \xc3\xbc, \xe2\x82\xac, \xf0\x9f\x8e\x89"),
              "plain, tab\t, line\n, \xc3\xbc, \xe2\x82\xac, \xf0\x9f\x8e\x89");
    EXPECT_EQ(shownSafely("\x1b[31mred\x1b[0m"), "\\u001b[31mred\\u001b[0m");
    EXPECT_EQ(shownSafely(std::string_view("a\0b\rc\x7f", 6)), "a\\u0000b\\u000dc\\u007f");
    EXPECT_EQ(shownSafely("\xc2\x9b"
                          "2J\xc2\x85\xc2\xa0"),
              "\\u009b2J\\u0085\xc2\xa0")
        << "C1 ends below U+00A0";
    EXPECT_EQ(shownSafely("\xe2\x80\xaegnp.exe\xe2\x81\xa6\xd8\x9c"), "\\u202egnp.exe\\u2066\\u061c");
    EXPECT_EQ(shownSafely("\x9b"
                          "31m\xc3"),
              "\\x9b31m\\xc3")
        << "bytes that are no UTF-8";
    EXPECT_EQ(shownSafely("\xed\xa0\x80\xc0\xaf"), "\\xed\\xa0\\x80\\xc0\\xaf") << "surrogates and overlong forms";
}

TEST(SentenceOf, SaysWhatIsShortWhereNoThreadStarts) {
    EXPECT_EQ(sentenceOf(std::system_error(EAGAIN, std::generic_category())), kNoThreads);
    EXPECT_EQ(sentenceOf(std::runtime_error("what else")), "what else");
}

class OutputCli : public test::CliFixture {
protected:
    static std::string quoted(const std::string& text) { return "'" + text + "'"; }
    /// Through a shell, with its redirections. @return the exit status
    int shell(const std::string& command) const {
        const int status = std::system((command + " 2>" + quoted(path("err"))).c_str());
        return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    }
    std::string said() const {
        std::ifstream file(path("err"));
        return {std::istreambuf_iterator<char>(file), {}};
    }
    static std::string program() { return quoted(test::kCommandLine); }
    std::string trace(const std::string& name = "run.kvtrace") const {
        record(path(name), {"--prompt", "one two three", "--max-new-tokens", "30"}); // enough to compare
        return quoted(path(name));
    }
    static std::string decode() { return program() + " run --prompt 'one two three' --ignore-eos --max-new-tokens "; }

    /// The command's own words on a terminal.
    std::string onTerminal(const std::vector<std::string>& arguments) const {
        int master = -1;
        const pid_t child = forkpty(&master, nullptr, nullptr, nullptr);
        if (child == 0) {
            std::vector<char*> words{const_cast<char*>(test::kCommandLine)};
            for (const std::string& argument : arguments) words.push_back(const_cast<char*>(argument.c_str()));
            words.push_back(nullptr);
            setenv("KVSCOPE_PROGRESS_SECONDS", "0", 1);
            execv(words[0], words.data());
            _exit(127);
        }
        std::string all;
        std::array<char, 4096> buffer{};
        for (ssize_t got; (got = read(master, buffer.data(), buffer.size())) > 0;)
            all.append(buffer.data(), std::size_t(got));
        close(master);
        int status = 0;
        waitpid(child, &status, 0);
        EXPECT_EQ(WIFEXITED(status) ? WEXITSTATUS(status) : -1, 0) << all;
        return all;
    }
};

TEST_F(OutputCli, AFullDeviceUnderStandardOutputIsAFailureThatIsSaid) {
    const std::string file = trace();
    for (const std::string& command :
         {"info " + file, "info --json " + file, "insights " + file, "insights --json " + file,
          std::string("methods --json"), std::string("methods"), "export " + file + " --what steps", "replay " + file,
          "compare " + file + " " + file, std::string("roofline"), std::string("--help"), std::string("info nosa-tiny"),
          std::string("tokenize --text hello")}) {
        const int status = shell(program() + " " + command + " >/dev/full");
        EXPECT_EQ(status, 1) << command;
        EXPECT_THAT(said(), HasSubstr("No space left on device")) << command;
    }
}

TEST_F(OutputCli, AClosedStandardOutputIsAFailure) {
    EXPECT_EQ(shell(program() + " methods >&-"), 1);
    EXPECT_THAT(said(), HasSubstr("standard output lacks text: Bad file descriptor; it is closed"));
    EXPECT_EQ(shell(program() + " methods >/dev/full"), 1);
    EXPECT_THAT(said(), HasSubstr("No space left on device; free some space"));
}

TEST_F(OutputCli, AStandardErrorThatCannotBeWrittenEndsNothing) {
    const std::string file = trace();
    for (const char* where : {"/dev/full", "&-"}) {
        const auto status = [&](const std::string& arguments) {
            return shell("(" + program() + " " + arguments + " >" + quoted(path("out")) + " 2>" + where + ")");
        };
        EXPECT_EQ(status("info " + quoted(path("absent.kvtrace"))), 1) << where;
        EXPECT_EQ(status("no-such-command"), 2) << where;
        EXPECT_EQ(status("tokenize --text hello"), 0) << where;
        EXPECT_EQ(status("run --prompt 'one two' --max-new-tokens 3"), 0) << where;
        EXPECT_EQ(status("run --prompt 'one two' --max-new-tokens 3 --trace " + quoted(path("run.kvtrace"))), 0);
        EXPECT_EQ(status("export " + file + " --what kernels"), 0) << where << ": it has a note to write";
    }
}

TEST_F(OutputCli, AReaderThatHasSeenEnoughEndsADecodeAndNoRecording) {
    EXPECT_EQ(shell("bash -c \"" + decode() + "14000 | head -c 10 >/dev/null; exit \\${PIPESTATUS[0]}\""), 141);
    const std::string file = path("whole.kvtrace");
    EXPECT_EQ(shell("bash -c \"" + decode() + "300 --trace '" + file +
                    "' | head -c 10 >/dev/null; exit \\${PIPESTATUS[0]}\""),
              141);
    EXPECT_THAT(said(), HasSubstr("the run is whole in " + file));
    const nlohmann::json run = jsonOf({"info", file}).at("runs").at(0);
    EXPECT_EQ(run.at("status"), "finished");
    EXPECT_EQ(run.at("decode_steps"), 299);
}

TEST_F(OutputCli, AFileAtItsLargestSizeIsAFailureAndNoSignal) {
    EXPECT_EQ(shell("(ulimit -f 1; " + program() + " methods --json >" + quoted(path("out")) + ")"), 1);
    EXPECT_THAT(said(), HasSubstr("File too large"));
    const int status =
        shell("(ulimit -f 256; " + decode() + "4000 --trace " + quoted(path("cut.kvtrace")) + " >/dev/null)");
    EXPECT_EQ(status, 1);
    EXPECT_THAT(said(), HasSubstr("cut.kvtrace"));
    record(path("run.kvtrace"), {"--prompt", "one two", "--max-new-tokens", "12"});
    EXPECT_EQ(shell("(ulimit -f 1; " + program() + " export " + quoted(path("run.kvtrace")) + " --what spans -o " +
                    quoted(path("spans.csv")) + ")"),
              1);
    EXPECT_THAT(said(), HasSubstr("cannot write " + path("spans.csv") + ": File too large"));
}

TEST_F(OutputCli, ATraceIsNotReplacedByATableOrAText) {
    const std::string one = path("one.kvtrace"), other = path("other.kvtrace");
    for (const std::string& trace : {one, other}) record(trace, {"--prompt", "one two", "--max-new-tokens", "2"});
    for (const std::vector<std::string>& command :
         {std::vector<std::string>{"export", one, "--what", "steps", "-o", other},
          {"export", one, "--format", "chrome-trace", "-o", other},
          {"simulate", "--workload", "longmix", "--requests", "3", "--write", other}}) {
        const test::Finished result = test::cli(command);
        EXPECT_EQ(result.status, 1);
        EXPECT_THAT(result.err, HasSubstr("a database, perhaps a trace, would be lost; choose another name"));
        EXPECT_EQ(jsonOf({"info", other}).at("runs").size(), 1u);
    }
}

TEST_F(OutputCli, SignalsEndARunAsCtrlCDoes) {
    for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
        const std::string file = path(fmt::format("signal{}.kvtrace", number));
        test::Process run({test::kCommandLine, "run", "--prompt", "one two three", "--ignore-eos", "--max-new-tokens",
                           "14000", "--verify", "--trace", file});
        ASSERT_TRUE(run.waitForOutput(" ")) << number;
        run.signal(number);
        const test::Finished result = run.wait();
        EXPECT_EQ(result.status, 128 + number) << result.err;
        EXPECT_THAT(result.err, HasSubstr("not verified: the run was ended before its end"));
        EXPECT_THAT(result.err, Not(HasSubstr("the same tokens")));
        const nlohmann::json info = jsonOf({"info", file}).at("runs").at(0);
        EXPECT_EQ(info.at("status"), "stopped") << number;
        for (const char* companion : {"-wal", "-shm", "-lock"})
            EXPECT_FALSE(std::filesystem::exists(file + companion)) << companion;
    }
}

// As under a launcher that passes on what the terminal has sent to its child, too.
TEST_F(OutputCli, ASignalThatComesTwiceAtOnceEndsARunInOrder) {
    for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
        const std::string file = path(fmt::format("twice{}.kvtrace", number));
        test::Process run({test::kCommandLine, "run", "--prompt", "one two three", "--ignore-eos", "--max-new-tokens",
                           "14000", "--trace", file});
        ASSERT_TRUE(run.waitForOutput(" ")) << number;
        run.signal(number);
        std::this_thread::sleep_for(std::chrono::milliseconds(1)); // two pending signals of a kind are one
        run.signal(number);
        EXPECT_EQ(run.wait().status, 128 + number);
        EXPECT_EQ(jsonOf({"info", file}).at("runs").at(0).at("status"), "stopped") << number;
        EXPECT_FALSE(std::filesystem::exists(file + "-lock")) << number;
    }
}

TEST_F(OutputCli, AHangUpThatIsIgnoredFromTheStartStaysIgnored) {
    const std::string file = path("nohup.kvtrace");
    test::Process run({"/usr/bin/env", "--ignore-signal=HUP", test::kCommandLine, "run", "--prompt", "one two three",
                       "--ignore-eos", "--max-new-tokens", "400", "--trace", file});
    ASSERT_TRUE(run.waitForOutput(" "));
    run.signal(SIGHUP);
    EXPECT_EQ(run.wait().status, 0);
    EXPECT_EQ(jsonOf({"info", file}).at("runs").at(0).at("status"), "finished");
}

TEST_F(OutputCli, ARunWhoseFileWasDeletedIsNoSuccess) {
    const std::string file = path("gone.kvtrace");
    test::Process run({test::kCommandLine, "run", "--prompt", "one two three", "--ignore-eos", "--max-new-tokens",
                       "800", "--trace", file});
    ASSERT_TRUE(run.waitForOutput(" "));
    std::filesystem::remove(file);
    const test::Finished result = run.wait();
    EXPECT_EQ(result.status, 1);
    EXPECT_THAT(result.err, HasSubstr(file + " was deleted, renamed or replaced while it was recorded"));
    EXPECT_THAT(result.err, HasSubstr("nothing of this run was kept"));
    EXPECT_THAT(result.err, Not(HasSubstr("recorded in")));
}

TEST_F(OutputCli, ARunWhoseFileWasRenamedOrTruncatedIsNoSuccess) {
    const std::string file = path("run.kvtrace"), moved = path("moved.kvtrace");
    const std::vector<std::string> command{
        test::kCommandLine, "run", "--prompt", "one two three", "--ignore-eos", "--max-new-tokens", "800",
        "--trace",          file};
    test::Process renamed(command);
    ASSERT_TRUE(renamed.waitForOutput(" "));
    std::filesystem::rename(file, moved);
    test::Finished result = renamed.wait();
    EXPECT_EQ(result.status, 1);
    EXPECT_THAT(result.err, HasSubstr(file + " was renamed to " + moved + " while it was recorded"));
    EXPECT_THAT(result.err, HasSubstr("steps recorded before it are in " + moved));
    EXPECT_EQ(jsonOf({"info", moved}).at("runs").at(0).at("status"), "failed");
    test::Process truncated(command);
    ASSERT_TRUE(truncated.waitForOutput(" "));
    std::filesystem::resize_file(file, 4096);
    result = truncated.wait();
    EXPECT_EQ(result.status, 1);
    EXPECT_THAT(result.err, HasSubstr(file + " was truncated while it was recorded"));
    EXPECT_THAT(result.err, Not(HasSubstr("recorded in")));
    EXPECT_EQ(test::linesOf(result.err).size(), 1u) << result.err;
}

TEST_F(OutputCli, AModelThatIsWrittenWhileItDecodesIsNoSuccess) {
    namespace fs = std::filesystem;
    const std::string model = path("model"), weights = model + "/model.safetensors", trace = path("run.kvtrace");
    const auto copied = [&] {
        fs::remove_all(model);
        fs::copy(test::source("resources/models/nosa-tiny"), model);
        fs::permissions(weights, fs::perms::owner_write, fs::perm_options::add);
    };
    const std::vector<std::string> command{
        test::kCommandLine, "run", "--model", model, "--prompt", "one two three", "--ignore-eos",
        "--max-new-tokens", "800", "--trace", trace};
    copied();
    test::Process overwritten(command);
    ASSERT_TRUE(overwritten.waitForOutput(" "));
    std::fstream(weights, std::ios::in | std::ios::out | std::ios::binary).seekp(20'000'000).write("other", 5);
    test::Finished result = overwritten.wait();
    EXPECT_EQ(result.status, 1);
    EXPECT_THAT(result.err, HasSubstr("another program wrote to " + weights + " while it was read"));
    EXPECT_EQ(jsonOf({"info", trace}).at("runs").at(0).at("status"), "failed");

    copied();
    test::Process touched(command);
    ASSERT_TRUE(touched.waitForOutput(" "));
    ASSERT_EQ(utimensat(AT_FDCWD, weights.c_str(), nullptr, 0), 0); // as `touch` does
    result = touched.wait();
    EXPECT_EQ(result.status, 0) << result.err;

    copied();
    test::Process cut(command);
    ASSERT_TRUE(cut.waitForOutput(" "));
    fs::resize_file(weights, 4096);
    result = cut.wait();
    EXPECT_EQ(result.status, 1) << "no SIGBUS";
    EXPECT_THAT(result.err, HasSubstr(weights + " was cut short by another program while it was read"));
    EXPECT_EQ(jsonOf({"info", trace}).at("runs").back().at("status"), "failed") << "and its steps are recorded";
    EXPECT_EQ(test::cli({"check", trace}).status, 0);

    copied();
    test::Process replaced(command);
    ASSERT_TRUE(replaced.waitForOutput(" "));
    fs::remove(weights); // the mapped bytes stay as they were
    std::ofstream(weights) << "others";
    result = replaced.wait();
    EXPECT_EQ(result.status, 0) << result.err;
}

TEST_F(OutputCli, ATraceThatIsBeingWrittenIsNotReplaced) {
    const std::string file = path("busy.kvtrace");
    test::Process run({test::kCommandLine, "run", "--prompt", "one two three", "--ignore-eos", "--max-new-tokens",
                       "14000", "--trace", file});
    ASSERT_TRUE(run.waitForOutput(" "));
    const test::Finished other =
        test::cli({"run", "--prompt", "one", "--max-new-tokens", "2", "--trace", file, "--overwrite"});
    EXPECT_EQ(other.status, 1);
    EXPECT_THAT(other.err, HasSubstr(file + " is being written by another program"));
    run.signal(SIGINT);
    EXPECT_EQ(run.wait().status, 130);
    EXPECT_EQ(jsonOf({"info", file}).at("runs").at(0).at("status"), "stopped");
}

TEST_F(OutputCli, TextOfFilesReachesNoTerminalAsItIsAndEveryPipe) {
    const std::string file = path("hostile.kvtrace");
    record(file, {"--prompt", "one two three", "--max-new-tokens", "30"});
    test::executeSql(file, "UPDATE run SET name='x' || char(27) || ']0;owned' || char(7) || char(0x9b) || '2J' ||"
                           " char(0x202e), model=name, method='nosa', device=name, link=name");
    test::executeSql(file, "UPDATE run SET model=name, device=name, link=name, status_message=name");
    test::executeSql(file, "UPDATE token SET text=(SELECT name FROM run), bytes=NULL");
    const std::vector<std::vector<std::string>> commands{{"info", file},
                                                         {"info", "--json", file},
                                                         {"insights", file},
                                                         {"replay", file},
                                                         {"compare", file, file},
                                                         {"export", file, "--what", "runs"},
                                                         {"export", file, "--what", "tokens", "--format", "jsonl"}};
    for (const auto& command : commands) {
        const std::string shown = onTerminal(command);
        EXPECT_THAT(shown,
                    Not(AnyOf(HasSubstr("\x1b"), HasSubstr("\x07"), HasSubstr("\xc2\x9b"), HasSubstr("\xe2\x80\xae"))))
            << testing::PrintToString(command);
    }
    EXPECT_THAT(onTerminal({"info", file}), HasSubstr("\\u001b]0;owned\\u0007"));
    EXPECT_THAT(test::cli({"info", file}).out, HasSubstr("x\x1b]0;owned\x07\xc2\x9b"
                                                         "2J\xe2\x80\xae"));
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
