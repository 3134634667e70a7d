#include "ui/plots/mask_pyramid.h"
#include "ui/plots/step_columns.h"
#include "ui/plots/step_pyramid.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <random>

namespace kvscope::ui {
namespace {

CellStats bruteForce(const std::vector<float>& values, int rows, int row, int first, int last) {
    CellStats stats;
    for (int step = first; step < last; ++step) {
        const float v = values[std::size_t(step) * std::size_t(rows) + std::size_t(row)];
        if (std::isnan(v)) continue;
        stats.min = stats.count ? std::min(stats.min, v) : v;
        stats.max = stats.count ? std::max(stats.max, v) : v;
        stats.sum += double(v);
        ++stats.count;
    }
    return stats;
}

TEST(StepPyramid, AgreesWithBruteForceOverRandomRangesHoweverItGrew) {
    std::mt19937 random(7);
    std::uniform_real_distribution<float> value(-3, 3);
    for (const int rows : {1, 2, 5}) {
        StepPyramid pyramid;
        pyramid.reset(rows);
        std::vector<float> values;
        while (pyramid.steps() < 700) {
            std::vector<float> chunk(std::size_t(1 + random() % 90) * std::size_t(rows));
            for (float& v : chunk) v = random() % 7 == 0 ? std::nanf("") : value(random);
            values.insert(values.end(), chunk.begin(), chunk.end());
            pyramid.append(chunk);
        }
        for (int trial = 0; trial < 300; ++trial) {
            const int a = int(random() % unsigned(pyramid.steps())), b = int(random() % unsigned(pyramid.steps() + 1));
            const int first = std::min(a, b), last = std::max(a, b);
            std::vector<CellStats> all(std::size_t(rows), CellStats{});
            pyramid.aggregate(first, last, all);
            for (int row = 0; row < rows; ++row) {
                const CellStats expected = bruteForce(values, rows, row, first, last);
                ASSERT_EQ(all[std::size_t(row)].count, expected.count) << first << ".." << last << " row " << row;
                if (expected.count == 0) {
                    ASSERT_TRUE(std::isnan(all[std::size_t(row)].value(Aggregate::Mean)));
                    continue;
                }
                ASSERT_EQ(all[std::size_t(row)].min, expected.min);
                ASSERT_EQ(all[std::size_t(row)].max, expected.max);
                ASSERT_NEAR(all[std::size_t(row)].sum, expected.sum,
                            1e-9 * double(expected.count)); // order of summation
                ASSERT_EQ(pyramid.stats(row, first, last).max, expected.max);
            }
        }
    }
}

TEST(StepPyramid, ClipsRangesBeyondTheEnds) {
    StepPyramid pyramid;
    pyramid.reset(1);
    EXPECT_EQ(pyramid.stats(0, -5, 10).count, 0);
    pyramid.append(std::vector<float>{1, 2, 3});
    EXPECT_EQ(pyramid.stats(0, -5, 10).count, 3);
    EXPECT_EQ(pyramid.stats(0, 3, 9).count, 0);
    EXPECT_EQ(pyramid.stats(1, 0, 3).count, 0) << "there is no such row";
}

TEST(MaskPyramid, OrsExactlyTheBitsOfTheStepsInARange) {
    std::mt19937 random(11);
    MaskPyramid pyramid;
    std::vector<std::map<int, MaskBits>> steps;
    while (steps.size() < 500) {
        MaskChunk chunk;
        for (unsigned i = 0; i < 1 + random() % 40; ++i) {
            std::map<int, MaskBits> cells;
            for (unsigned k = 0; k < random() % 12; ++k)
                cells[int(random() % 60)] = MaskBits((1u << random() % 5) | (random() % 2 ? kMaskHit : kMaskMiss));
            for (const auto& [block, bits] : cells) {
                chunk.cells.push_back({block, bits});
                chunk.scores.push_back(float(block));
            }
            chunk.endStep();
            steps.push_back(cells);
        }
        pyramid.append(chunk);
    }
    ASSERT_EQ(pyramid.steps(), int(steps.size()));
    for (int trial = 0; trial < 300; ++trial) {
        const int a = int(random() % steps.size()), b = int(random() % (steps.size() + 1));
        std::map<int, MaskBits> expected, found;
        for (int step = std::min(a, b); step < std::max(a, b); ++step)
            for (const auto& [block, bits] : steps[std::size_t(step)])
                expected[block] = MaskBits(expected[block] | bits);
        pyramid.forEach(std::min(a, b), std::max(a, b),
                        [&](int block, MaskBits bits) { found[block] = MaskBits(found[block] | bits); });
        ASSERT_EQ(found, expected);
    }
    for (int step = 0; step < pyramid.steps(); ++step) {
        for (int block = 0; block < 60; ++block) {
            const auto hit = pyramid.find(step, block);
            const auto& expected = steps[std::size_t(step)];
            ASSERT_EQ(hit.has_value(), expected.contains(block));
            if (hit) {
                EXPECT_EQ(hit->bits, expected.at(block));
                EXPECT_EQ(hit->score, float(block));
            }
        }
    }
}

TEST(StepColumns, GiveEveryStepToExactlyOnePixelWhenZoomedOut) {
    for (const int steps : {1000, 1601, 100'000}) {
        const auto columns = stepColumns(-0.5, steps - 0.5, 800, steps);
        int next = 0;
        for (const StepColumn& column : columns) {
            ASSERT_EQ(column.first, next);
            next = column.last;
        }
        EXPECT_EQ(next, steps);
    }
}

TEST(StepColumns, RepeatAStepOverItsPixelsWhenZoomedIn) {
    const auto columns = stepColumns(-0.5, 9.5, 100, 10);
    for (int x = 0; x < 100; ++x) {
        EXPECT_EQ(columns[std::size_t(x)].first, x / 10);
        EXPECT_EQ(columns[std::size_t(x)].last, x / 10 + 1);
    }
}

TEST(StepColumns, AreEmptyOutsideTheRun) {
    const auto columns = stepColumns(-10, 20, 30, 5);
    EXPECT_EQ(columns[0].first, columns[0].last);
    EXPECT_EQ(columns[29].first, columns[29].last);
}

} // namespace
} // namespace kvscope::ui
