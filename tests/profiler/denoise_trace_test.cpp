// Denoising forwards in a trace: rows as the engine said, the export's lines, steps that are cold, traces from before.
#include "core/trace/run_meta.h"
#include "profiler/check/check.h"
#include "profiler/export/export.h"
#include "profiler/read/step_kind.h"
#include "profiler/record/recorder.h"
#include "tests/profiler/sql_rows.h"
#include "tests/profiler/synthetic_run.h"
#include "tests/profiler/temporary_folder.h"

#include <gmock/gmock.h>
#include <sqlite3.h>
#include <sstream>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using ::testing::HasSubstr;

/// Two forwards of a block of three tokens: a dense one and a sparse one, in one layer with two KV heads.
void recordTwoForwards(const std::string& file) {
    RunInfo info;
    info.name = info.model = info.method = info.backend = info.device = info.link = "x";
    info.paramsJson = "{}", info.backend = "cpu", info.blockBytes = 4096;
    info.blockSize = 16, info.layers = 1, info.kvHeads = info.queryHeads = 2, info.headDim = 32, info.sequences = 1;
    info.meta.emplace_back(run_meta::kDenoisingBlock, "3");
    Recorder recorder(file, {});
    recorder.beginRun(info);
    for (int step = 0; step < 4; ++step) {
        auto record = recorder.acquire();
        record->step = step;
        record->phase = step == 0 ? Phase::Prefill : Phase::Decode;
        record->startNs = step * 100, record->durationNs = 50;
        record->layers.resize(1);
        record->layers[0].startNs = record->startNs;
        if (step > 0) {
            const bool sparse = step > 1;
            record->tokens = 1;
            record->opensBlock = step < 3;
            record->denoise.forwards.push_back({0, 11, step - 1, false, 3 - (step - 1), 1, 0, 3});
            for (int i = 0; i < 3; ++i) {
                const bool masked = i >= step - 1;
                record->denoise.tokens.push_back(
                    {33 + i, masked ? 99 : 7, masked ? 7 : -1, masked ? 0.5f : -1.f, i == step - 1});
            }
            if (sparse) record->denoise.changes = {0.f, 2.5f, 0.25f};
            if (sparse) record->denoise.kvChanges = {0.5f, 0.f, 4.f, 0.125f, 8.f, 1.f};
            for (int head = 0; head < 2; ++head) {
                DenoiseLayer layer{0, 0, head, sparse, 0, 0, 0, -1};
                if (sparse) {
                    layer.active = 0b110, layer.pages = 1 + head, layer.density = head == 0 ? 0.5f : 1.f;
                    if (head == 0) layer.firstChange = layer.firstKvChange = 0;
                    layer.firstRow = std::int64_t(record->denoise.rowDensities.size()), layer.rows = 2;
                    record->denoise.rowDensities.insert(record->denoise.rowDensities.end(), {0.5f, layer.density});
                    SelectionRecord selection;
                    selection.kvHead = head, selection.selected = selection.hits = 1 + head;
                    selection.kept = step == 2 ? -1 : 1 + head;
                    selection.first = std::uint32_t(record->blocks.size());
                    record->selections.push_back(selection);
                    for (int page = 1 - head; page < 2; ++page)
                        record->blocks.emplace_back(page, Origin::QueryAware, true);
                }
                record->denoise.layers.push_back(layer);
            }
            if (sparse) {
                record->layers[0].selected = record->layers[0].hits = 3;
                record->layers[0].kept = step == 2 ? -1 : 3;
            }
        }
        recorder.take(std::move(record));
    }
    recorder.endRun(RunStatus::Finished, "");
}

TEST(DenoiseTrace, HoldsWhatTheEngineSaid) {
    const test::Folder folder;
    const std::string file = (folder / "run.kvtrace").string();
    recordTwoForwards(file);
    using Row = std::vector<std::string>;
    EXPECT_EQ(test::sql(file, "SELECT step, seq, block, denoise_step, kind, masked, written FROM v_denoise").rows,
              (std::vector<Row>{{"1", "0", "11", "0", "denoise", "3", "1"},
                                {"2", "0", "11", "1", "denoise", "2", "1"},
                                {"3", "0", "11", "2", "denoise", "1", "1"}}));
    EXPECT_EQ(
        test::sql(file, "SELECT position, token_id, confidence, written, input_id FROM v_denoise_token WHERE step = 2")
            .rows,
        (std::vector<Row>{
            {"33", "7", "NULL", "0", "7"}, {"34", "7", "0.5", "1", "99"}, {"35", "7", "0.5", "0", "99"}}));
    EXPECT_EQ(test::sql(file,
                        "SELECT kv_head, mode, active, pages, density, active_set, length(changes) FROM v_denoise_layer"
                        " WHERE step IN (1, 2)")
                  .rows,
              (std::vector<Row>{{"0", "dense", "NULL", "NULL", "NULL", "NULL", "NULL"},
                                {"1", "dense", "NULL", "NULL", "NULL", "NULL", "NULL"},
                                {"0", "sparse", "2", "1", "0.5", "6", "12"},
                                {"1", "sparse", "2", "2", "1.0", "6", "NULL"}}));
    EXPECT_EQ(test::sql(file, "SELECT layer, seq, kv_head, query_head, tile_row, density FROM v_denoise_tile WHERE step"
                              " = 3")
                  .rows,
              (std::vector<Row>{{"0", "0", "0", "0", "0", "0.5"},
                                {"0", "0", "0", "0", "1", "0.5"},
                                {"0", "0", "1", "1", "0", "0.5"},
                                {"0", "0", "1", "1", "1", "1"}}));
    EXPECT_EQ(test::value(file, "SELECT count(*) FROM v_denoise_tile"), "8") << "of two sparse forwards";
    EXPECT_EQ(
        test::sql(file, "SELECT step, layer, seq, hex(key_changes), hex(value_changes) FROM v_denoise_change").rows,
        (std::vector<Row>{{"2", "0", "0", "0000003F0000000000008040", "0000003E000000410000803F"},
                          {"3", "0", "0", "0000003F0000000000008040", "0000003E000000410000803F"}}));
    for (const RunCheck& check : checkTrace(TraceReader(file), {}))
        EXPECT_EQ(check.violations(), 0) << check.sentence();
}

TEST(DenoiseTrace, EveryEditByHandBreaksARule) {
    const test::Folder folder;
    const std::string file = (folder / "run.kvtrace").string();
    const std::pair<const char*, const char*> edits[] = {
        {"UPDATE denoise_layer SET active = 3 WHERE active = 2", "denoise-active"},
        {"UPDATE denoise_layer SET active_set = -1 WHERE active = 2", "denoise-active"},
        {"UPDATE denoise_layer SET changes = x'00000000' WHERE changes IS NOT NULL", "denoise-changes"},
        {"UPDATE denoise_change SET key_changes = x'00000000'", "denoise-kv-changes"},
        {"UPDATE denoise_change SET value_changes = x''", "denoise-kv-changes"},
        {"UPDATE denoise_change SET id = id | 9", "denoise-change-layer"},
        {"UPDATE denoise_tile SET densities = '[[0.5, 1.5]]'", "denoise-tile"},
        {"UPDATE denoise_tile SET densities = '[[0.5], [0.5]]'", "denoise-tile"},
        {"UPDATE denoise_tile SET densities = '[[]]'", "denoise-tile"},
        {"UPDATE denoise_tile SET densities = '[0.5]'", "denoise-tile"},
        {"UPDATE denoise_tile SET densities = '[[\"half\"]]'", "denoise-tile"},
        {"UPDATE denoise_tile SET densities = 'half'", "denoise-tile"},
        {"DELETE FROM denoise_layer WHERE id & 1023 = 1", "denoise-tile-layer"},
        {"UPDATE denoise_tile SET densities = '[[0.1, 0.2]]'", "denoise-tile-union"},
        {"UPDATE denoise_tile SET densities = '[[0.5, 0.75]]' WHERE id & 1023 = 0", "denoise-tile-union"},
        {"UPDATE denoise SET block = 10 WHERE denoise_step = 1", "denoise-block"},
        {"UPDATE denoise_token SET position = position + 3 WHERE id & 1023 = 1", "denoise-block"},
        {"INSERT INTO run_meta VALUES (1, 'denoising_canvas', '64'); UPDATE denoise SET block = 10 WHERE denoise_step ="
         " 1",
         "denoise-canvas"},
        {"UPDATE denoise SET denoise_step = 7 WHERE denoise_step = 1", "denoise-order"},
        {"UPDATE denoise_token SET input_id = 8 WHERE input_id = 7", "denoise-input"},
        {"UPDATE denoise_token SET candidate = 8 WHERE written = 1", "denoise-input"},
        {"INSERT INTO run_meta VALUES (1, 'model_shape', '{\"vocab\": 50}')", "denoise-vocab"},
        {"UPDATE denoise SET id = id + (900 << 20) WHERE denoise_step = 1", "denoise-step"},
        {"UPDATE denoise SET kind = 1 WHERE denoise_step = 1", "denoise-counts"},
        {"UPDATE denoise SET masked = 3 WHERE denoise_step = 1", "denoise-masked"},
        {"UPDATE denoise SET written = 2 WHERE denoise_step = 1", "denoise-written"},
        {"UPDATE step SET tokens = 2 WHERE id & 0x1FFFFFF = 2", "denoise-tokens"},
        {"UPDATE denoise_token SET confidence = 1.5 WHERE candidate IS NOT NULL", "denoise-token"},
        {"UPDATE denoise_token SET confidence = NULL", "denoise-token"},
        {"UPDATE denoise_token SET written = 1", "denoise-token"},
        {"DELETE FROM denoise WHERE denoise_step = 1", "denoise-token-forward"},
        {"UPDATE denoise_layer SET mode = 0 WHERE mode = 1", "denoise-layer"},
        {"UPDATE denoise_layer SET mode = 2", "denoise-layer"},
        {"UPDATE denoise_layer SET density = 2 WHERE mode = 1", "denoise-layer"},
        {"DELETE FROM layer_step WHERE id >> 10 = (1 << 25) | 2", "denoise-layer-step"},
        {"UPDATE denoise_layer SET pages = pages + 1 WHERE mode = 1", "denoise-pages"},
        {"DELETE FROM denoise_layer WHERE id = (SELECT max(id) FROM denoise_layer)", "denoise-layer-missing"},
        {"UPDATE denoise_layer SET density = 0.01 WHERE mode = 1", "denoise-density"},
        {"UPDATE step SET opens_block = 1 WHERE id & 0x1FFFFFF = 3", "denoise-opens"},
        {"UPDATE step SET opens_block = 0 WHERE id & 0x1FFFFFF = 1", "denoise-opens"},
        {"UPDATE selection SET opens_block = 1 WHERE kept IS NOT NULL", "denoise-selection-opens"},
        {"INSERT INTO token SELECT (id >> 20 << 20), position, candidate + 1, '', NULL FROM denoise_token WHERE written"
         " = 1 LIMIT 1",
         "denoise-result"},
    };
    for (const auto& [edit, rule] : edits) {
        std::filesystem::remove(file);
        recordTwoForwards(file);
        test::sql(file, edit, SQLITE_OPEN_READWRITE);
        EXPECT_THAT(checkRun(TraceReader(file), 1).sentence(), HasSubstr("(" + std::string(rule) + ")")) << edit;
    }
}

TEST(DenoiseTrace, IsExportedAForwardALine) {
    const test::Folder folder;
    const std::string file = (folder / "run.kvtrace").string();
    recordTwoForwards(file);
    std::ostringstream out;
    const ExportResult result = exportTable(file, ExportTable::Denoising, ExportFormat::Jsonl, out);
    EXPECT_EQ(result.rows, 3);
    EXPECT_EQ(result.note, "");
    EXPECT_THAT(
        out.str(),
        HasSubstr("{\"run_id\":1,\"seq\":0,\"block\":11,\"step\":0,\"kind\":\"denoise\",\"ids\":[99,99,99],\"masked\":"
                  "[33,34,35],\"written\":[33],\"tokens\":[7,7,7],\"confidence\":[0.5,0.5,0.5],\"layers\":[{\"mode\":"
                  "\"dense\"}]}\n"));
    EXPECT_THAT(
        out.str(),
        HasSubstr(
            "\"layers\":[{\"mode\":\"sparse\",\"active\":[[1,2],[1,2]],\"pages\":[[1],[0,1]],"
            "\"density\":[0.5,1],\"rows\":[[[0.5,0.5]],[[0.5,1]]],\"delta\":[0,2.5,0.25],\"delta_keys\":[0.5,0,4],"
            "\"delta_values\":[0.125,8,1]}]}\n"));
    out.str({});
    EXPECT_EQ(exportTable(file, ExportTable::Denoising, ExportFormat::Csv, out).rows, 3);
    EXPECT_THAT(out.str(),
                HasSubstr("run_id,step,seq,block,denoise_step,kind,masked,written\n1,1,0,11,0,denoise,3,1\n"));
}

TEST(DenoiseTrace, OnlyTheFirstStepThatSelectsIsCold) {
    const test::Folder folder;
    const std::string file = (folder / "run.kvtrace").string();
    recordTwoForwards(file);
    const TraceReader reader(file);
    const RunRow run = reader.run(1).value();
    std::vector<StepRow> rows = reader.steps(1, 1);
    EXPECT_EQ(kindsOf(reader, run, rows), (std::vector{StepKind::Opening, StepKind::Cold, StepKind::Steady}));
    rows.push_back(rows[0]); // the next block: dense, then its first sparse forward, which has nothing to compare with
    rows.push_back(rows[1]);
    rows[3].step = 4, rows[4].step = 5;
    EXPECT_EQ(kindsOf(reader, run, rows).back(), StepKind::Opening);
}

TEST(DenoiseTrace, ATraceOfBeforeGetsTheTablesWhenItIsWritten) {
    const test::Folder folder;
    const std::string file = (folder / "run.kvtrace").string();
    {
        Recorder recorder(file, {});
        synthetic::record(recorder, {});
    }
    sqlite3* database = nullptr;
    ASSERT_EQ(sqlite3_open(file.c_str(), &database), SQLITE_OK);
    ASSERT_EQ(sqlite3_exec(database,
                           "DROP VIEW v_denoise; DROP VIEW v_denoise_token; DROP VIEW v_denoise_layer; DROP VIEW"
                           " v_denoise_tile; DROP VIEW v_denoise_change; DROP TABLE denoise_change; DROP TABLE "
                           "denoise; DROP TABLE denoise_token; DROP TABLE denoise_layer;"
                           " DROP TABLE denoise_tile",
                           nullptr, nullptr, nullptr),
              SQLITE_OK);
    sqlite3_close(database);
    std::ostringstream out;
    EXPECT_THAT(exportTable(file, ExportTable::Denoising, ExportFormat::Jsonl, out).note, HasSubstr("before"));
    recordTwoForwards(file);
    EXPECT_EQ(test::sql(file, "SELECT run_id, count(*) FROM v_denoise GROUP BY 1").rows[0],
              (std::vector<std::string>{"2", "3"}));
    EXPECT_EQ(exportTable(file, ExportTable::Denoising, ExportFormat::Jsonl, out).rows, 3);
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
