// What the reader says of denoising forwards, against plain SQL, and its tiles against the reader.
#include "base/error.h"
#include "profiler/check/check.h"
#include "profiler/read/denoising.h"
#include "profiler/tiles/denoise_steps.h"
#include "tests/profiler/sql_rows.h"
#include "tests/profiler/synthetic_denoise.h"
#include "tests/profiler/temporary_folder.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <fmt/format.h>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

class DenoisingReading : public ::testing::Test {
protected:
    void record(const synthetic::RunShape& shape, RecordLevel level = RecordLevel::Full, int tileRows = 0) {
        synthetic::recordDenoising(folder / "run.kvtrace", shape, 8, level, tileRows);
        reader.emplace(file());
        request.runId = 1;
    }
    std::string file() const { return (folder / "run.kvtrace").string(); }
    std::string value(const std::string& query) const { return test::value(file(), query); }
    double number(const std::string& query) const {
        const std::string text = value(query);
        return text == "NULL" ? std::nan("") : std::stod(text);
    }
    static void expectSame(float found, double wanted, const std::string& what) {
        if (std::isnan(wanted))
            EXPECT_TRUE(std::isnan(found)) << what;
        else
            EXPECT_NEAR(double(found), wanted, 1e-5) << what;
    }

    test::Folder folder;
    std::optional<TraceReader> reader;
    DenoiseRequest request;
};

TEST_F(DenoisingReading, TheSyntheticRunObeysTheRules) {
    record({.sequences = 2, .decodeSteps = 40});
    for (const RunCheck& check : checkTrace(*reader, {})) EXPECT_EQ(check.violations(), 0) << check.sentence();
    EXPECT_EQ(denoisingBlock(*reader->run(1)), 8);
    RunRow without;
    EXPECT_EQ(denoisingBlock(without), 0);
    without.meta["denoising_block"] = "a lot";
    EXPECT_EQ(denoisingBlock(without), 0);
}

TEST_F(DenoisingReading, RowsAndCellsAreThoseOfTheViews) {
    record({.sequences = 2, .decodeSteps = 30});
    for (const int sequence : {0, 1}) {
        request.sequence = sequence;
        const ForwardRows all = readForwards(*reader, request, 0, 30);
        std::vector<std::vector<std::string>> rows, cells;
        for (const ForwardRow& row : all.rows) {
            rows.push_back({std::to_string(row.step), std::to_string(row.block), std::to_string(row.denoiseStep),
                            row.final ? "final" : "denoise", std::to_string(row.masked), std::to_string(row.written)});
            for (const ForwardCell& cell : all.cellsOf(row))
                cells.push_back({std::to_string(row.step), std::to_string(cell.position), std::to_string(cell.input),
                                 std::to_string(cell.masked() ? cell.candidate : cell.input),
                                 cell.masked() ? fmt::format("{:.4f}", cell.confidence) : "NULL",
                                 std::to_string(int(cell.written))});
        }
        const std::string where = fmt::format(" WHERE run_id = 1 AND seq = {} ORDER BY step", sequence);
        EXPECT_EQ(
            rows,
            test::sql(file(), "SELECT step, block, denoise_step, kind, masked, written FROM v_denoise" + where).rows);
        EXPECT_EQ(cells, test::sql(file(), "SELECT step, position, input_id, token_id, CASE WHEN confidence IS NULL"
                                           " THEN NULL ELSE printf('%.4f', confidence) END, written"
                                           " FROM v_denoise_token" +
                                               where + ", position")
                             .rows);
        EXPECT_EQ(rows.size(), sequence == 0 ? 30u : 22u) << "the second sequence ends earlier";
    }
}

TEST_F(DenoisingReading, DensitiesAndPagesAreThoseOfTheLayer) {
    record({.layers = 3, .denseLayers = 1, .decodeSteps = 20});
    for (const auto& [layer, head] : {std::pair(2, 1), std::pair(0, 0), std::pair(-1, 1), std::pair(-1, -1)}) {
        request.layer = layer;
        request.kvHead = head;
        const std::string of = (layer < 0 ? "" : fmt::format(" AND layer = {}", layer)) +
                               (head < 0 ? "" : fmt::format(" AND kv_head = {}", head));
        const ForwardRows all = readForwards(*reader, request, 0, 20);
        ASSERT_EQ(all.rows.size(), 20u);
        for (const ForwardRow& row : all.rows) {
            const std::string step = fmt::format(" FROM v_denoise_layer WHERE run_id = 1 AND step = {}", row.step);
            expectSame(row.density, number("SELECT avg(density)" + step + of), step + of);
            expectSame(row.pages, number("SELECT avg(pages)" + step + of), step + of);
            expectSame(row.meanDensity, number("SELECT avg(density)" + step), step);
            EXPECT_EQ(row.layers, 3);
            EXPECT_EQ(row.sparseLayers, int(number("SELECT count(DISTINCT layer)" + step + " AND mode = 'sparse'")));
            EXPECT_EQ(row.dense, number("SELECT count(*)" + step + of + " AND mode = 'sparse'") == 0);
        }
    }
}

TEST_F(DenoisingReading, ActiveTokensAreTheBitsOfTheSets) {
    record({.layers = 3, .decodeSteps = 12});
    for (const int layer : {1, -1}) {
        request.layer = layer;
        request.kvHead = 0;
        const ForwardRows all = readForwards(*reader, request, 0, 12);
        int sparse = 0;
        for (const ForwardRow& row : all.rows) {
            const auto sets = test::sql(file(), fmt::format("SELECT layer, active_set FROM v_denoise_layer WHERE run_id"
                                                            " = 1 AND step = {} AND kv_head = 0 AND mode = 'sparse'",
                                                            row.step))
                                  .rows;
            const auto cells = all.cellsOf(row);
            for (std::size_t i = 0; i < cells.size(); ++i) {
                int layers = 0, here = 0;
                for (const auto& set : sets) {
                    const int bit = int(std::stoll(set[1]) >> i & 1);
                    layers += bit;
                    if (layer < 0 || std::stoi(set[0]) == layer) here += bit;
                }
                EXPECT_EQ(cells[i].activeLayers, layers) << row.step << " " << i;
                if (sets.empty())
                    EXPECT_TRUE(std::isnan(cells[i].active));
                else
                    EXPECT_NEAR(double(cells[i].active), double(here) / (layer < 0 ? 3 : 1), 1e-6);
            }
            sparse += sets.empty() ? 0 : 1;
        }
        EXPECT_GT(sparse, 5);
    }
}

TEST_F(DenoisingReading, ChangesOfALayerStandInTheRowOfKvHeadZero) {
    record({.layers = 2, .decodeSteps = 12});
    request.layer = 1;
    request.kvHead = 1; // its row has none of its own
    const ForwardRows all = readForwards(*reader, request, 0, 12);
    DenoiseRequest both = request;
    both.layer = both.kvHead = -1;
    const ForwardRows mean = readForwards(*reader, both, 0, 12);
    DenoiseRequest other = request;
    other.layer = 0;
    const ForwardRows first = readForwards(*reader, other, 0, 12);
    int known = 0;
    for (std::size_t i = 0; i < all.cells.size(); ++i) {
        const float change = all.cells[i].change;
        EXPECT_EQ(std::isnan(change), std::isnan(mean.cells[i].change));
        if (std::isnan(change)) continue;
        ++known;
        EXPECT_NEAR(double(mean.cells[i].change), double(change + first.cells[i].change) / 2, 1e-5);
    }
    EXPECT_GT(known, 60);
    const std::string blob = value("SELECT hex(changes) FROM v_denoise_layer WHERE run_id = 1 AND step = 2 AND layer ="
                                   " 1 AND kv_head = 0");
    ASSERT_EQ(blob.size(), 8u * 8u);
    const auto& row = all.rows[1];
    ASSERT_EQ(row.step, 2);
    for (std::size_t i = 0; i < 8; ++i) { // little-endian
        std::uint32_t bits = 0;
        for (std::size_t byte = 0; byte < 4; ++byte)
            bits |= std::uint32_t(std::stoul(blob.substr(8 * i + 2 * byte, 2), nullptr, 16)) << (8 * byte);
        EXPECT_EQ(all.cellsOf(row)[i].change, std::bit_cast<float>(bits));
    }
}

TEST_F(DenoisingReading, RowsOfTilesAreThoseOfTheLayersAndHeads) {
    record({.layers = 3, .decodeSteps = 20}, RecordLevel::Selections, 2);
    for (const RunCheck& check : checkTrace(*reader, {})) EXPECT_EQ(check.violations(), 0) << check.sentence();
    for (const auto& [layer, head] : {std::pair(2, 1), std::pair(-1, 0), std::pair(-1, -1)}) {
        request.layer = layer;
        request.kvHead = head;
        const std::string of = (layer < 0 ? "" : fmt::format(" AND layer = {}", layer)) +
                               (head < 0 ? "" : fmt::format(" AND kv_head = {}", head));
        int sparse = 0;
        for (const ForwardRow& row : readForwards(*reader, request, 0, 20).rows) {
            const std::string rows = fmt::format(" FROM v_denoise_tile WHERE run_id = 1 AND step = {}", row.step) + of;
            expectSame(row.leastRow, number("SELECT min(density)" + rows), "least" + rows);
            expectSame(row.meanRow, number("SELECT avg(density)" + rows), "mean" + rows);
            expectSame(row.mostRow, number("SELECT max(density)" + rows), "most" + rows);
            sparse += std::isnan(row.meanRow) ? 0 : 1;
        }
        EXPECT_GT(sparse, 10);
    }
    test::sql(file(), "UPDATE denoise_tile SET densities = '[[nan,-1],{\"a\":[0.25,'", SQLITE_OPEN_READWRITE);
    int known = 0;
    for (const ForwardRow& row : readForwards(*reader, request, 0, 20).rows) {
        if (std::isnan(row.meanRow)) continue;
        EXPECT_EQ(row.meanRow, 0.25f) << "the only share in it";
        ++known;
    }
    EXPECT_GT(known, 10);
    EXPECT_EQ(value("SELECT count(*) FROM v_denoise_tile"), "0") << "it is no JSON";
}

TEST_F(DenoisingReading, RunsOfOtherMethodsHaveNoRowsOfTiles) {
    record({.decodeSteps = 20});
    for (const ForwardRow& row : readForwards(*reader, request, 0, 20).rows) EXPECT_TRUE(std::isnan(row.meanRow));
}

TEST_F(DenoisingReading, TheFilterLeavesOutStepsLayersAndHeads) {
    record({.layers = 4, .decodeSteps = 30});
    request.layer = request.kvHead = -1;
    request.filter.steps = {{5, 9}, {20, 20}};
    request.filter.layers = {{1, 2}};
    request.filter.kvHeads = {{1, 1}};
    const ForwardRows some = readForwards(*reader, request, 0, 30);
    ASSERT_EQ(some.rows.size(), 6u);
    for (const ForwardRow& row : some.rows) {
        EXPECT_TRUE((row.step >= 5 && row.step <= 9) || row.step == 20);
        EXPECT_EQ(row.cells, 8u);
        EXPECT_EQ(row.layers, 2);
        expectSame(row.density,
                   number(fmt::format("SELECT avg(density) FROM v_denoise_layer WHERE run_id = 1 AND step = {} AND"
                                      " layer BETWEEN 1 AND 2 AND kv_head = 1",
                                      row.step)),
                   "filtered");
    }
}

TEST_F(DenoisingReading, ARunWithoutForwardsAndForeignRangesHaveNoRows) {
    synthetic::recordFile(folder / "run.kvtrace", {});
    reader.emplace(file());
    request.runId = 1;
    EXPECT_TRUE(readForwards(*reader, request, 0, 20).rows.empty());
    EXPECT_EQ(denoisingBlock(*reader->run(1)), 0);
    record({.decodeSteps = 5});
    for (const auto& [first, last] : {std::pair(-1, 3), std::pair(4, 3), std::pair(100, 200)})
        EXPECT_TRUE(readForwards(*reader, request, first, last).rows.empty());
    request.sequence = 7;
    EXPECT_TRUE(readForwards(*reader, request, 0, 5).rows.empty());
    request.runId = 3;
    EXPECT_TRUE(readForwards(*reader, request, 0, 5).rows.empty());
}

TEST_F(DenoisingReading, TokensHaveTheTextThatTheTraceHas) {
    record({.decodeSteps = 30});
    const std::vector<std::int32_t> ids{0, 1, 3, synthetic::kMaskId, 1};
    const auto found = tokenBytes(*reader, 1, 0, ids);
    EXPECT_EQ(found.size(), 3u);
    for (const int id : {0, 1, 3}) EXPECT_EQ(found.at(id), synthetic::words()[std::size_t(id)]);
    EXPECT_FALSE(found.contains(synthetic::kMaskId)) << "no text of it was recorded";
}

TEST_F(DenoisingReading, NumbersThatMeanNothingAreNotKnown) {
    record({.layers = 2, .decodeSteps = 12});
    const auto change = [&](const std::string& sql) { test::sql(file(), sql, SQLITE_OPEN_READWRITE); };
    change("UPDATE denoise_token SET confidence = CASE id % 3 WHEN 0 THEN -0.5 WHEN 1 THEN 9e999 END WHERE candidate IS"
           " NOT NULL; UPDATE denoise_layer SET density = 1.5 WHERE mode = 1;"
           " UPDATE denoise_layer SET changes = x'000080BF0000C07F0000807F0000803F' WHERE changes IS NOT NULL");
    const ForwardRows all = readForwards(*reader, request, 0, 12);
    ASSERT_EQ(all.rows.size(), 12u);
    for (const ForwardRow& row : all.rows) {
        EXPECT_TRUE(std::isnan(row.density));
        EXPECT_EQ(row.dense, row.sparseLayers == 0)
            << "a sparse forward whose density is not known is none that is dense";
        for (const ForwardCell& cell : all.cellsOf(row)) {
            EXPECT_TRUE(std::isnan(cell.confidence));
            const bool fourth = cell.position % 8 == 3 && row.denoiseStep > 0; // of -1, NaN, infinity and 1
            EXPECT_EQ(std::isnan(cell.change), !fourth) << row.step << ", " << cell.position;
        }
    }
    change("UPDATE denoise_token SET position = 9223372036854775807");
    EXPECT_THROW(readForwards(*reader, request, 0, 12), Error) << "no position of a text";
}

TEST_F(DenoisingReading, TilesInAnyOrderComeToTheSameSteps) {
    record({.sequences = 2, .decodeSteps = 60});
    request.layer = 0;
    const ForwardRows all = readForwards(*reader, request, 0, 60);
    DenoiseSteps grown, whole;
    whole.place(0, readTile(*reader, request, 0, 60));
    grown.announce(61);
    grown.setPreview(readPreview(*reader, request, 61, 7), 7);
    EXPECT_EQ(grown.at(16).row->step, 14) << "a neighbour stands for it";
    EXPECT_FALSE(grown.tiles().knows(16));
    for (const auto& [first, last] : {std::pair(0, 10), std::pair(11, 11), std::pair(12, 60)})
        grown.place(first, readTile(*reader, request, first, last));
    for (int step = 0; step <= 60; ++step) {
        const Forward a = whole.at(step), b = grown.at(step);
        ASSERT_EQ(bool(a), bool(b)) << step;
        EXPECT_EQ(bool(a), step > 0);
        if (!a) continue;
        EXPECT_EQ(a.row->block, b.row->block);
        ASSERT_EQ(b.cells.size(), 8u);
        for (std::size_t i = 0; i < 8; ++i) EXPECT_EQ(a.cells[i].after(), b.cells[i].after());
    }
    EXPECT_EQ(grown.lowest(), 200);
    EXPECT_EQ(grown.blocks().size(), whole.blocks().size());
    EXPECT_EQ(grown.blocks().begin()->second.lastStep, 9) << "eight writes and the clean forward";
    EXPECT_FALSE(grown.at(61));
    EXPECT_EQ(grown.before(61).row->step, 60);
    for (const ForwardCell& cell : all.cells)
        if (cell.written) {
            EXPECT_EQ(grown.fact(cell.position)->id, cell.candidate);
        }
    EXPECT_FALSE(grown.fact(100)) << "of the prompt";
    EXPECT_GT(grown.changeQuantile(0.98), grown.changeQuantile(0.5));
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
