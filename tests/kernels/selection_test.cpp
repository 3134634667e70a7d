#include "kernels/selection.h"

#include <algorithm>
#include <cmath>
#include <gtest/gtest.h>
#include <limits>
#include <numeric>
#include <random>
#include <set>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

std::string gridName(const PoolingGrid& grid) {
    return std::to_string(grid.kernel) + "/" + std::to_string(grid.stride) + "/" + std::to_string(grid.blockSize);
}

/// Walks over every token of every window: block b gets the best window that has a token in it.
std::vector<float> pooledTokenByToken(const PoolingGrid& grid, const std::vector<float>& scores, int blocks) {
    std::vector<float> pooled(std::size_t(blocks), -kInfinity);
    for (std::size_t c = 0; c < scores.size(); ++c)
        for (int token = int(c) * grid.stride; token < int(c) * grid.stride + grid.kernel; ++token)
            if (token / grid.blockSize < blocks) {
                float& best = pooled[std::size_t(token / grid.blockSize)];
                if (scores[c] > best) best = scores[c]; // false for NaN
            }
    return pooled;
}

TEST(PoolingGrid, CountsCompleteWindowsAndStartedBlocks) {
    const PoolingGrid grid;
    const struct {
        int tokens, windows, blocks;
    } table[] = {{0, 0, 0},  {1, 0, 1},  {31, 0, 1},          {32, 1, 1},      {64, 3, 1},
                 {65, 3, 2}, {80, 4, 2}, {1000, 61, 16},      {4096, 255, 64}, {16384, 1023, 256},
                 {47, 1, 1}, {48, 2, 1}, {131072, 8191, 2048}};
    for (const auto& row : table) {
        EXPECT_EQ(grid.windows(row.tokens), row.windows) << row.tokens << " tokens";
        EXPECT_EQ(grid.blocks(row.tokens), row.blocks) << row.tokens << " tokens";
    }
    EXPECT_EQ(grid.windowsPerBlock(), 4);
}

TEST(PoolingGrid, AddsAWindowExactlyWhenItsLastTokenArrives) {
    for (const PoolingGrid grid :
         {PoolingGrid{}, PoolingGrid{8, 4, 16}, PoolingGrid{5, 3, 12}, PoolingGrid{16, 16, 16}})
        for (int tokens = 1; tokens <= 400; ++tokens) {
            const int last = tokens - 1; // completes window c when c*stride + kernel - 1 == last
            const bool completes = last >= grid.kernel - 1 && (last - grid.kernel + 1) % grid.stride == 0;
            ASSERT_EQ(grid.windows(tokens) - grid.windows(tokens - 1), completes ? 1 : 0)
                << gridName(grid) << " " << tokens << " tokens";
        }
}

TEST(PoolToBlocks, TakesTheBestWindowThatSharesATokenWithTheBlock) {
    std::mt19937 random(11);
    std::uniform_real_distribution<float> score(-4.f, 4.f);
    const PoolingGrid grids[] = {{32, 16, 64}, {32, 16, 128}, {8, 4, 16}, {16, 16, 64}, {64, 16, 64}, {96, 16, 32},
                                 {5, 3, 12},   {48, 32, 64},  {1, 1, 16}, {8, 16, 64},  {5, 3, 16},   {7, 5, 12}};
    for (const PoolingGrid& grid : grids)
        for (int round = 0; round < 60; ++round) {
            const int tokens = round < 20 ? 1 + int(random() % 200) : 1 + int(random() % 5000);
            std::vector<float> scores(std::size_t(grid.windows(tokens))),
                pooled(std::size_t(grid.blocks(tokens)), 99.f);
            for (float& value : scores) value = random() % 50 == 0 ? kNaN : score(random);
            poolToBlocks(grid, scores, pooled);
            ASSERT_EQ(pooled, pooledTokenByToken(grid, scores, grid.blocks(tokens)))
                << gridName(grid) << " " << tokens << " tokens";
        }
}

TEST(PoolToBlocks, UsesWindowsFourJMinusOneToFourJPlusThreeOnThePublishedGrid) {
    const PoolingGrid grid;
    constexpr int kTokens = 1000, kWindows = 61, kBlocks = 16;
    for (int peak = 0; peak < kWindows; ++peak) {
        std::vector<float> scores(kWindows, 0.f), pooled(kBlocks);
        scores[std::size_t(peak)] = 1.f;
        ASSERT_EQ(grid.blocks(kTokens), kBlocks);
        poolToBlocks(grid, scores, pooled);
        for (int j = 0; j < kBlocks; ++j)
            ASSERT_EQ(pooled[std::size_t(j)], 4 * j - 1 <= peak && peak <= 4 * j + 3 ? 1.f : 0.f)
                << "window " << peak << " block " << j;
    }
}

TEST(PoolToBlocks, GivesMinusInfinityToABlockThatNoWindowReaches) {
    const PoolingGrid grid;
    std::vector<float> scores(std::size_t(grid.windows(65)), 0.5f), pooled(std::size_t(grid.blocks(65)), 1.f);
    poolToBlocks(grid, scores, pooled);
    EXPECT_EQ(pooled, (std::vector<float>{0.5f, -kInfinity}));

    std::vector<float> alone(1, 1.f); // fewer tokens than one window
    poolToBlocks(grid, {}, alone);
    EXPECT_EQ(alone.front(), -kInfinity);
}

TEST(PoolToBlocks, TreatsNaNAsTheLowestScore) {
    std::vector<float> pooled(2);
    poolToBlocks(PoolingGrid{}, std::vector<float>{kNaN, -3.f, kNaN, kNaN, kNaN}, pooled);
    EXPECT_EQ(pooled, (std::vector<float>{-3.f, -kInfinity}));
}

/// The rule of selection.h, written as a plain sort of all candidates in double precision.
std::vector<SelectedBlock> sortedSelection(const SelectionBudget& budget, int current, const std::vector<float>& aware,
                                           const std::vector<float>& agnostic) {
    std::vector<SelectedBlock> result;
    std::set<int> left;
    for (int block = 0; block <= current; ++block) {
        const int age = current - block; // 0: the current block
        const float score = aware.empty() ? kNaN : aware[std::size_t(block)];
        const int windowBlocks = budget.windowAddsCurrent ? budget.window + 1 : budget.window;
        if (block + 1 <= budget.sink)
            result.push_back({block, Origin::Sink, score});
        else if (age + 1 <= windowBlocks)
            result.push_back({block, Origin::Window, score});
        else
            left.insert(block);
    }
    const auto pick = [&](int count, const std::vector<float>& scores, Origin origin) {
        if (count <= 0) return;
        std::vector<std::pair<double, int>> order; // ascending pair: best score first, then the lower block
        for (const int block : left) {
            const double score = double(scores[std::size_t(block)]);
            order.emplace_back(std::isnan(score) ? std::numeric_limits<double>::infinity() : -score, block);
        }
        std::sort(order.begin(), order.end());
        for (int i = 0; i < std::min(count, int(order.size())); ++i) {
            const int block = order[std::size_t(i)].second;
            result.push_back({block, origin, scores[std::size_t(block)]});
            left.erase(block);
        }
    };
    pick(budget.queryAware, aware, Origin::QueryAware);
    pick(budget.queryAgnostic, agnostic, Origin::QueryAgnostic);
    std::sort(result.begin(), result.end(), [](const auto& a, const auto& b) { return a.block < b.block; });
    return result;
}

::testing::AssertionResult sameBlocks(const std::vector<SelectedBlock>& got, const std::vector<SelectedBlock>& want) {
    if (got.size() != want.size())
        return ::testing::AssertionFailure() << got.size() << " blocks instead of " << want.size();
    for (std::size_t i = 0; i < got.size(); ++i) {
        const bool sameScore = got[i].score == want[i].score || (std::isnan(got[i].score) && std::isnan(want[i].score));
        if (got[i].block != want[i].block || got[i].origin != want[i].origin || !sameScore)
            return ::testing::AssertionFailure()
                   << "entry " << i << ": block " << got[i].block << " " << nameOf(got[i].origin) << " " << got[i].score
                   << " instead of block " << want[i].block << " " << nameOf(want[i].origin) << " " << want[i].score;
    }
    return ::testing::AssertionSuccess();
}

std::vector<int> blocksOf(const std::vector<SelectedBlock>& selection, Origin origin) {
    std::vector<int> blocks;
    for (const SelectedBlock& entry : selection)
        if (entry.origin == origin) blocks.push_back(entry.block);
    return blocks;
}

TEST(SelectBlocks, AgreesWithASortOfAllCandidates) {
    std::mt19937 random(23);
    std::vector<SelectedBlock> result;
    for (int round = 0; round < 4000; ++round) {
        const int current = int(random() % (round % 4 == 0 ? 6 : 120));
        SelectionBudget budget;
        budget.sink = int(random() % 4);
        budget.window = int(random() % 6);
        budget.windowAddsCurrent = random() % 2;
        budget.queryAware = int(random() % 20);
        budget.queryAgnostic = random() % 3 == 0 ? 0 : int(random() % 20);
        const auto scores = [&](int wanted) {
            std::vector<float> values;
            if (wanted == 0 && random() % 2) return values;
            const int distinct = 1 + int(random() % 12); // few values: many ties
            for (int block = 0; block <= current; ++block) {
                const int kind = int(random() % 16);
                values.push_back(kind == 0 ? kNaN : kind == 1 ? -kInfinity : float(int(random()) % distinct) * 0.25f);
            }
            return values;
        };
        const std::vector<float> aware = scores(budget.queryAware), agnostic = scores(budget.queryAgnostic);
        selectBlocks(budget, current, aware, agnostic, result);
        ASSERT_TRUE(sameBlocks(result, sortedSelection(budget, current, aware, agnostic)))
            << "round " << round << ", current block " << current;
    }
}

TEST(SelectBlocks, LetsTheLowerBlockWinATie) {
    SelectionBudget budget{0, 1, false, 3, 2};
    std::vector<SelectedBlock> result;
    selectBlocks(budget, 20, std::vector<float>(21, 1.f), std::vector<float>(21, 2.f), result);
    EXPECT_EQ(blocksOf(result, Origin::QueryAware), (std::vector<int>{0, 1, 2}));
    EXPECT_EQ(blocksOf(result, Origin::QueryAgnostic), (std::vector<int>{3, 4}));
    EXPECT_EQ(blocksOf(result, Origin::Window), (std::vector<int>{20}));
}

TEST(SelectBlocks, TreatsPlusAndMinusZeroAsATie) {
    std::vector<float> scores{-0.f, 0.f, -0.f, 0.f, 0.f};
    std::vector<SelectedBlock> result;
    selectBlocks({0, 1, false, 2, 0}, 4, scores, {}, result);
    EXPECT_EQ(blocksOf(result, Origin::QueryAware), (std::vector<int>{0, 1}));
}

TEST(SelectBlocks, CountsTheCurrentBlockInTheWindowUnlessToldOtherwise) {
    const std::vector<float> scores(11, 0.f);
    std::vector<SelectedBlock> result;
    selectBlocks({1, 4, false, 0, 0}, 10, scores, {}, result);
    EXPECT_EQ(blocksOf(result, Origin::Window), (std::vector<int>{7, 8, 9, 10}));
    selectBlocks({1, 4, true, 0, 0}, 10, scores, {}, result);
    EXPECT_EQ(blocksOf(result, Origin::Window), (std::vector<int>{6, 7, 8, 9, 10}));
}

TEST(SelectBlocks, TakesEverythingWhenTheBudgetExceedsTheContext) {
    std::vector<SelectedBlock> result;
    for (int current = 0; current < 12; ++current) {
        const std::vector<float> scores(std::size_t(current) + 1, -kInfinity);
        for (const SelectionBudget& budget :
             {SelectionBudget{1, 4, false, 100, 0}, SelectionBudget{1, 4, true, 0, 100},
              SelectionBudget{100, 100, false, 100, 100}, SelectionBudget{0, 0, false, 5, 100}}) {
            selectBlocks(budget, current, scores, scores, result);
            ASSERT_EQ(int(result.size()), current + 1);
            for (int block = 0; block <= current; ++block) ASSERT_EQ(result[std::size_t(block)].block, block);
        }
    }
}

TEST(SelectBlocks, PrefersAnyRealScoreToNaNAndMinusInfinity) {
    std::vector<SelectedBlock> result;
    const std::vector<float> scores{kNaN, -kInfinity, -1e30f, kNaN, -kInfinity, -2e30f, 0.f};
    selectBlocks({0, 1, false, 2, 0}, 6, scores, {}, result);
    EXPECT_EQ(blocksOf(result, Origin::QueryAware), (std::vector<int>{2, 5}));
    selectBlocks({0, 1, false, 4, 0}, 6, scores, {}, result); // nothing better is left: the lower blocks
    EXPECT_EQ(blocksOf(result, Origin::QueryAware), (std::vector<int>{0, 1, 2, 5}));
}

TEST(SelectBlocks, ReportsNaNWhereNoScoreExists) {
    std::vector<SelectedBlock> result;
    selectBlocks({1, 2, false, 0, 0}, 5, {}, {}, result);
    ASSERT_EQ(result.size(), 3u);
    for (const SelectedBlock& entry : result) EXPECT_TRUE(std::isnan(entry.score));
}

/// One call with all its invariants checked.
void checkDifference(std::vector<std::int32_t>& slots, const std::vector<std::int32_t>& wanted,
                     const std::vector<std::int32_t>& freeOrder) {
    const std::vector<std::int32_t> before = slots;
    std::vector<std::int32_t> load(slots.size(), 12345);
    const int hits = setDifference(slots, wanted, load, freeOrder);
    const std::set<std::int32_t> want(wanted.begin(), wanted.end());

    // What must happen, in the words of the contract.
    std::vector<std::int32_t> missing, expected = before;
    for (const std::int32_t id : wanted)
        if (std::find(before.begin(), before.end(), id) == before.end()) missing.push_back(id);
    std::size_t rank = 0;
    for (std::size_t i = 0; i < slots.size() && rank < missing.size(); ++i) {
        const auto slot = std::size_t(freeOrder.empty() ? std::int32_t(i) : freeOrder[i]);
        if (!want.count(before[slot])) expected[slot] = missing[rank++];
    }
    ASSERT_EQ(rank, missing.size());
    ASSERT_EQ(slots, expected) << "the r-th miss goes to the r-th free slot";
    ASSERT_EQ(hits, int(wanted.size() - missing.size()));

    // And its consequences, each by itself.
    std::vector<std::int32_t> loaded;
    for (std::size_t slot = 0; slot < slots.size(); ++slot) {
        if (want.count(before[slot])) {
            ASSERT_EQ(slots[slot], before[slot]) << "a wanted block left its slot " << slot;
            ASSERT_EQ(load[slot], -1) << "a resident block was loaded again";
        }
        if (load[slot] < 0) {
            ASSERT_EQ(load[slot], -1);
            ASSERT_EQ(slots[slot], before[slot]) << "slot " << slot << " changed without a load";
        } else {
            ASSERT_EQ(slots[slot], load[slot]);
            loaded.push_back(load[slot]);
        }
    }
    std::sort(loaded.begin(), loaded.end());
    std::sort(missing.begin(), missing.end());
    ASSERT_EQ(loaded, missing) << "loads are the new blocks without the old ones";
    for (const std::int32_t id : wanted) ASSERT_EQ(std::count(slots.begin(), slots.end(), id), 1) << "block " << id;

    const std::vector<std::int32_t> settled = slots;
    ASSERT_EQ(setDifference(slots, wanted, load, freeOrder), int(wanted.size()));
    ASSERT_EQ(slots, settled) << "asking again changes nothing";
    ASSERT_EQ(load, std::vector<std::int32_t>(slots.size(), -1));
}

TEST(SetDifference, KeepsResidentBlocksAndLoadsOnlyTheMissingOnesOverLongHistories) {
    std::mt19937 random(31);
    for (int history = 0; history < 150; ++history) {
        const int slotCount = 1 + int(random() % 40), universe = slotCount + int(random() % 60);
        std::vector<std::int32_t> slots(std::size_t(slotCount), -1), ids(static_cast<std::size_t>(universe)),
            order(static_cast<std::size_t>(slotCount));
        std::iota(ids.begin(), ids.end(), 0);
        std::iota(order.begin(), order.end(), 0);
        for (int step = 0; step < 30; ++step) {
            std::shuffle(ids.begin(), ids.end(), random);
            std::shuffle(order.begin(), order.end(), random);
            std::vector<std::int32_t> wanted(ids.begin(), ids.begin() + int(random() % unsigned(slotCount + 1)));
            if (random() % 2) std::sort(wanted.begin(), wanted.end());
            ASSERT_NO_FATAL_FAILURE(checkDifference(slots, wanted, history % 2 ? order : std::vector<std::int32_t>{}))
                << "history " << history << " step " << step;
        }
    }
}

TEST(SetDifference, LeavesASlotMapThatIsAPermutationOfWantedWhenEverySlotIsNeeded) {
    std::mt19937 random(37);
    std::vector<std::int32_t> slots(16, -1), ids(64);
    std::iota(ids.begin(), ids.end(), 0);
    for (int step = 0; step < 200; ++step) {
        std::shuffle(ids.begin(), ids.end(), random);
        std::vector<std::int32_t> wanted(ids.begin(), ids.begin() + 16), load(16);
        setDifference(slots, wanted, load);
        std::vector<std::int32_t> held = slots;
        std::sort(held.begin(), held.end());
        std::sort(wanted.begin(), wanted.end());
        ASSERT_EQ(held, wanted);
    }
}

TEST(SetDifference, FollowsTheOrderOfReplacementItIsGiven) {
    std::vector<std::int32_t> slots{10, 11, 12, 13}, load(4);
    EXPECT_EQ(setDifference(slots, std::vector<std::int32_t>{20, 12, 21}, load, std::vector<std::int32_t>{3, 2, 0, 1}),
              1);
    EXPECT_EQ(slots, (std::vector<std::int32_t>{21, 11, 12, 20}));
    EXPECT_EQ(load, (std::vector<std::int32_t>{21, -1, -1, 20}));
}

TEST(SetDifference, DoesNothingWhenNothingIsWanted) {
    std::vector<std::int32_t> slots{4, -1, 6}, load(3, 7);
    EXPECT_EQ(setDifference(slots, {}, load), 0);
    EXPECT_EQ(slots, (std::vector<std::int32_t>{4, -1, 6}));
    EXPECT_EQ(load, (std::vector<std::int32_t>{-1, -1, -1}));
    EXPECT_EQ(setDifference({}, {}, {}), 0);
}

TEST(Origin, HasANameForEveryCode) {
    std::set<std::string> names;
    for (int code = 0; code < 5; ++code) names.insert(nameOf(Origin(code)));
    EXPECT_EQ(names.size(), 5u);
    EXPECT_FALSE(names.count("unknown"));
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
