// Killed recorders, full disks and folders that cannot be written.
#include "base/error.h"
#include "profiler/merge/merge.h"
#include "profiler/read/trace_reader.h"
#include "profiler/record/recorder.h"
#include "profiler/sqlite/sqlite.h"
#include "tests/profiler/synthetic_run.h"
#include "tests/profiler/temporary_folder.h"
#include "tests/support/packed_blocks.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <functional>
#include <gmock/gmock.h>
#include <random>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using synthetic::RunShape;
using testing::HasSubstr;

std::int64_t nowNs() { // the same clock in parent and child
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return std::int64_t(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

struct Stamp {
    std::int64_t step, timeNs;
};

/// A child process that runs `work` with the writing end of a pipe and then leaves without any clean-up.
struct Child {
    pid_t pid = -1;
    int pipe = -1;
};

Child startChild(const std::function<void(int)>& work) {
    std::array<int, 2> ends{};
    if (::pipe(ends.data()) != 0) return {};
    std::fflush(nullptr); // else the child would print the parent's buffered output once more
    const pid_t pid = fork();
    if (pid == 0) {
        close(ends[0]);
        work(ends[1]);
        _exit(0);
    }
    close(ends[1]);
    return {pid, ends[0]};
}

std::string readAll(int pipe) {
    std::string all;
    std::array<char, 4096> buffer{};
    for (ssize_t got; (got = read(pipe, buffer.data(), buffer.size())) > 0;)
        all.append(buffer.data(), std::size_t(got));
    close(pipe);
    return all;
}

RunShape killedShape(std::uint64_t seed) {
    RunShape shape;
    shape.layers = 8;
    shape.seed = seed;
    shape.decodeSteps = 100000;
    return shape;
}

/// A step per millisecond, each told to the parent with the time it was handed over.
void recordForEver(const std::string& file, const RunShape& shape, int pipe) {
    Recorder recorder(file, {});
    recorder.beginRun(synthetic::infoOf(shape));
    synthetic::RunGenerator generator(shape);
    auto due = std::chrono::steady_clock::now();
    for (int step = 0; step < generator.steps(); ++step) {
        generator.recordNext(recorder);
        const Stamp stamp{step, nowNs()};
        if (write(pipe, &stamp, sizeof stamp) != sizeof stamp) return;
        std::this_thread::sleep_until(due += std::chrono::milliseconds(1));
    }
}

TEST(KilledRecorder, LosesAtMostTheLastSecondAtFiftyRandomMoments) {
    constexpr int kKills = 50, kAtOnce = 5;
    test::Folder folder;
    std::mt19937 random(3);
    int longEnough = 0;
    for (int first = 0; first < kKills; first += kAtOnce) {
        struct Victim {
            Child child;
            std::string file;
            RunShape shape;
            std::int64_t killAtNs = 0;
            Stamp start{};
        };
        std::vector<Victim> victims;
        for (int i = 0; i < kAtOnce; ++i) {
            Victim victim;
            victim.file = (folder / ("killed" + std::to_string(first + i) + ".kvtrace")).string();
            victim.shape = killedShape(std::uint64_t(first + i));
            victim.child = startChild([&](int pipe) { recordForEver(victim.file, victim.shape, pipe); });
            ASSERT_GT(victim.child.pid, 0);
            victims.push_back(victim);
        }
        for (Victim& victim : victims) {
            ASSERT_EQ(read(victim.child.pipe, &victim.start, sizeof victim.start), ssize_t(sizeof victim.start));
            victim.killAtNs = victim.start.timeNs + 200'000'000 + std::int64_t(random() % 2300) * 1'000'000;
        }
        std::sort(victims.begin(), victims.end(),
                  [](const Victim& a, const Victim& b) { return a.killAtNs < b.killAtNs; });
        for (Victim& victim : victims) {
            if (const std::int64_t wait = victim.killAtNs - nowNs(); wait > 0)
                std::this_thread::sleep_for(std::chrono::nanoseconds(wait));
            victim.killAtNs = nowNs();
            ASSERT_EQ(kill(victim.child.pid, SIGKILL), 0);
            ASSERT_EQ(waitpid(victim.child.pid, nullptr, 0), victim.child.pid);
        }
        for (const Victim& victim : victims) {
            const std::string stamps = readAll(victim.child.pipe);
            std::int64_t wanted =
                victim.killAtNs - victim.start.timeNs > 1'000'000'000 ? 1 : 0; // steps that must be there
            for (std::size_t at = 0; at + sizeof(Stamp) <= stamps.size(); at += sizeof(Stamp)) {
                Stamp stamp{};
                std::memcpy(&stamp, stamps.data() + at, sizeof stamp);
                if (victim.killAtNs - stamp.timeNs > 1'000'000'000) wanted = stamp.step + 1;
            }
            longEnough += wanted > 100;
            TraceReader reader(victim.file);
            ASSERT_EQ(reader.runs().size(), 1u);
            EXPECT_EQ(reader.run(1)->status, RunStatus::Running);
            const auto steps = reader.steps(1);
            ASSERT_GE(std::int64_t(steps.size()), wanted);
            // What is there is whole and right, and no step is missing in between.
            synthetic::RunGenerator generator(victim.shape);
            StepRecord record;
            for (std::size_t i = 0; i < steps.size(); ++i) {
                record.clear();
                generator.fillNext(record, RecordLevel::Full);
                ASSERT_EQ(steps[i].step, int(i));
                ASSERT_EQ(steps[i].durationNs, record.durationNs);
                if (i % 97 != 1) continue;
                const auto row = reader.selection(1, int(i), 7, 0, 1);
                ASSERT_TRUE(row.has_value());
                const SelectionRecord& last = record.selections.back();
                ASSERT_EQ(test::idsOf(row->blocks), test::idsOf(record, last));
                ASSERT_EQ(reader.layers(1, int(i)).size(), 8u);
            }
        }
    }
    EXPECT_GT(longEnough, 10); // so many recorders were killed late enough for the promise to count
}

TEST(KilledRecorder, LeavesATraceThatTakesAnotherRun) {
    test::Folder folder;
    const std::string file = (folder / "killed.kvtrace").string();
    const Child child = startChild([&](int pipe) { recordForEver(file, killedShape(1), pipe); });
    Stamp stamp{};
    do {
        ASSERT_EQ(read(child.pipe, &stamp, sizeof stamp), ssize_t(sizeof stamp));
    } while (stamp.step < 400);
    kill(child.pid, SIGKILL);
    waitpid(child.pid, nullptr, 0);
    close(child.pipe);
    const int kept = TraceReader(file).stepCount(1);
    EXPECT_GT(kept, 0);
    synthetic::recordFile(file, {});
    TraceReader reader(file);
    EXPECT_EQ(reader.stepCount(1), kept);
    EXPECT_EQ(reader.stepCount(2), 21);
}

/// Runs `work` in a child and returns what it wrote into the pipe.
std::string inChild(const std::function<std::string()>& work) {
    const Child child = startChild([&](int pipe) {
        const std::string answer = work();
        if (write(pipe, answer.data(), answer.size()) != ssize_t(answer.size())) _exit(1);
    });
    const std::string answer = readAll(child.pipe);
    int status = 0;
    waitpid(child.pid, &status, 0);
    return status == 0 ? answer : "the child died with status " + std::to_string(status);
}

TEST(UnfinishedTrace, OpensInAFolderThatCannotBeWritten) {
    test::Folder folder;
    const std::filesystem::path place = folder / "place";
    std::filesystem::create_directory(place);
    const std::string file = (place / "left.kvtrace").string();
    inChild([&] { // leaves like a killed process, without closing anything
        auto* recorder = new Recorder(file, {});
        synthetic::record(*recorder, {});
        recorder->flush();
        return std::string();
    });
    ASSERT_GT(std::filesystem::file_size(file + "-wal"), 0u);
    std::filesystem::remove(file + "-shm");
    using std::filesystem::perms;
    std::filesystem::permissions(folder.path(), perms(0755));
    std::filesystem::permissions(place, perms(0555));
    const std::string answer = inChild([&] {
        if (geteuid() == 0 && setuid(65534) != 0) return std::string("cannot become another user");
        try {
            TraceReader reader(file);
            return std::to_string(reader.steps(1).size()) + " steps, " +
                   std::to_string(reader.selections(1, 2, 0, 1).size());
        } catch (const Error& error) {
            return oneLine(error);
        }
    });
    std::filesystem::permissions(place, perms(0755));
    EXPECT_EQ(answer, "21 steps, 20");
    for (const auto& entry : std::filesystem::directory_iterator(place))
        EXPECT_NE(entry.path().string(), file + "-shm");
}

TEST(FinishedTrace, OpensInAFolderThatCannotBeWrittenEvenInLogMode) {
    test::Folder folder;
    const std::filesystem::path place = folder / "place";
    std::filesystem::create_directory(place);
    const std::string file = (place / "log mode%20#.kvtrace").string();
    {
        Recorder recorder(file, {});
        synthetic::record(recorder, {});
        recorder.flush();
        TraceReader reader(file); // keeps the recorder from leaving log mode
        ASSERT_EQ(reader.stepCount(1), 21);
        recorder.endRun(RunStatus::Finished, "");
    }
    using std::filesystem::perms;
    std::filesystem::permissions(folder.path(), perms(0755));
    std::filesystem::permissions(place, perms(0555));
    const std::string answer = inChild([&] {
        if (geteuid() == 0 && setuid(65534) != 0) return std::string("cannot become another user");
        try {
            return std::to_string(TraceReader(file).steps(1).size()) + " steps";
        } catch (const Error& error) {
            return oneLine(error);
        }
    });
    std::filesystem::permissions(place, perms(0755));
    EXPECT_EQ(answer, "21 steps");
}

/// A child begins to change a finished trace and leaves like a killed process when a part of it is in the file.
void leaveAChange(const std::string& file) {
    inChild([&] {
        auto* connection = new Connection(file, Connection::Mode::ReadWrite); // stays open
        connection->execute("PRAGMA cache_size=1; BEGIN; UPDATE run SET name='changed'; UPDATE step SET tokens=77;"
                            "UPDATE layer_step SET misses=misses+1; UPDATE selection SET misses=misses+1");
        return std::string();
    });
    ASSERT_GT(std::filesystem::file_size(file + "-journal"), 0u);
    ASSERT_EQ(Connection(file, Connection::Mode::Immutable).integer("SELECT max(tokens) FROM step"), 77); // half of it
}

/// What is read of a trace that leaveAChange has changed, as nobody who may write to it.
std::string readWithoutRights(const std::string& file) {
    return inChild([&] {
        if (geteuid() == 0 && setuid(65534) != 0) return std::string("cannot become another user");
        try {
            const TraceReader reader(file);
            return reader.runs().front().name + ", " + std::to_string(reader.steps(1)[3].tokens) + " tokens";
        } catch (const Error& error) {
            return oneLine(error);
        }
    });
}

TEST(ChangedTrace, IsReadAsItWasWhenItsWriterWasKilled) {
    test::Folder folder;
    const std::string file = folder / "changed.kvtrace";
    synthetic::record(*std::make_unique<Recorder>(file, RecorderOptions{}), {});
    const std::string name = TraceReader(file).runs().front().name;
    leaveAChange(file);
    const TraceReader reader(file);
    EXPECT_EQ(reader.runs().front().name, name);
    EXPECT_EQ(reader.steps(1)[3].tokens, 1);
    EXPECT_FALSE(std::filesystem::exists(file + "-journal"));
}

TEST(ChangedTrace, IsReadAsItWasWhereItCannotBeWritten) {
    test::Folder folder;
    const std::filesystem::path place = folder / "place";
    std::filesystem::create_directory(place);
    const std::string file = (place / "changed.kvtrace").string();
    synthetic::record(*std::make_unique<Recorder>(file, RecorderOptions{}), {});
    const std::string name = TraceReader(file).runs().front().name;
    leaveAChange(file);
    using std::filesystem::perms;
    std::filesystem::permissions(folder.path(), perms(0755));
    for (const char* suffix : {"", "-journal"}) std::filesystem::permissions(file + suffix, perms(0444));
    std::filesystem::permissions(place, perms(0555));
    EXPECT_EQ(readWithoutRights(file), name + ", 1 tokens");
    std::filesystem::permissions(place, perms(0755));
    EXPECT_TRUE(std::filesystem::exists(file + "-journal"));
}

TEST(UnreadableTrace, IsNotCalledAnythingElse) {
    test::Folder folder;
    const std::filesystem::path place = folder / "place";
    std::filesystem::create_directory(place);
    const std::string file = (place / "own.kvtrace").string();
    synthetic::record(*std::make_unique<Recorder>(file, RecorderOptions{}), {});
    using std::filesystem::perms;
    std::filesystem::permissions(folder.path(), perms(0755));
    std::filesystem::permissions(file, perms(0000));
    std::filesystem::permissions(place, perms(0555));
    const auto asNobody = [](const std::function<void()>& work) {
        return inChild([&] {
            if (geteuid() == 0 && setuid(65534) != 0) return std::string("cannot become another user");
            try {
                work();
                return std::string("nothing was refused");
            } catch (const Error& error) {
                return oneLine(error);
            }
        });
    };
    EXPECT_THAT(asNobody([&] { mergeTraces({file}, (place / "merged.kvtrace").string(), false, {}); }),
                HasSubstr("own.kvtrace cannot be read: permission denied"));
    EXPECT_THAT(asNobody([&] { Recorder((place / "new.kvtrace").string(), {}); }),
                HasSubstr("new.kvtrace cannot be opened: Permission denied"));
    std::filesystem::permissions(place, perms(0755));
}

TEST(OpenFiles, TooManyAreSaidToBeTheReason) {
    test::Folder folder;
    const std::string said = inChild([&] {
        const int lowest = dup(0); // as many files as are open, and no more
        close(lowest);
        rlimit files{};
        getrlimit(RLIMIT_NOFILE, &files);
        files.rlim_cur = rlim_t(lowest);
        setrlimit(RLIMIT_NOFILE, &files);
        try {
            Recorder((folder / "new.kvtrace").string(), {});
            return std::string("nothing was refused");
        } catch (const Error& error) {
            return oneLine(error);
        }
    });
    EXPECT_THAT(said,
                HasSubstr("new.kvtrace cannot be opened: Too many open files; allow more open files (ulimit -n)"));
}

/// Records until the storage gives up. @return the recorder's error, and what a reader then finds
std::string recordUntilFull(const std::string& file, int& recorded) {
    RunShape shape = killedShape(9);
    Recorder recorder(file, {});
    recorder.beginRun(synthetic::infoOf(shape));
    synthetic::RunGenerator generator(shape);
    recorded = 0;
    while (recorder.health().error.empty() && recorded < 20000) {
        generator.recordNext(recorder);
        if (++recorded % 10 == 0) recorder.flush();
    }
    // The engine goes on, and nothing it does fails.
    generator.recordNext(recorder, 100);
    recorder.endRun(RunStatus::Finished, "");
    recorder.flush();
    const RecorderHealth health = recorder.health();
    return health.droppedSteps >= 100 ? health.error : "dropped " + std::to_string(health.droppedSteps);
}

TEST(FullDisk, StopsRecordingAndKeepsEarlierSteps) {
    test::Folder folder;
    const std::string file = (folder / "full.kvtrace").string();
    const std::string answer = inChild([&] {
        std::signal(SIGXFSZ, SIG_IGN);
        const rlimit limit{2 << 20, 2 << 20};
        if (setrlimit(RLIMIT_FSIZE, &limit) != 0) return std::string("no limit");
        int recorded = 0;
        return std::to_string(recorded) + recordUntilFull(file, recorded);
    });
    EXPECT_THAT(answer, HasSubstr(file));
    TraceReader reader(file);
    EXPECT_EQ(reader.run(1)->status, RunStatus::Failed);
    EXPECT_THAT(reader.run(1)->error, HasSubstr(file));
    const auto steps = reader.steps(1);
    EXPECT_GT(steps.size(), 100u);
    for (std::size_t i = 0; i < steps.size(); ++i) ASSERT_EQ(steps[i].step, int(i));
    EXPECT_EQ(reader.selections(1, 3, 0, 0).size(), steps.size() - 1);
}

TEST(FullDisk, IsNamedAsSuchOnASmallFileSystem) {
    test::Folder folder;
    const std::filesystem::path disk = folder / "disk";
    std::filesystem::create_directory(disk);
    if (mount("tmpfs", disk.c_str(), "tmpfs", 0, "size=4m") != 0) GTEST_SKIP() << "a tmpfs can only be mounted by root";
    const std::string file = (disk / "full.kvtrace").string();
    int recorded = 0;
    std::string error, opening;
    std::size_t steps = 0, selections = 0;
    std::string status, told;
    try {
        error = recordUntilFull(file, recorded);
        TraceReader reader(file);
        status = reader.run(1)->status.text();
        told = reader.run(1)->error;
        steps = reader.steps(1).size();
        selections = reader.selections(1, 3, 0, 0).size();
    } catch (const Error& trouble) {
        opening = oneLine(trouble);
    }
    umount2(disk.c_str(), MNT_DETACH);
    EXPECT_EQ(opening, "");
    EXPECT_EQ(status, "failed");
    EXPECT_EQ(told, error);
    EXPECT_THAT(error, HasSubstr("the disk is full: " + file + " cannot grow"));
    EXPECT_GT(steps, 100u);
    EXPECT_EQ(selections, steps - 1);
    EXPECT_LT(recorded, 20000);
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
