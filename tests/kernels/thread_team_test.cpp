#include "kernels/cpu/thread_team.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <mutex>
#include <optional>
#include <random>
#include <string>

namespace kvscope::cpu {
namespace KVSCOPE_TEST_FILE {

constexpr std::array kTeamSizes{1, 2, 3, 4, 7};

int cores() { return std::max(1, int(std::thread::hardware_concurrency())); }

TEST(ThreadTeam, HasTheThreadsItWasAskedFor) {
    for (const int threads : {1, 2, 3, 17}) EXPECT_EQ(ThreadTeam(threads).threads(), threads);
    EXPECT_GE(ThreadTeam(0).threads(), 1);
}

TEST(ThreadTeam, TakesItsSizeFromTheEnvironmentWhenNotTold) {
    const char* outside = std::getenv("KVSCOPE_THREADS");
    const std::optional<std::string> before = outside ? std::optional<std::string>(outside) : std::nullopt;
    unsetenv("KVSCOPE_THREADS");
    const int usual = ThreadTeam(0).threads();
    setenv("KVSCOPE_THREADS", "3", 1);
    EXPECT_EQ(ThreadTeam(0).threads(), 3);
    EXPECT_EQ(ThreadTeam(2).threads(), 2) << "an explicit number wins";
    for (const char* nonsense : {"", "0", "-4", "many", "100000"}) {
        setenv("KVSCOPE_THREADS", nonsense, 1);
        EXPECT_EQ(ThreadTeam(0).threads(), usual) << nonsense;
    }
    if (before)
        setenv("KVSCOPE_THREADS", before->c_str(), 1);
    else
        unsetenv("KVSCOPE_THREADS");
}

TEST(ThreadTeam, EachVisitsEveryIndexOnce) {
    for (const int threads : kTeamSizes) {
        ThreadTeam team(threads);
        for (const int n : {-1, 0, 1, 2, 3, 4, 5, 7, 8, 31, 64, 100, 1000, 65535, 65536, 65537, 150000}) {
            std::vector<int> visits(std::size_t(std::max(n, 0)), 0), owner(visits.size(), -1);
            team.each(n, [&](int i, int thread) { // plain ints: the end of each() must publish what the workers wrote
                ++visits[std::size_t(i)];
                owner[std::size_t(i)] = thread;
            });
            ASSERT_EQ(std::count(visits.begin(), visits.end(), 1), std::max(n, 0)) << n << ", " << threads;
            for (const int thread : owner) ASSERT_TRUE(thread >= 0 && thread < threads);
        }
    }
}

TEST(ThreadTeam, NeverRunsTwoPiecesAtOnceUnderOneThreadNumber) {
    ThreadTeam team(5);
    std::array<std::atomic<int>, 5> inside{};
    std::atomic<int> collisions = 0;
    for (int round = 0; round < 300; ++round)
        team.each(40, [&](int, int thread) {
            if (inside[std::size_t(thread)].fetch_add(1) != 0) ++collisions;
            for (int turn = 0; turn < 50; ++turn) inside[std::size_t(thread)].load(); // stay inside a while
            inside[std::size_t(thread)].fetch_sub(1);
        });
    EXPECT_EQ(collisions, 0);
}

TEST(ThreadTeam, SplitCoversEveryIndexOnceInPiecesOfWholeGrains) {
    std::mt19937 random(73);
    for (const int threads : kTeamSizes) {
        ThreadTeam team(threads);
        for (int round = 0; round < 120; ++round) {
            const std::int64_t n = round < 40 ? round : std::int64_t(random() % 20000),
                               grain = round % 3 == 0 ? 1 : 1 + std::int64_t(random() % 100);
            std::vector<int> visits(std::size_t(n), 0);
            std::mutex mutex;
            std::vector<std::pair<std::int64_t, std::int64_t>> pieces;
            team.split(n, grain, [&](std::int64_t begin, std::int64_t end) {
                for (std::int64_t i = begin; i < end; ++i) ++visits[std::size_t(i)];
                const std::lock_guard lock(mutex);
                pieces.emplace_back(begin, end);
            });
            ASSERT_EQ(std::count(visits.begin(), visits.end(), 1), n) << n << " by " << grain;
            ASSERT_LE(int(pieces.size()), 4 * threads);
            for (const auto& [begin, end] : pieces) {
                ASSERT_LT(begin, end) << "an empty piece";
                ASSERT_EQ(begin % grain, 0);
                ASSERT_TRUE(end % grain == 0 || end == n) << end << " of " << n << " by " << grain;
            }
        }
    }
}

TEST(ThreadTeam, SplitDoesNothingForNothing) {
    ThreadTeam team(3);
    team.split(0, 16, [](std::int64_t, std::int64_t) { FAIL(); });
    team.split(-5, 16, [](std::int64_t, std::int64_t) { FAIL(); });
}

TEST(ThreadTeam, SplitHandlesCountsBeyondThirtyTwoBits) {
    ThreadTeam team(3);
    constexpr std::int64_t kMany = (std::int64_t(1) << 33) + 5;
    std::atomic<std::int64_t> covered = 0;
    team.split(kMany, 64, [&](std::int64_t begin, std::int64_t end) { covered += end - begin; });
    EXPECT_EQ(covered, kMany);
}

TEST(ThreadTeam, FinishesAHundredThousandSmallJobsOnTheCoresThereAre) {
    ThreadTeam team(std::min(cores(), 4));
    std::array<std::int64_t, 8> sums{};
    for (int job = 0; job < 100000; ++job) {
        const int n = 1 + job % int(sums.size());
        team.each(n, [&](int i, int) { sums[std::size_t(i)] += job; });
        if (job % 500 == 0 && team.threads() > 1) { // a meeting, so that the workers are awake for the jobs that follow
            std::atomic<int> inside = 0;
            team.each(2, [&](int, int) {
                ++inside;
                while (inside < 2) std::this_thread::yield();
            });
        }
    }
    for (std::size_t i = 0; i < sums.size(); ++i) {
        std::int64_t expected = 0;
        for (int job = 0; job < 100000; ++job)
            if (int(i) < 1 + job % int(sums.size())) expected += job;
        EXPECT_EQ(sums[i], expected) << "index " << i;
    }
}

TEST(ThreadTeam, FinishesManyJobsWithMoreThreadsThanCores) {
    ThreadTeam team(4 * cores() + 1);
    std::vector<std::int64_t> sums(64, 0);
    constexpr int kJobs = 3000;
    for (int job = 0; job < kJobs; ++job) team.each(64, [&](int i, int) { sums[std::size_t(i)] += job; });
    EXPECT_THAT(sums, ::testing::Each(std::int64_t(kJobs) * (kJobs - 1) / 2));
}

TEST(ThreadTeam, GivesTheSameResultWhateverTheNumberOfThreads) {
    std::vector<double> expected;
    for (const int threads : kTeamSizes) {
        ThreadTeam team(threads);
        std::vector<double> values(5000, 1.);
        for (int round = 0; round < 20; ++round)
            team.each(int(values.size()), [&](int i, int) { values[std::size_t(i)] *= 1. + i * 1e-5; });
        if (expected.empty()) expected = values;
        EXPECT_EQ(values, expected);
    }
}

TEST(ThreadTeam, LetsWorkersHelpWithLongPieces) {
    // Every piece waits until two threads are inside: finishing at all shows that a worker took part.
    ThreadTeam team(2);
    for (int round = 0; round < 20; ++round) {
        std::atomic<int> inside = 0;
        std::array<int, 2> owner{-1, -1};
        team.each(2, [&](int i, int thread) {
            owner[std::size_t(i)] = thread;
            ++inside;
            while (inside < 2) std::this_thread::yield();
        });
        EXPECT_NE(owner[0], owner[1]);
    }
}

TEST(ThreadTeam, WakesWorkersThatHaveFallenAsleep) {
    for (const int threads : {2, 3, 3 * cores()}) { // with spinning workers and with workers that sleep at once
        ThreadTeam team(threads);
        for (int round = 0; round < 10; ++round) {
            // Longer than a worker spins, without sleeping ourselves.
            const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(2);
            while (std::chrono::steady_clock::now() < until) std::this_thread::yield();
            std::atomic<int> inside = 0;
            team.each(2, [&](int, int) {
                ++inside;
                while (inside < 2) std::this_thread::yield();
            });
            EXPECT_EQ(inside, 2);
        }
    }
}

TEST(ThreadTeam, CanBeDestroyedIdleUnusedAndRightAfterAJob) {
    for (int round = 0; round < 200; ++round) {
        ThreadTeam unused(1 + round % 5);
        ThreadTeam used(1 + round % 4);
        int visits[8] = {};
        used.each(8, [&](int i, int) { ++visits[i]; });
        EXPECT_THAT(visits, ::testing::Each(1));
    }
    for (const int threads : {2, 4 * cores()}) { // long enough idle that the workers have gone to sleep
        ThreadTeam idle(threads);
        const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(5);
        while (std::chrono::steady_clock::now() < until) std::this_thread::yield();
    }
}

TEST(ThreadTeam, LetsSeveralTeamsWorkAtOnce) {
    std::vector<std::thread> callers;
    std::atomic<std::int64_t> total = 0;
    for (int caller = 0; caller < 3; ++caller)
        callers.emplace_back([&total] {
            ThreadTeam team(3);
            for (int job = 0; job < 500; ++job) team.each(10, [&](int i, int) { total += i; });
        });
    for (auto& caller : callers) caller.join();
    EXPECT_EQ(total, 3 * 500 * 45);
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::cpu
