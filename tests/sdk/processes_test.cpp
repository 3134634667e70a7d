// Threads, forks and a kill: what reaches the file, and what is refused.
#include "tests/sdk/sdk_fixture.h"

#include <atomic>
#include <semaphore>
#include <thread>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using namespace test;
using ::testing::HasSubstr;

/// @return whether the step was committed
bool recordStep(kvtrace_run run, int i) {
    kvtrace_step step = 0;
    if (kvtrace_step_begin(run, KVTRACE_DECODE, 1, KVTRACE_NOW, &step) != KVTRACE_OK) return false;
    const std::vector<std::int32_t> ids{0, 1 + i % 6, 7};
    const std::vector<std::int64_t> positions{112};
    for (int layer = 0; layer < 2; ++layer) {
        const kvtrace_selection selection = selectionOf(ids, positions, layer, 1, KVTRACE_BLOCKS);
        if (kvtrace_step_select(step, &selection) != KVTRACE_OK) return false;
    }
    return kvtrace_step_commit(step, KVTRACE_NOW) == KVTRACE_OK;
}

class SdkThreads : public SdkTest {};
class SdkFork : public SdkTest {};
class SdkKill : public SdkTest {};

TEST_F(SdkThreads, StepsOfSeveralThreadsAreAllThereAndWhole) {
    const std::string file = path("threads.kvtrace");
    const kvtrace_writer writer = open(file);
    const kvtrace_run run = begin(writer, runOf(KVTRACE_KNOWS_SELECTIONS | KVTRACE_KNOWS_STEP_TIMES));
    std::atomic<int> failures{0};
    {
        std::vector<std::jthread> threads;
        for (int thread = 0; thread < 4; ++thread)
            threads.emplace_back([&] {
                for (int i = 0; i < 500; ++i) {
                    failures += !recordStep(run, i);
                    kvtrace_span(run, "engine", "work", i, 1, -1, -1, 0, -1);
                }
            });
    }
    EXPECT_EQ(failures, 0) << kvtrace_last_error();
    finish(writer, run);
    EXPECT_EQ(read(file, "steps")["step"].ints.size(), 2000U);
    EXPECT_EQ(read(file, "selections")["step"].ints.size(), 4000U);
    const Finished check = cli({"check", file});
    EXPECT_EQ(check.status, 0) << check.out;
}

TEST_F(SdkThreads, ClosingWhileOthersRecordRefusesThemAndBreaksNothing) {
    const std::string file = path("closed.kvtrace");
    const kvtrace_writer writer = open(file);
    const kvtrace_run run = begin(writer, runOf(KVTRACE_KNOWS_SELECTIONS));
    std::atomic<int> committed{0};
    std::vector<std::jthread> threads;
    for (int thread = 0; thread < 3; ++thread)
        threads.emplace_back([&] {
            while (recordStep(run, committed)) ++committed;
            EXPECT_THAT(kvtrace_last_error(), ::testing::AnyOf(HasSubstr("closed"), HasSubstr("ended")));
        });
    while (committed < 200) std::this_thread::yield();
    EXPECT_EQ(kvtrace_close(writer, 30000), KVTRACE_OK) << kvtrace_last_error();
    threads.clear();
    EXPECT_EQ(read(file, "steps")["step"].ints.size(), std::size_t(committed));
    expectGood(file);
}

TEST_F(SdkFork, AChildIsToldAndRecordsIntoAFileOfItsOwn) {
    const std::string file = path("parent.kvtrace"), childs = path("child-%p.kvtrace");
    const kvtrace_writer writer = open(file);
    const kvtrace_run run = begin(writer, runOf(KVTRACE_KNOWS_SELECTIONS));
    const kvtrace_step step = beginStep(run);
    // The thread records 200 steps around every fork, so that the file has the same size on every machine.
    constexpr int kForks = 8, kStepsPerFork = 200;
    std::counting_semaphore<kForks * kStepsPerFork> allowed(0);
    std::jthread busy([&] {
        for (int i = 0; i < kForks * kStepsPerFork; ++i) {
            allowed.acquire();
            recordStep(run, i);
        }
    });
    for (int repeat = 0; repeat < kForks; ++repeat) {
        allowed.release(kStepsPerFork);
        const pid_t child = fork();
        if (child == 0) {
            alarm(60); // a child that hangs fails the test
            const auto told = [](std::int32_t status) {
                return status == KVTRACE_FORKED &&
                       std::string(kvtrace_last_error()).find("forked") != std::string::npos;
            };
            kvtrace_step none = 0;
            kvtrace_writer same = 0;
            bool good = told(kvtrace_step_begin(run, KVTRACE_DECODE, 1, KVTRACE_NOW, &none)) &&
                        told(kvtrace_step_commit(step, KVTRACE_NOW)) &&
                        told(kvtrace_run_end(run, KVTRACE_FINISHED, nullptr)) && told(kvtrace_close(writer, 1000)) &&
                        told(kvtrace_open(file.c_str(), nullptr, &same));
            const kvtrace_writer own = open(childs);
            const kvtrace_run ownRun = begin(own, runOf(KVTRACE_KNOWS_SELECTIONS));
            for (int i = 0; i < 10; ++i) good = good && recordStep(ownRun, i);
            good = good && kvtrace_run_end(ownRun, KVTRACE_FINISHED, nullptr) == KVTRACE_OK &&
                   kvtrace_close(own, 30000) == KVTRACE_OK;
            _exit(good ? 0 : 1);
        }
        int status = 0;
        EXPECT_EQ(waitpid(child, &status, 0), child);
        EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
        expectStepsOf(path(fmt::format("child-{}.kvtrace", child)), 10);
    }
    busy.join();
    EXPECT_EQ(kvtrace_step_commit(step, KVTRACE_NOW), KVTRACE_OK) << kvtrace_last_error();
    finish(writer, run);
    const Finished check = cli({"check", file});
    EXPECT_EQ(check.status, 0) << check.out;
}

/// As a server's workers do that were forked while it recorded.
TEST_F(SdkKill, AChildThatOutlivesAKilledParentKeepsNoLock) {
    const std::string file = path("orphan.kvtrace");
    std::array<int, 2> said{}, stays{};
    ASSERT_EQ(pipe(said.data()) + pipe(stays.data()), 0);
    const pid_t parent = fork();
    if (parent == 0) {
        const kvtrace_writer writer = open(file);
        const kvtrace_run run = begin(writer, runOf(KVTRACE_KNOWS_SELECTIONS));
        const bool recorded = recordStep(run, 1) && kvtrace_flush(writer, 30000) == KVTRACE_OK;
        const pid_t child = fork();
        char byte = recorded ? 1 : 0;
        close(stays[1]);
        if (child == 0) { // it has run, so it has left the parent's files, and stays until the test closes its end
            if (write(said[1], &byte, 1) < 0) _exit(1);
            _exit(::read(stays[0], &byte, 1) < 0 ? 1 : 0);
        }
        pause();
    }
    char recorded = 0;
    ASSERT_EQ(::read(said[0], &recorded, 1), 1);
    EXPECT_EQ(recorded, 1);
    kill(parent, SIGKILL);
    waitpid(parent, nullptr, 0);
    const kvtrace_writer again = open(file); // while the child lives
    finish(again, begin(again, runOf(0)));
    for (const int descriptor : {said[0], said[1], stays[0], stays[1]}) close(descriptor);
    expectStepsOf(file, 1);
}

TEST_F(SdkKill, AKilledProcessLosesTheLastBatchAtMost) {
    for (int repeat = 0; repeat < 6; ++repeat) {
        const std::string file = path(fmt::format("killed{}.kvtrace", repeat));
        std::array<int, 2> ends{};
        ASSERT_EQ(pipe(ends.data()), 0);
        const pid_t child = fork();
        if (child == 0) {
            const kvtrace_writer writer = open(file);
            const kvtrace_run run = begin(writer, runOf(KVTRACE_KNOWS_SELECTIONS));
            for (std::int32_t i = 1;; ++i) {
                if (!recordStep(run, i)) _exit(1);
                const std::array<std::int64_t, 2> said{i, std::chrono::steady_clock::now().time_since_epoch().count()};
                if (write(ends[1], said.data(), sizeof said) < 0) _exit(1);
                usleep(500);
            }
        }
        close(ends[1]);
        std::vector<std::array<std::int64_t, 2>> said;
        std::array<std::int64_t, 2> one{};
        const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(700 + 170 * repeat);
        while (std::chrono::steady_clock::now() < until && ::read(ends[0], one.data(), sizeof one) == sizeof one)
            said.push_back(one);
        kill(child, SIGKILL);
        const std::int64_t killed = std::chrono::steady_clock::now().time_since_epoch().count();
        int status = 0;
        waitpid(child, &status, 0);
        close(ends[0]);
        ASSERT_TRUE(WIFSIGNALED(status)) << status;
        const std::int64_t inFile = std::int64_t(SdkTest::read(file, "steps")["step"].ints.size());
        std::int64_t due = 0; // committed a second before the kill, or earlier
        for (const auto& [step, at] : said)
            if (killed - at > 1'000'000'000) due = step;
        EXPECT_GE(inFile, due);
        EXPECT_GT(inFile, 0);
        const Finished check = cli({"check", file});
        EXPECT_EQ(check.status, 0) << check.out;
        EXPECT_EQ(cli({"info", file}).status, 0);
        const kvtrace_writer again = open(file); // the file takes another run
        finish(again, begin(again, runOf(0)));
    }
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
