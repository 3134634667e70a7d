// What the rows of a denoising forward on a GPU are told, and which forward follows from it: arithmetic, without a GPU.
#include "core/cuda/diffusion/denoise_flight.h"

#include "core/diffusion/tile_mask.h"

#include <gmock/gmock.h>
#include <optional>
#include <vector>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using cuda::BlockRow;

/// Blocks of 6 tokens that are written in 4 forwards: 2, 2, 1 and 1 tokens.
DenoiseOptions countingOptions() {
    DenoiseOptions options;
    options.block = 6;
    options.steps = 4;
    options.strategy = Unmasking::LowConfidenceStatic;
    return options;
}

DenoiseRow rowAt(int sequence, int first, int step, bool clean = false) {
    DenoiseRow row;
    row.sequence = RowId{sequence};
    row.first = first;
    row.step = step;
    row.clean = clean;
    return row;
}

Flight flightOf(const FlightRules& rules, const std::vector<FlightRow>& rows) { return {rows, rules.shapeOf(rows)}; }

TEST(DenoiseFlight, IsFollowedByForwardsThatCountTheMasksDown) {
    const DenoiseOptions options = countingOptions();
    const FlightRules rules(options, false, false, true);
    std::optional<Flight> flight = flightOf(rules, {rules.flightOf(rowAt(1, 12, 0), 6)});
    std::vector<int> masks, writes;
    std::vector<bool> clean;
    for (; flight; flight = rules.next(*flight)) {
        const FlightRow& row = flight->rows.front();
        EXPECT_EQ(row.row.sequence, RowId{1});
        EXPECT_EQ(row.row.first, 12);
        EXPECT_EQ(row.row.step, int(masks.size()));
        EXPECT_EQ(flight->shape.writes, row.masks > 0);
        EXPECT_EQ(flight->shape.cleans, row.row.clean);
        masks.push_back(row.masks);
        writes.push_back(rules.tableRow(row).writes);
        clean.push_back(row.row.clean);
    }
    EXPECT_THAT(masks, ::testing::ElementsAre(6, 4, 2, 1, 0));
    EXPECT_THAT(writes, ::testing::ElementsAre(2, 2, 1, 1, 0));
    EXPECT_THAT(clean, ::testing::ElementsAre(false, false, false, false, true)) << "nothing follows the clean forward";
}

TEST(DenoiseFlight, IsFollowedByNothingWhereTheHostWritesOrARowIsClean) {
    DenoiseOptions options = countingOptions();
    const FlightRules drawing(options, false, false, false);
    EXPECT_FALSE(drawing.next(flightOf(drawing, {drawing.flightOf(rowAt(0, 6, 0), 6)})));
    const FlightRules rules(options, false, false, true);
    EXPECT_FALSE(
        rules.next(flightOf(rules, {rules.flightOf(rowAt(0, 6, 0), 6), rules.flightOf(rowAt(1, 6, 4, true), 0)})));
    options.strategy = Unmasking::LowConfidenceDynamic; // how much it writes depends on the candidates
    const FlightRules dynamic(options, false, false, true);
    EXPECT_FALSE(dynamic.writesOnDevice());
    EXPECT_FALSE(dynamic.next(flightOf(dynamic, {dynamic.flightOf(rowAt(0, 6, 0), 6)})));
}

TEST(DenoiseFlight, IsSparseBetweenTheFirstAndTheCleanForwardOfABlock) {
    DenoiseOptions options = countingOptions();
    options.pages = true;
    const FlightRules rules(options, false, false, true);
    ASSERT_TRUE(rules.compares());
    constexpr std::uint32_t kTaken = BlockRow::kTaken, kEvery = BlockRow::kEveryToken, kSparse = BlockRow::kSparse,
                            kCompares = BlockRow::kCompares, kClean = BlockRow::kClean;
    EXPECT_EQ(rules.flagsOf(rowAt(0, 6, 0)), kTaken | kEvery);
    EXPECT_EQ(rules.flagsOf(rowAt(0, 6, 1)), kTaken | kSparse | kCompares);
    EXPECT_EQ(rules.flagsOf(rowAt(0, 0, 1)), kTaken) << "there is no prefix";
    EXPECT_EQ(rules.flagsOf(rowAt(0, 6, 4, true)), kTaken | kClean);
    options.finalSparse = true;
    EXPECT_EQ(rules.flagsOf(rowAt(0, 6, 4, true)), kTaken | kSparse | kCompares | kClean);
    options.firstSparse = true;
    EXPECT_EQ(rules.flagsOf(rowAt(0, 6, 0)), kTaken | kSparse | kEvery) << "there is no forward to compare with";
    options.everyToken = true;
    EXPECT_FALSE(rules.compares());
    EXPECT_EQ(rules.flagsOf(rowAt(0, 6, 2)), kTaken | kSparse | kEvery);
    const DenoiseOptions full = countingOptions();
    EXPECT_EQ(FlightRules(full, true, false, true).flagsOf(rowAt(0, 6, 2)), kTaken | kCompares) << "for the recorder";
    EXPECT_EQ(FlightRules(full, false, false, true).flagsOf(rowAt(0, 6, 2)), kTaken);
}

TEST(DenoiseFlight, ChoosesOnceInTheLastDenseForward) {
    DenoiseOptions options = countingOptions();
    options.pages = options.tiles = true;
    options.page = 16;
    options.budget = 40;
    options.skip = 0.5; // forwards 0 to 2 are dense
    const FlightRules rules(options, false, false, true);
    ASSERT_TRUE(rules.weighs());
    for (int step = 0; step < 5; ++step) {
        const FlightRow row = rules.flightOf(rowAt(0, 96, step), 1);
        const bool chooses = step == 2;
        EXPECT_EQ((row.flags & BlockRow::kChoosesOnce) != 0, chooses) << step;
        EXPECT_EQ((row.flags & BlockRow::kSparse) != 0, step > 2) << step;
        EXPECT_EQ(rules.shapeOf({&row, 1}).choosesOnce, chooses) << step;
        EXPECT_EQ(rules.tableRow(row).kept, chooses ? tilesKept(6, 40, 96) : 0) << step;
    }
    options.tiles = false;
    options.agnosticPages = 4;
    const auto keptAt = [&](int first) { return rules.tableRow(rules.flightOf(rowAt(0, first, 0), 6)).kept; };
    EXPECT_EQ(keptAt(96), 4);
    EXPECT_EQ(keptAt(40), 2) << "the prefix has two complete pages";
}

TEST(DenoiseFlight, AsksForPagesWhereASparseForwardFollowsAnotherForwardOfItsBlock) {
    DenoiseOptions options = countingOptions();
    options.pages = options.fetchAhead = options.finalSparse = true;
    const FlightRules rules(options, false, false, false);
    constexpr std::uint32_t kAll = BlockRow::kAsks | BlockRow::kAsksAll | BlockRow::kAsksAgain;
    const auto asks = [&](const FlightRules& by, const DenoiseRow& row) { return by.flagsOf(row) & kAll; };
    EXPECT_EQ(asks(rules, rowAt(0, 16, 0)), 0u);
    EXPECT_EQ(asks(rules, rowAt(0, 16, 1)), BlockRow::kAsks | BlockRow::kAsksAll) << "by the queries of all tokens";
    EXPECT_EQ(asks(rules, rowAt(0, 16, 2)), BlockRow::kAsks | BlockRow::kAsksAgain);
    EXPECT_EQ(asks(rules, rowAt(0, 16, 3, true)), BlockRow::kAsks | BlockRow::kAsksAgain);
    EXPECT_EQ(asks(rules, rowAt(0, 0, 2)), 0u) << "without a prefix";
    DenoiseOptions sparse = options;
    sparse.firstSparse = true, sparse.finalSparse = false;
    const FlightRules fromTheFirst(sparse, false, false, false);
    EXPECT_EQ(asks(fromTheFirst, rowAt(0, 16, 1)), kAll);
    EXPECT_EQ(asks(fromTheFirst, rowAt(0, 16, 3, true)), 0u) << "a dense forward reads everything";
    DenoiseOptions onDemand = options;
    onDemand.fetchAhead = false;
    EXPECT_EQ(asks(FlightRules(onDemand, false, false, false), rowAt(0, 16, 2)), 0u);
}

TEST(DenoiseFlight, IsTheOneThatTheSessionAsksFor) {
    const DenoiseOptions options = countingOptions();
    const FlightRules rules(options, false, false, true);
    const Flight flight = flightOf(rules, {rules.flightOf(rowAt(1, 12, 1), 4)});
    const std::vector<std::int32_t> written{0, 0, 0, 0, 0, 0, 7, 9, 8, 9, 9, 9}; // of two sequences
    std::vector<std::int32_t> ids(written.begin() + 6, written.end());
    DenoiseRow row = rowAt(1, 12, 1);
    row.ids = ids;
    row.wanted = 0b111010;
    const auto asked = [&] { return FlightRules::isOf(flight, {&row, 1}, written.data(), options.block); };
    EXPECT_TRUE(asked());
    EXPECT_FALSE(FlightRules::isOf(flight, {}, written.data(), options.block));
    ids[3] = 5;
    EXPECT_FALSE(asked()) << "another token stands there";
    ids[3] = 9;
    row.wanted = 0b11010;
    EXPECT_FALSE(asked()) << "fewer positions are masked";
    row.wanted = 0b111010;
    row.step = 2;
    EXPECT_FALSE(asked());
}

TEST(DenoiseFlight, InputsLieBehindEachOther) {
    std::size_t planned = 0, bytes = 0;
    EXPECT_EQ(FlightInputs(nullptr, 3, 6, planned).table, nullptr);
    std::vector<std::uint64_t> memory(planned / sizeof(std::uint64_t) + 1);
    auto* const base = reinterpret_cast<std::byte*>(memory.data());
    const FlightInputs inputs(base, 3, 6, bytes);
    EXPECT_EQ(bytes, planned);
    EXPECT_EQ(reinterpret_cast<std::byte*>(inputs.table), base);
    EXPECT_GE(reinterpret_cast<std::byte*>(inputs.masked), reinterpret_cast<std::byte*>(inputs.table + 3));
    EXPECT_EQ(reinterpret_cast<std::byte*>(inputs.ids), reinterpret_cast<std::byte*>(inputs.masked + 3));
    EXPECT_EQ(reinterpret_cast<std::byte*>(inputs.ids + 3 * 6), base + bytes);
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
