// A trace whose last step has the highest number there can be: rows bound the work, not their numbers.
#include "profiler/compare/parting.h"
#include "profiler/format/trace_keys.h"
#include "profiler/read/needle_evidence.h"
#include "profiler/read/next_step.h"
#include "profiler/read/run_numbers.h"
#include "profiler/roofline/measured_run.h"
#include "profiler/tiles/denoise_steps.h"
#include "profiler/tiles/mask_pyramid.h"
#include "profiler/tiles/step_pyramid.h"
#include "profiler/tiles/tile_reader.h"
#include "tests/profiler/renumbered_step.h"
#include "tests/profiler/sql_rows.h"
#include "tests/profiler/synthetic_run.h"
#include "tests/profiler/temporary_folder.h"

#include <chrono>
#include <cmath>
#include <filesystem>
#include <gtest/gtest.h>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

class FarStep : public testing::Test {
protected:
    FarStep() {
        synthetic::RunShape shape;
        shape.decodeSteps = kTileSteps + 500;
        shape.layers = 2;
        synthetic::recordFile(file, shape);
        last = shape.decodeSteps;
        test::renumberStep(file, last, trace::kMaxStep);
    }
    /// Reads tile by tile, as views do, each empty stretch once. place(first, tile, times). @return how many were read
    template <class Read, class Place> static int readAll(const TraceReader& reader, Read&& read, Place&& place) {
        const int steps = reader.stepCount(1);
        int reads = 0;
        for (int first = 0; first < steps; ++reads) {
            const TileStretch empty = emptyTiles(reader, 1, first / kTileSteps);
            auto tile = read(first, std::min(first + kTileSteps, steps) - 1);
            const int times = std::max(empty.end - first / kTileSteps, 1);
            const int covered = (times - 1) * kTileSteps + tile->steps();
            place(first, std::move(tile), times);
            first += covered;
        }
        return reads;
    }
    test::Folder folder;
    std::string file = (folder / "far.kvtrace").string();
    int last = 0;
    const TileCache::Place nowhere{};
};

TEST_F(FarStep, EmptyTilesLieBetweenThoseWithSteps) {
    const TraceReader reader(file);
    ASSERT_EQ(reader.stepCount(1), trace::kMaxStep + 1);
    const int end = trace::kMaxStep / kTileSteps;
    for (const int tile : {0, 1, end}) EXPECT_EQ(emptyTiles(reader, 1, tile).count(), 0) << tile;
    for (const int tile : {2, 3, 4000, end - 1}) {
        EXPECT_EQ(emptyTiles(reader, 1, tile).first, 2) << tile;
        EXPECT_EQ(emptyTiles(reader, 1, tile).end, end) << tile;
    }
    test::sql(file, "DELETE FROM step WHERE id & 0x1FFFFFF < 9000", SQLITE_OPEN_READWRITE);
    EXPECT_EQ(emptyTiles(TraceReader(file), 1, 7).first, 0);
}

TEST_F(FarStep, TheNextRecordedStepIsFound) {
    const TraceReader reader(file);
    EXPECT_EQ(nextRecordedStep(reader, 1, 7), 7);
    for (const int step : {last, last + 1, 20'000'000, int(trace::kMaxStep)})
        EXPECT_EQ(nextRecordedStep(reader, 1, step), trace::kMaxStep) << step;
    EXPECT_EQ(nextRecordedStep(reader, 2, 7), 7) << "no such run";
}

TEST_F(FarStep, NumbersOfARunAreReadInAsManyPiecesAsItsRowsTake) {
    const TraceReader reader(file);
    RunNumbers numbers;
    int pieces = 1;
    while (!extendRunNumbers(numbers, reader, *reader.run(1), 1000)) ASSERT_LT(++pieces, 10);
    EXPECT_EQ(pieces, last / 1000 + 2) << "the last one has the far step";
    EXPECT_EQ(numbers.nextStep, trace::kMaxStep + 1);
}

TEST_F(FarStep, PartsOfARunsStepsAreReadInAsManyPiecesAsItsRowsTake) {
    const TraceReader reader(file);
    MeasuredRun run = measuredSteps(reader, 1);
    int pieces = 1;
    for (int next = 0; !addParts(run, reader, next, 1000);) ASSERT_LT(++pieces, 10);
    EXPECT_EQ(pieces, last / 1000 + 2);
}

TEST_F(FarStep, FactsOfAPromptHaveAsManySightsAsStepsChoseBlocks) {
    const TraceReader reader(file);
    NeedlePlace fact;
    fact.tokens = 5;
    const auto sights = needleSights(reader, *reader.run(1), {fact}, 0, trace::kMaxStep);
    ASSERT_EQ(sights.size(), 1U);
    EXPECT_EQ(int(sights[0].size()), last);
    EXPECT_EQ(sights[0].back().step, trace::kMaxStep);
}

TEST_F(FarStep, OfARunThatPartsThereIsFoundByItsRows) {
    const std::string other = (folder / "other.kvtrace").string();
    std::filesystem::copy_file(file, other);
    test::sql(other,
              "UPDATE selection SET blocks = (SELECT blocks FROM selection WHERE id & 0x3FFFFFFF = 0 AND id >> 30 ="
              " (1 << 25) | 1) WHERE id & 0x3FFFFFFF = 0 AND id >> 30 = (SELECT max(id) FROM step)",
              SQLITE_OPEN_READWRITE);
    const TraceReader a(file), b(other);
    const Parting parting = partingOf(a, 1, b, 1, 0, last - 5);
    ASSERT_TRUE(parting.first);
    EXPECT_EQ(parting.first->step, trace::kMaxStep);
}

TEST_F(FarStep, IsReadInAMomentAndAFewMegabytes) {
    const auto begin = std::chrono::steady_clock::now();
    const TraceReader reader(file);
    const int steps = reader.stepCount(1);

    StepPyramid heat;
    heat.reset(2);
    const HeatRequest locality{.runId = 1};
    EXPECT_EQ(readAll(
                  reader, [&](int from, int to) { return readTile(reader, locality, from, to, nowhere); },
                  [&](int first, std::shared_ptr<HeatTile> tile, int times) {
                      heat.tiles().place(first, std::move(tile), times);
                  }),
              4);
    EXPECT_TRUE(heat.tiles().complete());
    EXPECT_EQ(heat.steps(), steps);
    EXPECT_EQ(heat.stats(1, 0, steps).count, last - 1) << "the first one is undefined";
    EXPECT_EQ(heat.stats(1, steps - 1, steps).count, 1);
    EXPECT_EQ(heat.stats(1, last, steps - 1).count, 0);

    StepPyramid numbers;
    numbers.reset(rowsOf(StepNumbers::Transfers));
    readAll(
        reader,
        [&](int from, int to) {
            return readTile(reader, StepRequest{.runId = 1, .numbers = StepNumbers::Transfers}, from, to, nowhere);
        },
        [&](int first, std::shared_ptr<HeatTile> tile, int times) {
            numbers.tiles().place(first, std::move(tile), times);
        });
    EXPECT_EQ(numbers.stats(int(TransferNumber::Hits), 0, steps).count, last);

    MaskPyramid mask;
    const MaskRequest head{.runId = 1, .layer = 1, .sequence = 0, .kvHead = 1};
    readAll(
        reader, [&](int from, int to) { return readTile(reader, head, from, to, nowhere); },
        [&](int first, std::shared_ptr<MaskTile> tile, int times) { mask.place(first, std::move(tile), times); });
    EXPECT_TRUE(mask.tiles().complete());
    EXPECT_EQ(mask.cells(steps - 1).size(), reader.selection(1, steps - 1, 1, 0, 1)->blocks.size());
    EXPECT_EQ(mask.cells(steps / 2).size(), 0u);

    DenoiseSteps forwards;
    readAll(
        reader, [&](int from, int to) { return readTile(reader, DenoiseRequest{.runId = 1}, from, to); },
        [&](int first, std::shared_ptr<DenoiseTile> tile, int times) {
            forwards.place(first, std::move(tile), times);
        });
    EXPECT_FALSE(forwards.before(steps));
    EXPECT_EQ(forwards.next(5, steps), steps) << "there is none";

    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
