// A trace that somebody writes is not overwritten, and a recording whose file was deleted, replaced or truncated says
// so.
#include "base/error.h"
#include "profiler/read/trace_reader.h"
#include "profiler/record/recorder.h"
#include "tests/profiler/sql_rows.h"
#include "tests/profiler/synthetic_run.h"
#include "tests/profiler/temporary_folder.h"

#include <chrono>
#include <csignal>
#include <fstream>
#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

namespace fs = std::filesystem;
using testing::HasSubstr;

class Overwriting : public testing::Test {
protected:
    std::string refusal(bool overwrite = true) const {
        RecorderOptions options;
        options.overwrite = overwrite;
        try {
            Recorder recorder(file, options);
            return "";
        } catch (const Error& error) {
            return oneLine(error);
        }
    }
    void change(const std::string& sql) const { test::sql(file, sql, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE); }
    test::Folder folder;
    std::string file = (folder / "run.kvtrace").string();
};

TEST_F(Overwriting, IsRefusedWhileAnotherRecorderHasTheFile) {
    Recorder recorder(file, {});
    for (const bool overwrite : {true, false})
        EXPECT_THAT(refusal(overwrite), HasSubstr(file + " is being written by this program already"));
    synthetic::record(recorder, {});
    recorder.flush();
    EXPECT_EQ(recorder.health().error, "");
    EXPECT_EQ(TraceReader(file).steps(1).size(), 21u);
}

TEST_F(Overwriting, IsRefusedWhileAnotherProcessHasTheFile) {
    int ready[2];
    ASSERT_EQ(pipe(ready), 0);
    const pid_t child = fork();
    if (child == 0) {
        Recorder recorder(file, {});
        recorder.beginRun(synthetic::infoOf({}));
        (void)!write(ready[1], "x", 1);
        pause();
        _exit(0);
    }
    char byte = 0;
    ASSERT_EQ(read(ready[0], &byte, 1), 1);
    EXPECT_THAT(refusal(), HasSubstr("being written by another program (process " + std::to_string(child) + ")"));
    ASSERT_TRUE(fs::exists(file));
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    EXPECT_TRUE(fs::exists(file + "-lock"));
    EXPECT_EQ(refusal(), "") << "its writer is dead, whatever its heartbeat says";
    EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), {}), 1) << "one file, no lock left behind";
    for (const int end : ready) close(end);
}

TEST_F(Overwriting, IsRefusedWhileAnotherEnginesHeartbeatIsFresh) {
    synthetic::recordFile(file, {});
    const auto beat = [&](int secondsAgo) {
        const auto now =
            std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::system_clock::now().time_since_epoch())
                .count();
        change("UPDATE run SET status='running'; UPDATE health SET program='my engine 1.0', heartbeat_ms=" +
               std::to_string(now - 1000LL * secondsAgo));
    };
    beat(1);
    EXPECT_THAT(refusal(), HasSubstr("is being written by my engine 1.0"));
    EXPECT_EQ(TraceReader(file).steps(1).size(), 21u);
    beat(60);
    EXPECT_EQ(refusal(), "");
}

TEST_F(Overwriting, IsRefusedWhileSomebodyWritesADatabase) {
    change("CREATE TABLE accounts(id INTEGER); INSERT INTO accounts VALUES (1)");
    sqlite3* other = nullptr;
    ASSERT_EQ(sqlite3_open(file.c_str(), &other), SQLITE_OK);
    ASSERT_EQ(sqlite3_exec(other, "BEGIN IMMEDIATE; INSERT INTO accounts VALUES (2)", nullptr, nullptr, nullptr),
              SQLITE_OK);
    EXPECT_THAT(refusal(), HasSubstr("being written by another program"));
    ASSERT_EQ(sqlite3_exec(other, "COMMIT", nullptr, nullptr, nullptr), SQLITE_OK);
    sqlite3_close(other);
    EXPECT_EQ(test::value(file, "SELECT count(*) FROM accounts"), "2");
    EXPECT_EQ(refusal(), "");
}

class FileThatGoes : public Overwriting {
protected:
    /// What the recorder says after `happens` to its file in the middle of a run.
    RecorderHealth healthAfter(const std::function<void()>& happens) const {
        Recorder recorder(file, {});
        recorder.beginRun(synthetic::infoOf({}));
        synthetic::RunGenerator generator({});
        for (int i = 0; i < generator.steps(); ++i) {
            if (i == 10) {
                recorder.flush();
                happens();
            }
            generator.recordNext(recorder);
        }
        recorder.endRun(RunStatus::Finished, "");
        recorder.flush(); // the trace is complete, and the recorder still has it open
        return recorder.health();
    }
};

TEST_F(FileThatGoes, IsAnErrorOfTheRecordingWhenItWasDeleted) {
    const RecorderHealth health = healthAfter([&] { fs::remove(file); });
    EXPECT_THAT(health.error, HasSubstr(file + " was deleted, renamed or replaced"));
    EXPECT_TRUE(health.lost);
}

TEST_F(FileThatGoes, IsAnErrorOfTheRecordingWhenAnotherTookItsPlace) {
    const RecorderHealth health = healthAfter([&] {
        std::ofstream(file + ".new") << "another";
        fs::rename(file + ".new", file);
    });
    EXPECT_THAT(health.error, HasSubstr("was deleted, renamed or replaced"));
    EXPECT_TRUE(health.lost);
}

TEST_F(FileThatGoes, HoldsItsStepsUnderItsNewName) {
    const std::string moved = (folder / "elsewhere.kvtrace").string();
    for (const bool replaced : {false, true}) {
        const RecorderHealth health = healthAfter([&] {
            fs::rename(file, moved);
            if (replaced) std::ofstream(file) << "another";
        });
        EXPECT_THAT(health.error, HasSubstr(file + " was renamed to " + moved + " while it was recorded"));
        EXPECT_FALSE(health.lost);
        EXPECT_EQ(health.movedTo, moved);
        const TraceReader reader(moved);
        EXPECT_EQ(reader.steps(1).size(), 10u) << "those of before";
        EXPECT_EQ(reader.run(1)->status, RunStatus::Failed);
        EXPECT_THAT(reader.run(1)->error, HasSubstr("was renamed to"));
        fs::remove(moved);
        fs::remove(file);
    }
}

TEST_F(FileThatGoes, IsAnErrorOfTheRecordingWhenItWasTruncated) {
    for (const int size : {0, 1000, 16384}) {
        const RecorderHealth health = healthAfter([&] { fs::resize_file(file, std::uintmax_t(size)); });
        EXPECT_THAT(health.error, HasSubstr(file + " was truncated while it was recorded")) << size;
        EXPECT_THAT(health.error, HasSubstr("it has " + std::to_string(size)));
        EXPECT_TRUE(health.lost);
        fs::remove(file);
    }
}

TEST_F(FileThatGoes, IsNoneWhereNothingHappened) {
    const RecorderHealth health = healthAfter([] {});
    EXPECT_EQ(health.error, "");
    EXPECT_FALSE(health.lost);
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
