// Reading with a filter, against sums over the recorded steps themselves and against the trace's own SQL.
#include "profiler/read/filtered.h"
#include "profiler/tiles/filtered_tiles.h"
#include "tests/profiler/sql_rows.h"
#include "tests/profiler/synthetic_run.h"
#include "tests/profiler/temporary_folder.h"

#include <gtest/gtest.h>

#include <cctype>
#include <cmath>
#include <map>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

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
    ReadFilter filter{{{0, 1}, {3, 3}}, {}, {{2, 4}, {9, 1 << 30}}, {}, {}};
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

TEST_F(FilteredReading, BytesOfAHeadAreKnownWhereALayerLoadedItsMissesOnly) {
    const std::string file = (folder / "a.kvtrace").string();
    const std::int64_t block = reader().run(1)->blockBytes;
    // Layer 2 of step 9 as ShadowKV has it: values of the misses only, so half of the bytes. And as lookahead has it in
    // layer 3 of step 12: a block more, for a later step.
    test::sql(file,
              "UPDATE layer_step SET h2d_bytes = misses * " + std::to_string(block) +
                  " / 2 + 1 WHERE id = (1 << 25 | 9) << 10 | 2; UPDATE layer_step SET h2d_bytes = (misses + 1) * " +
                  std::to_string(block) + " WHERE id = (1 << 25 | 12) << 10 | 3",
              SQLITE_OPEN_READWRITE);
    ReadFilter heads;
    heads.kvHeads = {{1, 1}};
    for (const StepRow& row : filteredSteps(reader(), 1, heads)) {
        EXPECT_EQ(row.h2dBytes, row.step == 9 || row.step == 12 ? -1 : row.misses * block) << row.step;
    }
    heads.layers = {{1, 1}};
    for (const StepRow& row : filteredSteps(reader(), 1, heads)) EXPECT_EQ(row.h2dBytes, row.misses * block);
    heads.layers = {};
    const StepMatrix cells = filteredLayers(reader(), 1, Metric::H2dBytes, -1, heads),
                     single = reader().layerMatrix(1, Metric::H2dBytes, {0, 1}),
                     ofHeads = reader().headMatrix(1, Metric::H2dBytes, 2),
                     misses = reader().layerMatrix(1, Metric::Misses, {0, 1});
    for (int step = 1; step < cells.steps; ++step)
        for (int layer = shape.denseLayers; layer < shape.layers; ++layer) {
            const bool unknown = (step == 9 && layer == 2) || (step == 12 && layer == 3);
            EXPECT_EQ(std::isnan(cells.at(step, layer)), unknown) << step << ' ' << layer;
            EXPECT_EQ(std::isnan(single.at(step, layer)), unknown) << step << ' ' << layer;
            if (!unknown) {
                EXPECT_EQ(single.at(step, layer), misses.at(step, layer) * float(block));
                EXPECT_EQ(cells.at(step, layer), single.at(step, layer));
            }
            if (layer == 2) {
                EXPECT_EQ(std::isnan(ofHeads.at(step, 1)), unknown);
            }
        }
    EXPECT_FALSE(std::isnan(reader().layerMatrix(1, Metric::H2dBytes).at(9, 2))) << "of whole layers they are recorded";
}

TEST_F(FilteredReading, WithoutLayersGivesTheStepsAsTheyAre) {
    const auto all = reader().steps(1), rows = filteredSteps(reader(), 1, {{}, {}, {{5, 8}}, {}, {}});
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
        if (row.phase == Phase::Decode) found[{row.layer, row.component}] = row.totalNs;
    EXPECT_EQ(found, expected);
}

TEST_F(FilteredReading, ComponentsAndOtherStillAddUpToTheWallTimeOfTheSteps) {
    const ReadFilter some{{}, {}, {{3, 7}}, {}, {}};
    std::int64_t wall = 0, parts = 0;
    for (const StepRecord& step : steps)
        if (step.step >= 3 && step.step <= 7) wall += step.durationNs;
    for (const BreakdownRow& row : filteredBreakdown(reader(), 1, some)) parts += row.totalNs;
    EXPECT_EQ(parts, wall);
    // And without any filter it is the breakdown itself.
    std::int64_t all = 0, filtered = 0;
    for (const BreakdownRow& row : reader().breakdown(1)) all += row.totalNs;
    for (const BreakdownRow& row : filteredBreakdown(reader(), 1, {{{0, 1000}}, {}, {{0, 1 << 30}}, {}, {}}))
        filtered += row.totalNs;
    EXPECT_LT(filtered, all) << "with a filter on layers, nothing outside them counts";
    filtered = 0;
    for (const BreakdownRow& row : filteredBreakdown(reader(), 1, {{}, {}, {{0, 1 << 30}}, {}, {}}))
        filtered += row.totalNs;
    EXPECT_EQ(filtered, all);
}

/// The filter of this test in the words of SQL.
const std::string kHeads =
    " AND layer IN (1, 3) AND kv_head = 1 AND (step BETWEEN 2 AND 20) AND step IN (SELECT step FROM"
    " v_token WHERE run_id = 1 AND text LIKE '%e%')";
const ReadFilter kSome{
    .layers = {{1, 1}, {3, 3}}, .kvHeads = {{1, 1}}, .steps = {{2, 20}}, .text = "E", .component = {}};

TEST_F(FilteredReading, CountsTheKvHeadsOfTheFilterAsSqlDoes) {
    const auto rows = filteredSteps(reader(), 1, kSome);
    const auto expected = test::sql((folder / "a.kvtrace").string(),
                                    "SELECT step, sum(selected), sum(hits), sum(misses), sum(misses) * 8192,"
                                    " sum(kept) FROM v_locality WHERE run_id = 1" +
                                        kHeads + " GROUP BY step ORDER BY step")
                              .rows;
    ASSERT_EQ(rows.size(), expected.size());
    ASSERT_GE(rows.size(), 3u);
    ASSERT_LT(rows.size(), 19u) << "some steps' tokens hold no e";
    for (std::size_t i = 0; i < rows.size(); ++i) {
        EXPECT_EQ(std::to_string(rows[i].step), expected[i][0]);
        EXPECT_EQ(std::to_string(rows[i].selected), expected[i][1]);
        EXPECT_EQ(std::to_string(rows[i].hits), expected[i][2]);
        EXPECT_EQ(std::to_string(rows[i].misses), expected[i][3]);
        EXPECT_EQ(std::to_string(rows[i].h2dBytes), expected[i][4]);
        EXPECT_EQ(std::to_string(rows[i].kept), expected[i][5]);
        EXPECT_EQ(rows[i].exposedNs, -1) << "recorded for whole layers only";
        EXPECT_EQ(rows[i].transferNs, -1);
        EXPECT_EQ(rows[i].d2hBytes, -1);
    }
}

TEST_F(FilteredReading, AllKvHeadsTogetherAreTheLayer) {
    const auto plain =
        filteredSteps(reader(), 1, {.layers = {{1, 4}}, .kvHeads = {}, .steps = {}, .text = {}, .component = {}});
    const auto heads =
        filteredSteps(reader(), 1, {.layers = {{1, 4}}, .kvHeads = {{0, 7}}, .steps = {}, .text = {}, .component = {}});
    ASSERT_EQ(plain.size(), heads.size());
    for (std::size_t i = 1; i < plain.size(); ++i) {
        EXPECT_EQ(plain[i].hits, heads[i].hits);
        EXPECT_EQ(plain[i].misses, heads[i].misses);
        EXPECT_EQ(plain[i].selected, heads[i].selected);
    }
}

TEST_F(FilteredReading, LayersOfSomeHeadsAreWhatSqlSays) {
    const std::map<Metric, std::string> sql{
        {Metric::Locality, "sum(kept) * 1.0 / sum(CASE WHEN kept IS NOT NULL THEN selected END)"},
        {Metric::HitRate, "sum(hits) * 1.0 / sum(hits + misses)"},
        {Metric::Misses, "sum(misses)"},
        {Metric::H2dBytes, "sum(misses) * 8192"}};
    for (const auto& [metric, value] : sql) {
        const StepMatrix matrix = filteredLayers(reader(), 1, metric, -1, kSome);
        std::map<std::pair<int, int>, double> expected;
        for (const auto& row : test::sql((folder / "a.kvtrace").string(), "SELECT step, layer, " + value +
                                                                              " FROM v_locality WHERE run_id = 1" +
                                                                              kHeads + " GROUP BY step, layer")
                                   .rows)
            if (row[2] != "NULL") expected[{std::stoi(row[0]), std::stoi(row[1])}] = std::stod(row[2]);
        ASSERT_GE(expected.size(), 6u);
        for (int step = 0; step < matrix.steps; ++step)
            for (int layer = 0; layer < matrix.rows; ++layer) {
                const auto found = expected.find({step, layer});
                if (found == expected.end())
                    EXPECT_TRUE(std::isnan(matrix.at(step, layer))) << step << ", " << layer;
                else // a float has 24 bits
                    EXPECT_NEAR(double(matrix.at(step, layer)), found->second, 1e-7 * found->second)
                        << step << ", " << layer;
            }
    }
    for (const Metric metric : {Metric::ExposedTime, Metric::LayerTime}) {
        const StepMatrix matrix = filteredLayers(reader(), 1, metric, -1, kSome);
        EXPECT_TRUE(std::all_of(matrix.values.begin(), matrix.values.end(), [](float v) { return std::isnan(v); }))
            << "times are not recorded for single heads";
    }
}

TEST_F(FilteredReading, LayerTimeOfOneComponentIsThatStage) {
    const ReadFilter stage{.layers = {{2, 4}}, .kvHeads = {}, .steps = {}, .text = {}, .component = "o_linear"};
    const StepMatrix matrix = filteredLayers(reader(), 1, Metric::LayerTime, -1, stage);
    for (const StepRecord& step : steps)
        for (int layer = 2; layer < shape.layers; ++layer)
            EXPECT_NEAR(double(matrix.at(step.step, layer)),
                        double(step.layers[std::size_t(layer)].stageNs[std::size_t(Stage::OLinear)]) / 1e3, 1e-4);
    EXPECT_TRUE(std::isnan(matrix.at(3, 1)));
    ReadFilter outside = stage;
    outside.component = "lm_head";
    EXPECT_EQ(filteredLayers(reader(), 1, Metric::LayerTime, -1, outside).at(3, 2), 0) << "it is in no layer";
}

TEST_F(FilteredReading, TextOfTokensIsWhatLikeFinds) {
    const std::string path = (folder / "a.kvtrace").string();
    for (const std::string text : {"NEEDLE", "e", "42", "\"quoted\"", "no such word"}) {
        ReadFilter wanted;
        wanted.text = text;
        const auto passes = stepsThatPass(reader(), 1, wanted, 4, 30);
        for (int step = 4; step <= 30; ++step)
            EXPECT_EQ(passes[std::size_t(step - 4)],
                      test::value(path, "SELECT count(*) > 0 FROM v_token WHERE run_id = 1 AND step = " +
                                            std::to_string(step) + " AND text LIKE '%" + text + "%'") == "1")
                << text << " " << step;
    }
    ReadFilter wild; // no word holds these, but every word matches them as patterns
    for (const char* text : {"_", "%", "\\"}) {
        wild.text = text;
        const auto passes = stepsThatPass(reader(), 1, wild, 0, 30);
        EXPECT_EQ(std::count(passes.begin(), passes.end(), true), 0) << text;
    }
}

TEST_F(FilteredReading, BreakdownCountsTheStepsWithTheText) {
    ReadFilter wanted;
    wanted.text = "e";
    wanted.layers = {{1, 2}};
    std::map<std::string, std::int64_t> expected;
    for (const auto& row :
         test::sql(
             (folder / "a.kvtrace").string(),
             "SELECT sum(ffn_ns), sum(rope_ns) FROM v_layer WHERE run_id = 1 AND phase = 'decode' AND layer IN (1, 2)"
             " AND step IN (SELECT step FROM v_token WHERE text LIKE '%e%')")
             .rows)
        expected = {{"ffn", std::stoll(row[0])}, {"rope", std::stoll(row[1])}};
    std::map<std::string, std::int64_t> found;
    for (const BreakdownRow& row : filteredBreakdown(reader(), 1, wanted))
        if (row.phase == Phase::Decode && (row.component == "ffn" || row.component == "rope"))
            found[row.component] += row.totalNs;
    EXPECT_EQ(found, expected);
}

TEST_F(FilteredReading, BlocksWithATextAreFoundAlsoAcrossTheirBorders) {
    const TraceReader trace = reader();
    std::string bytes;
    std::vector<int> owner; // block of each byte
    const auto add = [&](const TokenRow& token) {
        for (const char c : token.bytes) {
            bytes += char(std::tolower(static_cast<unsigned char>(c)));
            owner.push_back(token.position / shape.blockSize);
        }
    };
    for (const TokenRow& token : trace.prompt(1, 0)) add(token);
    for (const TokenRow& token : trace.tokens(1, 0)) add(token);
    int across = 0;
    for (const std::string text : {"needle", "hay", "42", "dle", "in hay", "the", "\xA5the", "not there"}) {
        std::vector<bool> expected(std::size_t(owner.back()) + 1);
        for (std::size_t at = 0; at + text.size() <= bytes.size(); ++at) {
            if (bytes.compare(at, text.size(), text) != 0) continue;
            across += owner[at] != owner[at + text.size() - 1];
            for (std::size_t i = 0; i < text.size(); ++i) expected[std::size_t(owner[at + i])] = true;
        }
        EXPECT_EQ(blocksWithText(trace, 1, 0, text), expected) << text;
        for (std::size_t block = 0; block < expected.size(); ++block)
            if (trace.blockText(1, 0, int(block)).find(text) != std::string::npos) {
                EXPECT_TRUE(expected[block]) << text << " is in the text of block " << block;
            }
    }
    EXPECT_TRUE(blocksWithText(trace, 7, 0, "x").empty());
    EXPECT_GT(across, 0) << "the case is there";
}

TEST_F(FilteredReading, TilesUnderAFilterHoldTheFilteredLayers) {
    const TraceReader trace = reader();
    for (const Metric metric : {Metric::Locality, Metric::Misses, Metric::LayerTime}) {
        ReadFilter filters[] = {kSome, kSome, {}};
        filters[1].kvHeads.clear();
        for (const ReadFilter& each : filters) {
            HeatRequest request;
            request.runId = 1;
            request.metric = metric;
            const auto tile = readFilteredTile(trace, request, each, 3, 18, {});
            const auto preview = readFilteredPreview(trace, request, each, 31, 5);
            const StepMatrix matrix = filteredLayers(trace, 1, metric, -1, each);
            const auto same = [](float a, float b) { return a == b || (std::isnan(a) && std::isnan(b)); };
            for (int step = 3; step <= 18; ++step)
                for (int layer = 0; layer < shape.layers; ++layer)
                    EXPECT_TRUE(same(tile->at(step - 3, layer), matrix.at(step, layer))) << step << ", " << layer;
            ASSERT_EQ(preview->steps(), 7);
            for (int i = 0; i < 7; ++i)
                for (int layer = 0; layer < shape.layers; ++layer)
                    EXPECT_TRUE(same(preview->at(i, layer), matrix.at(5 * i, layer))) << i << ", " << layer;
        }
    }
    HeatRequest head;
    head.runId = 1;
    head.filter.kvHead = 0;
    const auto left = readFilteredTile(trace, head, kSome, 3, 18, {});
    EXPECT_TRUE(std::isnan(left->at(4, 1))) << "KV head 0 is not in the filter";
    head.filter.kvHead = 1;
    const auto kept = readFilteredTile(trace, head, kSome, 3, 18, {});
    int defined = 0;
    for (int i = 0; i < kept->steps(); ++i) defined += !std::isnan(kept->at(i, 1));
    EXPECT_GT(defined, 2);
}

TEST_F(FilteredReading, MasksUnderAFilterHoldItsStepsAndTheBlocksWithItsText) {
    const TraceReader trace = reader();
    ReadFilter wanted;
    wanted.steps = {{4, 9}};
    wanted.text = "needle";
    const auto found = blocksWithText(trace, 1, 0, "needle");
    const auto tile = readFilteredTile(trace, MaskRequest{1, 2, 0, 1}, wanted, 0, 30, {});
    int cells = 0;
    for (int step = 0; step <= 30; ++step) {
        std::vector<int> expected;
        if (const auto row = trace.selection(1, step, 2, 0, 1); row && step >= 4 && step <= 9)
            for (const PackedBlock block : row->blocks)
                if (found[std::size_t(block.id())]) expected.push_back(block.id());
        std::vector<int> actual;
        for (const MaskCell cell : tile->cells(step)) actual.push_back(cell.block());
        EXPECT_EQ(actual, expected) << step;
        cells += int(actual.size());
    }
    EXPECT_GT(cells, 0);
    wanted.kvHeads = {{0, 0}};
    EXPECT_EQ(readFilteredTile(trace, MaskRequest{1, 2, 0, 1}, wanted, 0, 30, {})->anyBits(), 0)
        << "its head is not in the filter";
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
