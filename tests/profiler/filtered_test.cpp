// Reading with a filter, against sums over the recorded steps themselves.
#include "profiler/read/filtered.h"
#include "tests/profiler/synthetic_run.h"
#include "tests/profiler/temporary_folder.h"

#include <gtest/gtest.h>

#include <map>

namespace kvscope {
namespace {

using synthetic::RunShape;

class FilteredReading : public ::testing::Test {
protected:
    FilteredReading() { synthetic::recordFile(folder / "a.kvtrace", shape); }
    TraceReader reader() const { return TraceReader((folder / "a.kvtrace").string()); }
    bool has(const std::vector<std::pair<int, int>>& ranges, int value) const {
        for (const auto& [first, last] : ranges)
            if (first <= value && value <= last) return true;
        return ranges.empty();
    }
    test::Folder folder;
    RunShape shape{.layers = 5, .denseLayers = 1, .decodeSteps = 30};
    std::vector<StepRecord> steps = synthetic::stepsOf(shape);
    ReadFilter filter{{{0, 1}, {3, 3}}, {{2, 4}, {9, 1 << 30}}};
};

TEST_F(FilteredReading, SumsTransfersOverTheLayersAndStepsOfTheFilter) {
    const auto rows = filteredSteps(reader(), 1, filter);
    std::size_t at = 0;
    for (const StepRecord& step : steps) {
        if (!has(filter.steps, step.step)) continue;
        ASSERT_LT(at, rows.size());
        std::int64_t hits = 0, misses = 0, bytes = 0, exposed = 0, transfer = 0;
        for (int layer = 0; layer < shape.layers; ++layer) {
            if (!has(filter.layers, layer)) continue;
            const LayerRecord& record = step.layers[std::size_t(layer)];
            hits += record.hits, misses += record.misses, bytes += record.h2dBytes;
            exposed += record.exposedNs, transfer += record.transferNs;
        }
        EXPECT_EQ(rows[at].step, step.step);
        EXPECT_EQ(rows[at].durationNs, step.durationNs);
        EXPECT_EQ(rows[at].hits, hits);
        EXPECT_EQ(rows[at].misses, misses);
        EXPECT_EQ(rows[at].h2dBytes, bytes);
        EXPECT_EQ(rows[at].exposedNs, exposed);
        EXPECT_EQ(rows[at].transferNs, transfer);
        ++at;
    }
    EXPECT_EQ(at, rows.size());
}

TEST_F(FilteredReading, WithoutLayersGivesTheStepsAsTheyAre) {
    const auto all = reader().steps(1), rows = filteredSteps(reader(), 1, {{}, {{5, 8}}});
    ASSERT_EQ(rows.size(), 4u);
    EXPECT_EQ(rows[0].misses, all[5].misses);
    EXPECT_EQ(rows[3].selected, all[8].selected);
    EXPECT_EQ(rows[3].kept, all[8].kept);
}

TEST_F(FilteredReading, BreaksDownTheLayersOfTheFilter) {
    std::map<std::pair<int, std::string>, std::int64_t> expected; // layer, component -> ns of decode steps
    const auto perStep = filteredBreakdownSteps(reader(), 1, filter);
    std::size_t at = 0;
    for (const StepRecord& step : steps) {
        if (!has(filter.steps, step.step)) continue;
        std::array<std::int64_t, kStageCount> stages{};
        for (int layer = 0; layer < shape.layers; ++layer) {
            if (!has(filter.layers, layer)) continue;
            for (std::size_t i = 0; i < kStageCount; ++i) {
                const std::int64_t ns = step.layers[std::size_t(layer)].stageNs[i];
                stages[i] += ns;
                if (step.phase == Phase::Decode && ns != 0) expected[{layer, std::string(kStageNames[i])}] += ns;
            }
        }
        ASSERT_LT(at, perStep.size());
        EXPECT_EQ(perStep[at].stageNs, stages);
        EXPECT_EQ(perStep[at].otherNs, 0);
        ++at;
    }
    EXPECT_EQ(at, perStep.size());
    std::map<std::pair<int, std::string>, std::int64_t> found;
    for (const BreakdownRow& row : filteredBreakdown(reader(), 1, filter))
        if (row.phase == "decode") found[{row.layer, row.component}] = row.totalNs;
    EXPECT_EQ(found, expected);
}

TEST_F(FilteredReading, ComponentsAndOtherStillAddUpToTheWallTimeOfTheSteps) {
    const ReadFilter some{{}, {{3, 7}}};
    std::int64_t wall = 0, parts = 0;
    for (const StepRecord& step : steps)
        if (step.step >= 3 && step.step <= 7) wall += step.durationNs;
    for (const BreakdownRow& row : filteredBreakdown(reader(), 1, some)) parts += row.totalNs;
    EXPECT_EQ(parts, wall);
    // And without any filter it is the breakdown itself.
    std::int64_t all = 0, filtered = 0;
    for (const BreakdownRow& row : reader().breakdown(1)) all += row.totalNs;
    for (const BreakdownRow& row : filteredBreakdown(reader(), 1, {{{0, 1000}}, {{0, 1 << 30}}}))
        filtered += row.totalNs;
    EXPECT_LT(filtered, all) << "with a filter on layers, nothing outside them counts";
    filtered = 0;
    for (const BreakdownRow& row : filteredBreakdown(reader(), 1, {{}, {{0, 1 << 30}}})) filtered += row.totalNs;
    EXPECT_EQ(filtered, all);
}

} // namespace
} // namespace kvscope
