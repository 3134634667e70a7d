// The numbers behind the figures of the papers, against brute force over random runs.
#include "profiler/read/active_sets.h"
#include "profiler/read/served_load.h"
#include "profiler/read/token_changes.h"
#include "profiler/read/window_overlap.h"
#include "tests/profiler/sql_rows.h"
#include "tests/profiler/synthetic_denoise.h"
#include "tests/profiler/temporary_folder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <map>
#include <random>
#include <set>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using Pool = std::vector<std::set<std::int32_t>>; // what each step selected

/// Counts every window of every step anew.
WindowOverlap countedAnew(const std::vector<Pool>& pools, int longest) {
    WindowOverlap sums(longest);
    for (const Pool& pool : pools)
        for (std::size_t step = 0; step < pool.size(); ++step) {
            if (step > 0) sums.blocks += std::int64_t(pool[step].size());
            for (std::size_t w = 1; w <= std::size_t(longest); ++w) {
                WindowOverlap::Window& window = sums.windows[w - 1];
                std::set<std::int32_t> before, held;
                for (std::size_t back = 1; back <= std::min(w, step); ++back)
                    before.insert(pool[step - back].begin(), pool[step - back].end());
                for (const std::int32_t block : pool[step]) window.found += std::int64_t(before.count(block));
                if (step + 1 < w) continue;
                for (std::size_t back = 0; back < w; ++back)
                    held.insert(pool[step - back].begin(), pool[step - back].end());
                ++window.steps;
                window.held += std::int64_t(held.size());
                window.last += std::int64_t(pool[step].size());
            }
        }
    return sums;
}

TEST(WindowOverlapTest, EveryWindowIsWhatSetsSay) {
    std::mt19937 random(7);
    for (int trial = 0; trial < 60; ++trial) {
        const int longest = 1 + int(random() % 9);
        std::vector<Pool> pools(1 + random() % 3);
        WindowOverlap sums(longest);
        for (Pool& pool : pools) {
            WindowCounter counter;
            const std::size_t steps = random() % 30;
            const unsigned limit = 2 + random() % 20;
            for (std::size_t step = 0; step < steps; ++step) {
                std::set<std::int32_t>& ids = pool.emplace_back();
                for (unsigned i = random() % 6; i > 0; --i) ids.insert(std::int32_t(random() % limit));
                counter.add(std::vector<std::int32_t>(ids.begin(), ids.end()), sums);
            }
        }
        const WindowOverlap wanted = countedAnew(pools, longest);
        EXPECT_EQ(sums.blocks, wanted.blocks);
        for (std::size_t w = 0; w < sums.windows.size(); ++w) {
            SCOPED_TRACE(fmt::format("trial {}, window {} of {}", trial, w + 1, longest));
            EXPECT_EQ(sums.windows[w].found, wanted.windows[w].found);
            EXPECT_EQ(sums.windows[w].steps, wanted.windows[w].steps);
            EXPECT_EQ(sums.windows[w].held, wanted.windows[w].held);
            EXPECT_EQ(sums.windows[w].last, wanted.windows[w].last);
        }
    }
}

TEST(WindowOverlapTest, StepsThatSelectTheSameShareEverything) {
    WindowOverlap sums(4);
    WindowCounter counter;
    for (int step = 0; step < 6; ++step) counter.add(std::vector<std::int32_t>{3, 8}, sums);
    for (int w = 1; w <= 4; ++w) {
        EXPECT_EQ(sums.overlap(w), 1);
        EXPECT_EQ(sums.workingSet(w), 1);
        EXPECT_EQ(sums.heldByPool(w), 2);
    }
    EXPECT_TRUE(std::isnan(WindowOverlap(1).overlap(1))) << "nothing is known of no steps";
}

TEST(ChangeRankerTest, RanksAreWhatSortingSays) {
    std::mt19937 random(11);
    ChangeRanker ranker;
    std::vector<double> share(8);
    double halves = 0;
    const int forwards = 40;
    for (int forward = 0; forward < forwards; ++forward) {
        std::vector<float> changes;
        for (int token = 0; token < 8; ++token) changes.push_back(float(random() % 1000) / 100);
        ranker.add(changes);
        std::sort(changes.rbegin(), changes.rend());
        double whole = 0, sum = 0;
        for (const float change : changes) whole += double(change);
        int needed = 0;
        while (sum < whole / 2) sum += double(changes[std::size_t(needed++)]);
        halves += needed;
        for (std::size_t rank = 0; rank < 8; ++rank) share[rank] += double(changes[rank]) / whole;
    }
    ranker.add(std::vector<float>(8, 0.f)); // no token changed: no shares
    ranker.add({});
    const ChangeRanks ranks = ranker.ranks(3);
    EXPECT_EQ(ranks.layer, 3);
    EXPECT_EQ(ranks.forwards, forwards);
    EXPECT_NEAR(ranks.forHalf, halves / forwards, 1e-12);
    double cumulated = 0;
    for (std::size_t rank = 0; rank < 8; ++rank) {
        EXPECT_NEAR(ranks.share[rank], share[rank] / forwards, 1e-12);
        cumulated += ranks.share[rank];
        EXPECT_NEAR(ranks.cumulated(int(rank) + 1), cumulated, 1e-12);
    }
    EXPECT_NEAR(cumulated, 1, 1e-12);
    EXPECT_EQ(ranks.cumulated(0), 0);
    EXPECT_EQ(ranks.cumulated(99), ranks.cumulated(8));
}

TEST(ActiveSetsTest, SizesAreThoseOfTheRows) {
    test::Folder folder;
    const std::string file = (folder / "run.kvtrace").string();
    synthetic::recordDenoising(file, {.layers = 3, .decodeSteps = 30});
    const TraceReader reader(file);
    const std::vector<ActiveSets> sets = readActiveSets(reader, 1);
    const auto rows = test::sql(file, "SELECT active, count(*), avg(pages), avg(density) FROM v_denoise_layer WHERE"
                                      " mode = 'sparse' GROUP BY active ORDER BY active")
                          .rows;
    ASSERT_EQ(sets.size(), rows.size());
    ASSERT_GT(sets.size(), 1U);
    for (std::size_t i = 0; i < sets.size(); ++i) {
        EXPECT_EQ(std::to_string(sets[i].active), rows[i][0]);
        EXPECT_EQ(std::to_string(sets[i].rows), rows[i][1]);
        EXPECT_NEAR(sets[i].pages, std::stod(rows[i][2]), 1e-9);
        EXPECT_NEAR(sets[i].density, std::stod(rows[i][3]), 1e-9);
    }
    EXPECT_NEAR(together(sets).density,
                std::stod(test::value(file, "SELECT avg(density) FROM v_denoise_layer WHERE mode = 'sparse'")), 1e-9);
    EXPECT_EQ(together({}).rows, 0);
    EXPECT_EQ(readChangeRanks(reader, 1).size(), 3U);
    EXPECT_TRUE(readActiveSets(reader, 2).empty()) << "there is no such run";
}

TEST(ServedLoadTest, TheWindowBeginsAfterAFifthOfTheArrivals) {
    std::vector<RequestRow> requests(11);
    std::vector<ServedToken> tokens;
    std::vector<IterationLoads> iterations;
    const auto ms = [](double time) { return std::int64_t(time * 1e6); };
    for (int i = 0; i < 11; ++i) {
        RequestRow& request = requests[std::size_t(i)];
        request.number = i;
        request.arrivalNs = ms(100 * i);
        if (i == 5) continue; // this request has no answer
        request.firstTokenNs = ms(100 * i + 10 * (i + 1));
        for (int token = 0; token < 3; ++token)
            tokens.push_back({i, request.firstTokenNs + ms(4 * token + (token == 2 ? i : 0))});
        iterations.push_back({request.firstTokenNs, i % 2, 2 * i, 100 * i});
    }
    const std::optional<ServedLoad> load = measureLoad(requests, tokens, iterations);
    ASSERT_TRUE(load);
    EXPECT_NEAR(load->seconds, 0.8, 1e-12); // from 200 ms to 1,000 ms
    EXPECT_EQ(load->requests, 9);           // 2 to 10
    EXPECT_EQ(load->unanswered, 1);
    EXPECT_NEAR(load->rate, 9 / 0.8, 1e-9);
    double ttft = 0;
    for (const int i : {2, 3, 4, 6, 7, 8, 9, 10}) ttft += 10.0 * (i + 1);
    EXPECT_NEAR(load->ttftMs, ttft / 8, 1e-9);
    double gaps = 0;
    int count = 0, made = 0;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
        if (tokens[i].ns < ms(200) || tokens[i].ns > ms(1000)) continue;
        ++made;
        if (i > 0 && tokens[i - 1].request == tokens[i].request)
            gaps += double(tokens[i].ns - tokens[i - 1].ns) / 1e6, ++count;
    }
    EXPECT_NEAR(load->tbtMs, gaps / count, 1e-9);
    EXPECT_NEAR(load->tokensPerSecond, made / 0.8, 1e-9);
    // iterations 3, 7 and 9 decode within the window
    EXPECT_NEAR(load->blocksLoaded, 2.0 * (3 + 7 + 9) / 3, 1e-9);
    EXPECT_NEAR(load->bytesLoaded, 100.0 * (3 + 7 + 9) / 3, 1e-9);
    EXPECT_EQ(load->decodeRows, 1);
    EXPECT_FALSE(measureLoad({}, {}, {}));
    EXPECT_FALSE(measureLoad(std::span(requests).first(1), {}, {})) << "one arrival has no rate";
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
