// The program `kvscope` from the outside: exit status, one line on stderr, pictures and reports without a display.
#include "tests/app/process.h"
#include "tests/profiler/sql_rows.h"
#include "tests/support/places.h"

#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <sys/stat.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#ifdef KVSCOPE_HAVE_DESKTOP
namespace kvscope {
namespace KVSCOPE_TEST_FILE {

struct Outcome {
    int status = -1;
    std::string output, error;
};

class DesktopProgramTest : public testing::Test {
protected:
    DesktopProgramTest()
        : folder(std::filesystem::temp_directory_path() / ("kvscope-desktop-" + std::to_string(getpid()))) {
        std::filesystem::create_directories(folder);
    }
    ~DesktopProgramTest() override { std::filesystem::remove_all(folder); }

    std::string path(const std::string& name) const { return (folder / name).string(); }
    std::string textOf(const std::string& name) const {
        std::ifstream file(path(name), std::ios::binary);
        return {std::istreambuf_iterator<char>(file), {}};
    }
    Outcome run(const std::string& program, const std::string& arguments) const {
        const std::string command = "env -u DISPLAY -u WAYLAND_DISPLAY -u QT_QPA_PLATFORM HOME='" + folder.string() +
                                    "' '" + program + "' " + arguments + " >'" + path("out") + "' 2>'" + path("err") +
                                    "'";
        const int status = std::system(command.c_str());
        return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, textOf("out"), textOf("err")};
    }
    Outcome desktop(const std::string& arguments) const { return run(test::kDesktop, arguments); }
    /// A short run of the embedded model.
    std::string recorded() const {
        const Outcome outcome =
            run(test::kCommandLine, "run --model nosa-tiny --prompt 'The decoder reads one token after another.' "
                                    "--method nosa --max-new-tokens 5 --trace '" +
                                        path("run.kvtrace") + "'");
        EXPECT_EQ(outcome.status, 0) << outcome.error;
        return "'" + path("run.kvtrace") + "'";
    }
    static void expectOneLine(const std::string& error) {
        ASSERT_FALSE(error.empty());
        EXPECT_EQ(error.find('\n'), error.size() - 1) << error;
    }

    std::filesystem::path folder;
};

TEST_F(DesktopProgramTest, HelpAndVersionNeedNoDisplay) {
    const Outcome help = desktop("--help");
    EXPECT_EQ(help.status, 0);
    EXPECT_NE(help.output.find("render"), std::string::npos);
    EXPECT_EQ(desktop("--version").status, 0);
    EXPECT_EQ(desktop("render --help").status, 0);
}

#ifndef __SANITIZE_ADDRESS__ // AddressSanitizer reserves more addresses than any limit of this test
/// At the lowest limit the trace cannot be read, at the highest the picture is drawn; which allocation fails between
/// them differs from run to run. Qt waits for ever for a thread of its painter that the system did not start, which the
/// program must not let happen.
TEST_F(DesktopProgramTest, RenderEndsWithASentenceWhereMemoryIsShort) {
    const std::string trace = recorded();
    int refused = 0, drawn = 0;
    for (int megabytes = 240; megabytes <= 440; megabytes += 20) {
        const std::string picture = path("picture.png");
        std::filesystem::remove(picture);
        const std::string limited = "sh -c 'ulimit -v " + std::to_string(megabytes * 1024) + "; exec \"$0\" \"$@\"' '" +
                                    std::string(test::kDesktop) + "' render " + trace + " --view locality -o '" +
                                    picture + "'";
        const Outcome outcome = run("env", limited);
        ASSERT_TRUE(outcome.status == 0 || outcome.status == 1 || outcome.status == 127)
            << megabytes << " MB: " << outcome.status << outcome.error;
        if (outcome.status == 0) {
            EXPECT_TRUE(std::filesystem::exists(picture)) << megabytes;
            ++drawn;
        } else if (outcome.status == 1) {
            expectOneLine(outcome.error);
            ++refused;
        }
    }
    EXPECT_GT(refused + drawn, 3) << "the program could be loaded";
}

/// Qt embeds the fonts of a PDF document in memory that it may not have got.
TEST_F(DesktopProgramTest, AReportEndsWithASentenceWhereMemoryIsShort) {
    const std::string trace = recorded();
    for (int megabytes = 130; megabytes <= 190; megabytes += 6) {
        const Outcome outcome =
            run("env", "sh -c 'ulimit -v " + std::to_string(megabytes * 1024) + "; exec \"$0\" \"$@\"' '" +
                           std::string(test::kDesktop) + "' report " + trace + " -o '" + path("report.pdf") + "'");
        ASSERT_TRUE(outcome.status == 0 || outcome.status == 1 || outcome.status == 127)
            << megabytes << " MB: " << outcome.status << outcome.error;
        if (outcome.status == 1) expectOneLine(outcome.error);
    }
}
#endif

TEST_F(DesktopProgramTest, AFigureThatRedrawsNoPaperNamesNone) {
    const Outcome list = desktop("figure --list");
    EXPECT_EQ(list.status, 0) << list.error;
    EXPECT_NE(list.output.find("(NOSA, Fig. 2d)"), std::string::npos);
    EXPECT_NE(list.output.find("Answers kept against bytes per token\n"), std::string::npos) << list.output;
}

TEST_F(DesktopProgramTest, WithoutADisplayTheWindowSaysSoInOneLine) {
    const Outcome outcome = desktop("");
    EXPECT_EQ(outcome.status, 2);
    expectOneLine(outcome.error);
    EXPECT_NE(outcome.error.find("display"), std::string::npos);
}

TEST_F(DesktopProgramTest, PicturesAndReportsAreWrittenWithoutADisplayAndInSilence) {
    const std::string trace = recorded();
    for (const char* name : {"view.png", "view.svg"}) {
        const Outcome outcome = desktop("render " + trace + " --view locality --size 640x400 -o '" + path(name) + "'");
        EXPECT_EQ(outcome.status, 0) << outcome.error;
        EXPECT_EQ(outcome.error + outcome.output, "");
    }
    EXPECT_EQ(textOf("view.png").substr(1, 3), "PNG");
    EXPECT_NE(textOf("view.svg").find("<svg"), std::string::npos);
    for (const char* name : {"report.html", "report.pdf"}) {
        const Outcome outcome = desktop("report " + trace + " -o '" + path(name) + "'");
        EXPECT_EQ(outcome.status, 0) << outcome.error;
        EXPECT_EQ(outcome.error + outcome.output, "");
    }
    EXPECT_NE(textOf("report.html").find("NOSA on nosa-tiny"), std::string::npos);
    EXPECT_EQ(textOf("report.pdf").substr(0, 5), "%PDF-");
}

TEST_F(DesktopProgramTest, AFigureIsDrawnFromFilesAlone) {
    ASSERT_EQ(mkfifo(path("pipe").c_str(), 0600), 0);
    std::filesystem::create_directory(path("folder"));
    for (const char* name : {"pipe", "folder"}) {
        const Outcome refused = desktop("figure locality '" + path(name) + "' -o '" + path("figure.svg") + "'");
        EXPECT_EQ(refused.status, 1);
        expectOneLine(refused.error);
        EXPECT_NE(refused.error.find(path(name) + " is not a file"), std::string::npos) << refused.error;
    }
}

TEST_F(DesktopProgramTest, NumbersOfAFigureNeverTakeThePlaceOfATrace) {
    const std::string trace = recorded(),
                      command = "figure locality " + trace + " -o '" + path("figure.svg") + "' --csv ";
    const Outcome numbers = desktop(command + "'" + path("figure.csv") + "'");
    EXPECT_EQ(numbers.status, 0) << numbers.error;
    EXPECT_EQ(textOf("figure.csv").substr(0, 6), "panel,");
    const Outcome refused = desktop(command + trace);
    EXPECT_EQ(refused.status, 1);
    expectOneLine(refused.error);
    EXPECT_NE(refused.error.find("a database, perhaps a trace, would be lost"), std::string::npos) << refused.error;
    EXPECT_EQ(desktop("render " + trace + " --view locality -o '" + path("after.png") + "'").status, 0);
}

TEST_F(DesktopProgramTest, TheWholeWindowIsDrawnAtAnyScale) {
    const std::string trace = recorded();
    const auto side = [](const std::string& png, std::size_t at) { // big-endian, after signature and chunk head
        int value = 0;
        for (std::size_t i = at; i < at + 4; ++i) value = value << 8 | int(static_cast<unsigned char>(png.at(i)));
        return value;
    };
    for (const int scale : {1, 2}) {
        const Outcome outcome =
            desktop("render " + trace + " --view selection --window --size 1280x800 --step 2 --scale " +
                    std::to_string(scale) + " --theme dark -o '" + path("window.png") + "'");
        EXPECT_EQ(outcome.status, 0) << outcome.error;
        EXPECT_EQ(outcome.error + outcome.output, "");
        const std::string png = textOf("window.png");
        ASSERT_GT(png.size(), 30'000u) << "a window full of things";
        EXPECT_EQ(side(png, 16), 1280 * scale);
        EXPECT_EQ(side(png, 20), 800 * scale);
    }
}

/// The window of the real program records; whoever logs out or ends it from outside gets a whole trace that says
/// `stopped`, as with the Stop button.
TEST_F(DesktopProgramTest, ASignalEndsARecordingAsStopDoes) {
    const std::string shortRun = path("run.kvtrace");
    recorded();
    test::sql(
        shortRun,
        "UPDATE run SET params_json = json_set(params_json, '$.max_new_tokens', 6000, '$.ignore_eos', json('true')),"
        " device_slots = 16", // a short run has fewer blocks than the method attends to
        SQLITE_OPEN_READWRITE);
    for (const int signal : {SIGTERM, SIGHUP, SIGINT}) {
        SCOPED_TRACE(signal);
        const std::filesystem::path home = folder / ("home" + std::to_string(signal)),
                                    traces = home / "data/kvscope/traces";
        std::filesystem::create_directories(home);
        test::Process desktop({"/usr/bin/env", "-u", "DISPLAY", "-u", "WAYLAND_DISPLAY", "QT_QPA_PLATFORM=offscreen",
                               "HOME=" + home.string(), "XDG_DATA_HOME=" + (home / "data").string(),
                               "XDG_CONFIG_HOME=" + (home / "config").string(), test::kDesktop, "--again", shortRun});
        std::string recording;
        const auto hasSteps = [&] {
            if (!std::filesystem::exists(traces)) return false;
            for (const auto& entry : std::filesystem::directory_iterator(traces))
                if (entry.path().extension() == ".kvtrace") recording = entry.path().string();
            try {
                return !recording.empty() && std::stoi(test::value(recording, "SELECT count(*) FROM step")) > 4;
            } catch (const std::exception&) { // the tables are not there yet
                return false;
            }
        };
        const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(120);
        while (!hasSteps() && std::chrono::steady_clock::now() < deadline)
            std::this_thread::sleep_for(std::chrono::milliseconds(50));
        ASSERT_TRUE(hasSteps()) << "nothing was recorded";
        EXPECT_EQ(test::value(recording, "SELECT status FROM run"), "running");
        desktop.signal(signal);
        const test::Finished end = desktop.wait();
        EXPECT_EQ(end.status, 128 + signal) << end.err;
        EXPECT_EQ(end.err.find("kvscope:"), std::string::npos) << end.err; // Qt's platform may have remarks of its own
        std::vector<std::string> files;
        for (const auto& entry : std::filesystem::directory_iterator(traces))
            files.push_back(entry.path().filename().string());
        EXPECT_EQ(files, std::vector<std::string>{std::filesystem::path(recording).filename().string()})
            << "one file, without what SQLite keeps beside it while it writes";
        EXPECT_EQ(test::value(recording, "SELECT status FROM run"), "stopped");
        EXPECT_EQ(test::value(recording, "SELECT method FROM run"), "nosa") << "as the run that was run again";
        EXPECT_EQ(test::value(recording, "SELECT count(*) FROM prompt"),
                  test::value(shortRun, "SELECT count(*) FROM prompt"));
        EXPECT_EQ(test::runProcess({test::kCommandLine, "check", recording}).status, 0);
    }
}

TEST_F(DesktopProgramTest, MistakesAreOneLineThatNamesThem) {
    const std::string trace = recorded();
    std::ofstream(path("broken.kvtrace")) << "no database";
    const std::string broken = "'" + path("broken.kvtrace") + "'", picture = " -o '" + path("x.png") + "'";
    const std::pair<std::string, std::string> cases[] = {
        {"render " + trace + " --view nonsense" + picture, "nonsense"},
        {"render " + trace + " --view locality --size big" + picture, "big"},
        {"render " + trace + " --view locality -o /nowhere/x.png", "/nowhere/x.png"},
        {"render " + broken + " --view locality" + picture, "broken.kvtrace"},
        {"render missing.kvtrace --view locality" + picture, "missing.kvtrace"},
        {"render " + trace + picture, "--view"},
        {"render " + trace + " --view locality --window -o '" + path("x.svg") + "'", "x.svg"},
        {"render " + trace + " --view locality --compare missing.kvtrace" + picture, "missing.kvtrace"},
        {"report " + trace + " -o '" + path("report.doc") + "'", "report.doc"},
        {"report " + broken + " -o '" + path("report.html") + "'", "broken.kvtrace"},
        {"report " + trace + " -o /nowhere/report.pdf", "/nowhere/report.pdf"},
        {"--theme pink", "pink"},
        {"--again", "--again"},
        {"missing.kvtrace", "missing.kvtrace"},
    };
    for (const auto& [arguments, named] : cases) {
        const Outcome outcome = desktop(arguments);
        EXPECT_NE(outcome.status, 0) << arguments;
        expectOneLine(outcome.error);
        EXPECT_NE(outcome.error.find(named), std::string::npos) << arguments << ": " << outcome.error;
    }
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
#endif
