// Every rule of the trace format, kept by good traces and broken by hand.
#include "base/error.h"
#include "profiler/check/check.h"
#include "tests/profiler/sql_rows.h"
#include "tests/profiler/synthetic_run.h"
#include "tests/profiler/synthetic_serving.h"
#include "tests/profiler/temporary_folder.h"
#include "tests/support/places.h"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>
#include <set>
#include <span>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using testing::Contains;
using testing::HasSubstr;

/// Rules for rows that the good run below does not have, by the beginnings of their ids.
const std::set<std::string_view> kNotInIt{"span",   "detail",    "counter", "gauge",   "flow",
                                          "note",   "lookahead", "denoise", "request", "iteration",
                                          "member", "event",     "served",  "clock",   "piece"};

class Check : public testing::Test {
protected:
    Check() { recordGood(); }
    /// As a session of KVScope leaves it: with the shape of its model.
    void recordGood() const {
        std::filesystem::remove(file);
        synthetic::RunShape shape;
        shape.oracle = true;
        shape.sequences = 2;
        shape.denseLayers = 1;
        synthetic::recordFile(file, shape);
        sayShape();
    }
    void sayShape() const {
        change("INSERT INTO run_meta SELECT run_id, 'model_shape', json_object('name', 'a', 'layers', layers, 'hidden',"
               " 384, 'query_heads', query_heads, 'kv_heads', kv_heads, 'head_dim', head_dim, 'ffn', 0, 'vocab', 16,"
               " 'eviction_head', json('false'), 'tied_embeddings', json('true'), 'bytes_per_weight', 2.0) FROM run");
    }
    void change(const std::string& sql) const { test::sql(file, sql, SQLITE_OPEN_READWRITE); }
    /// The ids of the rules that are broken.
    std::vector<std::string> broken() const {
        std::vector<std::string> ids;
        for (const RunCheck& check : checkTrace(TraceReader(file)))
            for (const RuleResult& rule : check.rules)
                if (rule.violations > 0) ids.emplace_back(rule.id);
        return ids;
    }
    static std::string listed(const std::vector<RunCheck>& checks) {
        std::string text;
        for (const RunCheck& check : checks)
            for (const Violation& each : check.examples)
                text += each.rule + ": " + each.where + ": " + each.what + "\n";
        return text.substr(0, 500);
    }
    /// Every edit alone, of the trace as it is now, breaks the rule beside it.
    void expectBroken(std::span<const std::pair<const char*, const char*>> edits) const {
        const std::string good = (folder / "good.kvtrace").string();
        std::filesystem::copy_file(file, good);
        for (const auto& [edit, rule] : edits) {
            std::filesystem::copy_file(good, file, std::filesystem::copy_options::overwrite_existing);
            change(edit);
            EXPECT_THAT(broken(), Contains(rule)) << edit;
        }
    }
    test::Folder folder;
    std::string file = (folder / "run.kvtrace").string();
};

TEST_F(Check, FindsNothingInWhatTheRecorderWrites) {
    const auto checks = checkTrace(TraceReader(file));
    EXPECT_EQ(listed(checks), "");
    ASSERT_EQ(checks.size(), 2u) << "the file and its run";
    EXPECT_GT(checks[1].rules.size(), 50u);
    for (const RuleResult& rule : checks[1].rules) {
        const std::string_view about = rule.id.substr(0, rule.id.find('-'));
        EXPECT_EQ(rule.tested, !kNotInIt.contains(about)) << rule.id;
    }
    for (const char* sample : {"h200-nosa-tiny.kvtrace", "h200-nosa-8b.kvtrace", "h200-serving.kvtrace"})
        EXPECT_EQ(listed(checkTrace(TraceReader(test::source("resources/samples/") + sample))), "") << sample;
}

// A path of the machine that recorded a sample means nothing to those who open it, and names that machine's user.
TEST(Samples, NameNoFolderOfTheMachineThatRecordedThem) {
    int samples = 0;
    for (const auto& entry : std::filesystem::directory_iterator(test::source("resources/samples"))) {
        if (entry.path().extension() != ".kvtrace") continue;
        ++samples;
        const std::string file = entry.path().string();
        if (test::value(file, "SELECT count(*) FROM sqlite_master WHERE name = 'run_meta'") == "0") continue;
        EXPECT_EQ(test::value(file, "SELECT count(*) FROM run_meta WHERE value LIKE '/%'"), "0") << entry.path();
    }
    EXPECT_GE(samples, 3);
}

/// Statements that break one rule each in the recorded run, and the rule.
constexpr std::pair<const char*, const char*> kEdits[] = {
    {"UPDATE selection SET kept = 3 * selected WHERE id = (SELECT max(id) FROM selection)", "kept"},
    {"UPDATE step SET tokens = -tokens WHERE id & 0x1FFFFFF = 3", "step-tokens"},
    {"UPDATE step SET duration_ns = -duration_ns WHERE id & 0x1FFFFFF = 3", "step-times"},
    {"UPDATE step SET start_ns = 0 WHERE id & 0x1FFFFFF = 5", "step-order"},
    {"UPDATE step SET exposed_ns = transfer_ns + 1 WHERE id & 0x1FFFFFF = 5", "step-exposed"},
    {"UPDATE step SET exposed_ns = -22 WHERE id & 0x1FFFFFF = 5", "step-exposed-sign"},
    {"UPDATE step SET hits = hits + 1 WHERE id & 0x1FFFFFF = 5", "step-hits-and-misses"},
    {"UPDATE step SET hits = -1, misses = selected + 1 WHERE id & 0x1FFFFFF = 5", "step-hits"},
    {"UPDATE step SET selected = selected + 1, hits = hits + 1 WHERE id & 0x1FFFFFF = 5", "step-sum-selected"},
    {"UPDATE step SET h2d_bytes = h2d_bytes + 1 WHERE id & 0x1FFFFFF = 5", "step-sum-bytes"},
    {"UPDATE step SET h2d_bytes = -1 WHERE id & 0x1FFFFFF = 5", "step-bytes"},
    {"UPDATE step SET transfer_ns = transfer_ns + 1 WHERE id & 0x1FFFFFF = 5", "step-sum-transfer"},
    {"UPDATE step SET phase = 7 WHERE id & 0x1FFFFFF = 5", "step-phase"},
    {"UPDATE step SET opens_block = 9 WHERE id & 0x1FFFFFF = 5", "step-opens"},
    {"UPDATE step SET opens_block = 0", "step-opens-selection"},
    {"UPDATE step SET embed_ns = duration_ns + 1 WHERE id & 0x1FFFFFF = 5", "step-has-stages"},
    {"UPDATE step SET kept = selected + 1 WHERE id & 0x1FFFFFF = 5", "step-kept"},
    {"DELETE FROM step WHERE id & 0x1FFFFFF = 5", "layer-step"},
    {"UPDATE layer_step SET ffn_ns = -5 WHERE id & 1023 = 2", "layer-times"},
    {"UPDATE layer_step SET start_ns = start_ns + 1000000000 WHERE id & 1023 = 2", "layer-in-step"},
    {"UPDATE layer_step SET mass = 1.5 WHERE id & 1023 = 2", "layer-mass"},
    {"UPDATE layer_step SET hits = hits + 1 WHERE id & 1023 = 2 AND selected > 0", "layer-hits-and-misses"},
    {"UPDATE layer_step SET kept = selected + 5 WHERE id & 1023 = 2 AND kept IS NOT NULL", "layer-kept"},
    {"UPDATE layer_step SET h2d_ns = -1 WHERE id & 1023 = 2", "layer-transfer"},
    {"UPDATE layer_step SET exposed_ns = h2d_ns + d2h_ns + 1 WHERE id & 1023 = 2", "layer-exposed"},
    {"UPDATE layer_step SET selected = selected + 2, hits = hits + 2 WHERE id & 1023 = 2", "layer-sum-selected"},
    {"DELETE FROM layer_step WHERE id & 1023 = 2", "selection-layer"},
    {"UPDATE selection SET hits = hits + 1 WHERE id = (SELECT max(id) FROM selection)", "hits-and-misses"},
    {"UPDATE selection SET hits = selected, misses = 0 WHERE misses > 0", "blob-hits"},
    {"UPDATE selection SET mass = -0.1", "selection-mass"},
    {"UPDATE selection SET opens_block = 2", "selection-counts"},
    {"UPDATE selection SET blocks = x'ff00'", "blob"},
    {"UPDATE selection SET selected = selected + 1, hits = hits + 1", "blob-count"},
    {"UPDATE selection SET kept = kept - 1 WHERE kept > 0", "blob-kept"},
    {"UPDATE oracle SET recall = 2", "oracle-recall"},
    {"DELETE FROM selection WHERE id = (SELECT max(id) FROM selection)", "oracle-selection"},
    {"INSERT INTO lookahead SELECT id, 1, 3, 0, 0, NULL FROM selection LIMIT 1", "lookahead-counts"},
    {"INSERT INTO lookahead VALUES ((1 << 55) | 12345, 1, 1, 0, 0, NULL)", "lookahead-selection"},
    {"UPDATE token SET position = -4 WHERE id = (SELECT max(id) FROM token)", "token-numbers"},
    {"UPDATE token SET position = 1 WHERE id = (SELECT max(id) FROM token)", "token-order"},
    {"UPDATE prompt SET token_id = -4", "prompt-numbers"},
    {"UPDATE run SET sequences = 1", "selection-place"},
    {"UPDATE run SET layers = 2", "layer-number"},
    {"UPDATE run SET timing = 'guessed'", "timing-word"},
    {"UPDATE run SET level = 'much'", "level-word"},
    {"UPDATE run SET level = 'counters'", "selection-level"},
    {"UPDATE run SET status = 'well'", "status-word"},
    {"UPDATE run SET created_utc = 'yesterday'", "created-time"},
    {"UPDATE run SET params_json = '[1]'", "params-object"},
    {"UPDATE run SET link_gbps = -3", "run-sizes"},
    {"UPDATE run SET link_gbps = 0", "modelled-link"},
    {"UPDATE run SET device_slots = 0; UPDATE step SET h2d_bytes = 0", "resident-hits"},
    {"INSERT OR REPLACE INTO run_meta VALUES (1, 'model_fingerprint', '1:1:77:nonsense')", "fingerprint-form"},
    {"INSERT OR REPLACE INTO run_meta VALUES (1, 'model_fingerprint', '1:1:77')", "fingerprint-form"},
    {"INSERT OR REPLACE INTO run_meta VALUES (1, 'model_shape', '{\"layers\": 99, \"kv_heads\": 2}')", "shape-of-run"},
    {"INSERT OR REPLACE INTO run_meta VALUES (1, 'model_shape', 'large')", "shape-of-run"},
    {"DELETE FROM run_meta WHERE key = 'knows'; UPDATE step SET hits = 0, misses = 0", "knows-said"},
    {"INSERT INTO text VALUES (901, printf('%.*c', 65537, 'x'))", "text-length"},
    {"INSERT INTO note VALUES (1, 1, 5, 6, printf('%.*c', 65537, 'x'), '')", "note-length"},
    {"INSERT INTO run_meta VALUES (1, 'diary', printf('%.*c', 65537, 'x'))", "meta-length"},
    {"UPDATE health SET error = printf('%.*c', 65537, 'x')", "error-length"},
    {"INSERT INTO span_detail VALUES (1, NULL, printf('%.*c', 65537, 'x'))", "args-length"},
    {"DELETE FROM health", "health-row"},
    {"UPDATE health SET error = 'the disk is full'", "finished-without-error"},
    {"INSERT INTO step SELECT id + (1 << 25), phase, tokens, opens_block, start_ns, duration_ns, embed_ns, "
     "lm_head_ns,"
     " sample_ns, selected, kept, hits, misses, h2d_blocks, d2h_blocks, h2d_bytes, d2h_bytes, transfer_ns, "
     "exposed_ns"
     " FROM step",
     "step-run"},
    {"INSERT INTO span(id, run_id, step, layer, kind, track, name, start_ns, duration_ns, depth) VALUES (1, 1, 0, "
     "0, 9, 1, 1, 0, -4, 0)",
     "span-numbers"},
    {"INSERT INTO span(id, run_id, step, layer, kind, track, name, start_ns, duration_ns, depth) VALUES (1, 1, 0, "
     "0, 0, 77, 77, 0, 4, 0)",
     "span-names"},
    {"INSERT INTO span(id, run_id, step, layer, kind, track, name, start_ns, duration_ns, depth, bytes) VALUES (1, "
     "1, 0, 0, 2, 1, 1, 0, 4, 0, -5)",
     "span-numbers"},
    {"INSERT INTO span(id, run_id, step, layer, kind, track, name, start_ns, duration_ns, depth, stage) VALUES (1, "
     "1, 0, 0, 1, 1, 1, 0, 4, 0, 77)",
     "span-names"},
    {"INSERT INTO counter VALUES (1, 1, 77, 0, -10, 5)", "counter-values"},
    {"INSERT INTO clock_sync VALUES (1, 1, 1, 0, 7, -1)", "clock-values"},
    {"INSERT INTO flow VALUES (1, 1, 5, 6)", "flow-spans"},
    {"INSERT INTO note VALUES (1, 1, 5, -6, '', '')", "note-times"},
    {"UPDATE step SET kept = kept - 1 WHERE id & 0x1FFFFFF = 5", "step-sum-kept"},
    {"UPDATE step SET kept = NULL WHERE id & 0x1FFFFFF = 5", "step-sum-kept"},
    {"UPDATE layer_step SET kept = kept - 1 WHERE id = (SELECT max(id) FROM layer_step)", "layer-sum-kept"},
    {"UPDATE layer_step SET mass = mass / 2 WHERE id = (SELECT max(id) FROM layer_step)", "layer-mean-mass"},
    {"DELETE FROM layer_step WHERE id >> 10 = (1 << 25) | 5", "step-layers"},
    {"DELETE FROM selection WHERE id >> 20 = (SELECT max(id) FROM layer_step)", "layer-selections"},
    {"DELETE FROM selection", "run-selections"},
    {"DELETE FROM selection; UPDATE run SET level = 'selections'", "run-selections"},
    {"UPDATE run SET block_size = 0", "block-size"},
    {"UPDATE run SET block_bytes = 0", "block-size"},
    {"UPDATE run SET block_size = block_size * 4", "blob-range"},
    {"UPDATE run SET block_size = block_size / 2", "selection-opens"},
    {"UPDATE run SET device_slots = 3", "selection-slots"},
    {"UPDATE run SET budget_blocks = 3", "selection-budget"},
    {"UPDATE run SET backend = 'abacus'", "backend-word"},
    {"UPDATE run SET level = 'selections'", "blob-scores"},
    {"UPDATE run SET name = printf('%.*c', 70000, 'x')", "run-length"},
    {"UPDATE run SET params_json = '{\"a\":\"' || printf('%.*c', 1048576, 'x') || '\"}'", "run-length"},
    {"UPDATE token SET token_id = -5 WHERE id = (SELECT max(id) FROM token)", "token-numbers"},
    {"UPDATE token SET token_id = 999999 WHERE id = (SELECT max(id) FROM token)", "token-vocab"},
    {"UPDATE prompt SET token_id = 999999 WHERE id = (SELECT max(id) FROM prompt)", "prompt-vocab"},
    {"UPDATE token SET position = 4294967296 WHERE id = (SELECT max(id) FROM token)", "token-positions"},
    {"UPDATE prompt SET id = id + 7 WHERE id = (SELECT max(id) FROM prompt)", "prompt-positions"},
    {"UPDATE step SET tokens = 400 WHERE id & 0x1FFFFFF = 5", "step-token-rows"},
    {"DELETE FROM run_meta WHERE key = 'engine'; UPDATE step SET tokens = 0 WHERE id & 0x1FFFFFF = 5",
     "step-token-rows"},
    {"UPDATE token SET text = 'abc', bytes = x'00'", "text-bytes"},
    {"UPDATE prompt SET text = 'abc', bytes = x'00'", "prompt-bytes"},
    {"UPDATE run SET block_bytes = 100", "layer-block-bytes"},
    {"UPDATE run SET block_bytes = 16 * 2 * block_size * head_dim + 1", "block-bytes"},
    {"UPDATE run SET block_bytes = 4294967297, head_dim = 0", "block-bytes"},
    {"UPDATE layer_step SET h2d_blocks = 0 WHERE id = (SELECT id FROM layer_step WHERE h2d_blocks > 0 LIMIT 1)",
     "layer-block-bytes"},
    {"UPDATE step SET tokens = tokens + 1 WHERE id & 0x1FFFFFF = 0", "prefill-tokens"},
    {"UPDATE selection SET opens_block = 1 - opens_block WHERE id = (SELECT max(id) FROM selection)",
     "selection-opens"},
    {"UPDATE step SET opens_block = 1", "step-opens-token"},
    {"UPDATE step SET phase = 0 WHERE id & 0x1FFFFFF = 5", "step-phase"},
    {"UPDATE layer_step SET h2d_ns = 9000000000000000000 WHERE id = (SELECT max(id) FROM layer_step)",
     "modelled-times"},
    {"UPDATE run SET link_gbps = 2 * link_gbps", "modelled-times"},
    {"UPDATE run SET timing = 'measured'; UPDATE layer_step SET h2d_ns = 9000000000000000000 WHERE id = (SELECT"
     " max(id) FROM layer_step)",
     "measured-times"},
    {"UPDATE step SET duration_ns = duration_ns + 1000000 WHERE id & 0x1FFFFFF = 5", "step-overlap"},
    {"UPDATE step SET duration_ns = 90000000000000 WHERE id = (SELECT max(id) FROM step)", "step-heartbeat"},
    {"UPDATE layer_step SET start_ns = start_ns - 20000 WHERE id & 1023 = 3", "layer-order"},
    {"UPDATE step SET id = id + 100 WHERE id = (SELECT max(id) FROM step)", "step-gaps"},
    {"UPDATE health SET heartbeat_ms = -1", "health-row"},
    {"INSERT INTO lookahead VALUES ((9 << 55) | 12345, 1, 1, 0, 0, NULL)", "lookahead-run"},
    {"INSERT INTO lookahead SELECT id, 999, 900, 0, 0, 999 FROM selection LIMIT 1", "lookahead-selected"},
    {"INSERT INTO oracle VALUES ((9 << 55) | 12345, 1, 1, NULL, NULL, NULL)", "oracle-run"},
    {"UPDATE oracle SET best_mass = 0.001", "oracle-order"},
    {"DELETE FROM oracle WHERE id = (SELECT max(id) FROM oracle)", "oracle-missing"},
    {"INSERT INTO denoise VALUES ((9 << 45) | 12345, 0, 0, 0, 0, 0)", "denoise-run"},
    {"INSERT INTO denoise_token VALUES ((9 << 45) | 12345, 0, 0, NULL, NULL, 0)", "denoise-token-run"},
    {"INSERT INTO denoise_layer(id, mode) VALUES ((9 << 55) | 12345, 0)", "denoise-layer-run"},
    {"INSERT INTO denoise_tile VALUES ((9 << 55) | 12345, '[[0.5]]')", "denoise-tile-run"},
    {"INSERT INTO denoise_change VALUES ((9 << 55) | 12345, x'00000000', x'00000000')", "denoise-change-run"},
    {"INSERT INTO run_meta VALUES (9, 'engine', 'abacus')", "meta-run"},
    {"INSERT INTO span_detail VALUES (77, NULL, '{}')", "detail-span"},
    {"UPDATE run_meta SET value = '[\"hits\", \"everything\"]' WHERE key = 'knows'", "knows-words"},
    {"UPDATE run_meta SET value = '{\"hits\": \"hits\"}' WHERE key = 'knows'", "knows-words"},
    {"UPDATE run_meta SET value = 'all' WHERE key = 'knows'", "knows-words"},
    {"INSERT INTO run_meta VALUES (1, 'kv_block_tokens', '-4')", "meta-numbers"},
    {"INSERT INTO run_meta VALUES (1, 'denoising_canvas', '0')", "meta-numbers"},
    {"INSERT INTO run_meta VALUES (1, 'sample_every', '2')", "sample-every"},
    {"INSERT INTO run_meta VALUES (1, 'sample_every', 'often')", "sample-every"},
    {"INSERT INTO run_meta VALUES (1, 'rank', '-1')", "rank-numbers"},
    {"INSERT INTO run_meta VALUES (1, 'rank', '4'), (1, 'world', '4')", "rank-numbers"},
    {"INSERT INTO run_meta VALUES (1, 'head_first', '')", "rank-numbers"},
    {"INSERT INTO run_meta VALUES (1, 'layout', 'tp=4/4 dp=0/2')", "rank-layout"},
    {"INSERT INTO run_meta VALUES (1, 'layout', 'tp=1')", "rank-layout"},
    {"INSERT INTO run_meta VALUES (1, 'head_range', '8..15')", "rank-heads"},
    {"INSERT INTO run_meta VALUES (1, 'clocks', '[[\"utc\", 5, 1000, -3]]')", "rank-clocks"},
    {"INSERT INTO run_meta VALUES (1, 'clocks', '{\"utc\": 5}')", "rank-clocks"},
    {"INSERT INTO run_meta VALUES (1, 'clock_offset', '{\"added_ns\": 5, \"error_ns\": -1, \"by\": \"utc\"}')",
     "rank-offset"},
    {"INSERT INTO run_meta VALUES (1, 'index_leader', '[0, 0]')", "index-leader"},
    {"INSERT INTO run_meta VALUES (1, 'index_leader', '[0, 0, 1, 3]')", "index-leader"},
    {"INSERT INTO run_meta VALUES (1, 'index_leader', '[0, -1, 2, 3]')", "index-leader"},
    {"INSERT INTO run_meta VALUES (1, 'index_leader', '{\"a\": 0, \"b\": 1, \"c\": 2, \"d\": 3}')", "index-leader"},
    {"INSERT INTO run_meta VALUES (1, 'needles', '[{\"sequence\": 1, \"first\": 900000, \"tokens\": 4, \"value\":"
     " \"7\"}]')",
     "needles-place"},
    {"INSERT INTO run_meta VALUES (1, 'needles', '[{\"sequence\": 2, \"first\": 1, \"tokens\": 1, \"value\":"
     " \"7\"}]')",
     "needles-place"},
    {"INSERT INTO run_meta VALUES (1, 'needles', 'hay')", "needles-place"},
    {"INSERT INTO run_meta SELECT 1, 'fork', json_object('run', 1, 'created_utc', created_utc, 'step', 5000,"
     " 'changes', json_array()) FROM run",
     "fork-step"},
    {"INSERT INTO run_meta VALUES (1, 'fork', '{\"run\": 999, \"created_utc\": \"\", \"step\": 5, \"changes\": []}')",
     "fork-step"},
    {"INSERT INTO run_meta VALUES (1, 'labels', '{\"name\": 5}')", "labels-words"},
    {"INSERT INTO run_meta VALUES (1, 'labels', '[]')", "labels-words"},
    {"INSERT INTO run_meta VALUES (1, 'serving', '{\"rows\": -3}')", "serving-numbers"},
    {"INSERT INTO run_meta VALUES (1, 'recording_overhead', '{\"plain_ms\": -3}')", "overhead-times"},
    {"UPDATE run_meta SET value = json_set(value, '$.hidden', -384) WHERE key = 'model_shape'", "shape-numbers"},
    {"UPDATE run_meta SET value = json_set(value, '$.bytes_per_weight', 0) WHERE key = 'model_shape'", "shape-numbers"},
    {"UPDATE run_meta SET value = json_set(value, '$.tied_embeddings', 7) WHERE key = 'model_shape'", "shape-numbers"},
    {"INSERT INTO span(id, run_id, step, layer, kind, track, name, start_ns, duration_ns, depth) VALUES (1, 1, 500,"
     " 0, 0, 1, 1, 0, 4, 0)",
     "span-step"},
    {"INSERT INTO span(id, run_id, step, layer, kind, track, name, start_ns, duration_ns, depth) VALUES (1, 1, 0,"
     " 500, 0, 1, 1, 0, 4, 0)",
     "span-step"},
    {"INSERT INTO span(id, run_id, step, layer, kind, track, name, start_ns, duration_ns, depth) VALUES (1, 1, 0,"
     " 0, 0, 1, 1, 900000000000000, 4, 0)",
     "span-time"},
    {"INSERT INTO counter VALUES (1, 1, 77, -900000000000000, 10, 5)", "counter-time"},
    {"UPDATE selection SET hits = -1, misses = selected + 1 WHERE id = (SELECT max(id) FROM selection)",
     "selection-hits"},
    {"UPDATE selection SET blocks = NULL WHERE id = (SELECT max(id) FROM selection)", "selection-blocks"},
    {"UPDATE layer_step SET hits = hits + 1, misses = misses - 1 WHERE id = (SELECT max(id) FROM layer_step)",
     "layer-sum-hits"},
    {"UPDATE layer_step SET hits = hits + 1, misses = misses - 1 WHERE id = (SELECT max(id) FROM layer_step)",
     "layer-sum-misses"},
    {"UPDATE layer_step SET hits = -1, misses = selected + 1 WHERE id & 1023 = 2", "layer-hits"},
    {"UPDATE layer_step SET selected = -1 WHERE id & 1023 = 2", "layer-counts"},
    {"UPDATE layer_step SET d2h_blocks = -1 WHERE id & 1023 = 2", "layer-bytes"},
    {"UPDATE layer_step SET exposed_ns = -1 WHERE id & 1023 = 2", "layer-exposed-sign"},
    {"UPDATE step SET selected = -1 WHERE id & 0x1FFFFFF = 5", "step-counts"},
    {"UPDATE step SET sample_ns = -1 WHERE id & 0x1FFFFFF = 5", "step-stages"},
    {"UPDATE step SET transfer_ns = -1 WHERE id & 0x1FFFFFF = 5", "step-transfer"},
    {"UPDATE step SET exposed_ns = exposed_ns + 1 WHERE id & 0x1FFFFFF = 5", "step-sum-exposed"},
    {"UPDATE step SET hits = hits - 1, misses = misses + 1 WHERE id & 0x1FFFFFF = 5", "step-sum-hits"},
    {"UPDATE oracle SET best_mass = 1.5 WHERE id = (SELECT max(id) FROM oracle)", "oracle-best"},
    {"UPDATE oracle SET far_recall = NULL WHERE far_recall IS NOT NULL", "oracle-far"},
    {"UPDATE oracle SET far_mass = -0.5 WHERE far_mass IS NOT NULL", "oracle-far"},
    {"UPDATE token SET id = id + 5 WHERE id = (SELECT max(id) FROM token)", "token-index"},
    {"UPDATE token SET id = id + (1 << 20) WHERE id = (SELECT max(id) FROM token)", "token-step"},
    {"UPDATE token SET id = id + (7 << 10) WHERE id = (SELECT max(id) FROM token)", "token-sequence"},
    {"UPDATE prompt SET id = id + (7 << 45) WHERE (id >> 45) & 1023 = 1", "prompt-sequence"},
    {"DELETE FROM prompt WHERE (id >> 45) & 1023 = 1", "prompt-sequences"},
    {"INSERT INTO prompt VALUES ((9 << 55) | 5, 1, '', NULL)", "prompt-run"},
    {"INSERT INTO token VALUES ((9 << 45) | 5, 1, 1, '', NULL)", "token-run"},
    {"UPDATE selection SET id = (9 << 55) | 5 WHERE id = (SELECT max(id) FROM selection)", "selection-run"},
    {"UPDATE layer_step SET id = (9 << 35) | 5 WHERE id = (SELECT max(id) FROM layer_step)", "layer-run"},
    {"INSERT INTO span(id, run_id, step, layer, kind, track, name, start_ns, duration_ns, depth) VALUES (1, 9, 0,"
     " 0, 0, 1, 1, 0, 4, 0)",
     "span-run"},
    {"INSERT INTO counter VALUES (1, 9, 1, 0, 10, 5)", "counter-run"},
    {"INSERT INTO clock_sync VALUES (1, 9, 1, 0, 10, 5)", "clock-run"},
    {"INSERT INTO gauge VALUES (1, 9, 1, 0, 5.0)", "gauge-run"},
    {"INSERT INTO gauge VALUES (1, 1, 1, 0, 9e999)", "gauge-values"},
    {"INSERT INTO gauge VALUES (1, 1, 777, 0, 5.0)", "gauge-values"},
    {"INSERT INTO flow VALUES (1, 9, 5, 6)", "flow-run"},
    {"INSERT INTO note VALUES (1, 9, 5, 6, '', '')", "note-run"},
    {"INSERT INTO health SELECT 9, program, 0, 0, heartbeat_ms, '' FROM health", "health-run"},
    {"INSERT INTO run SELECT 300, name, created_utc, model, method, params_json, backend, device, link, timing,"
     " link_gbps, link_latency_us, block_size, layers, kv_heads, query_heads, head_dim, sequences, device_slots,"
     " budget_blocks, block_bytes, level, status, status_message FROM run",
     "run-number"},
    {"UPDATE health SET heartbeat_ms = 3591579503823", "heartbeat-time"},
    {"UPDATE run SET created_utc = '2900-01-01T00:00:00Z'", "heartbeat-time"},
    {"UPDATE layer_step SET mass = 0.5 WHERE id & 1023 = 0", "layer-mean-mass"},
    {"UPDATE health SET writer_busy_ns = 9000000000000000000", "writer-busy"},
    {"INSERT INTO text VALUES (1, 'a'); INSERT INTO span(id, run_id, step, layer, kind, track, name, start_ns,"
     " duration_ns, depth) VALUES (1, 1, 0, 0, 0, 1, 1, 0, 4, 0); INSERT INTO span_detail VALUES (1, 77, NULL)",
     "span-detail"},
    {"INSERT INTO text VALUES (1, 'a'); INSERT INTO span(id, run_id, step, layer, kind, track, name, start_ns,"
     " duration_ns, depth) VALUES (1, 1, 0, 0, 0, 1, 1, 0, 4, 0); INSERT INTO span_detail VALUES (1, NULL, '[1]')",
     "span-detail"},
};

TEST_F(Check, FindsEveryEditByHand) { expectBroken(kEdits); }

/// Edits after which two tables say different things, each consistent in itself.
constexpr std::pair<const char*, const char*> kContradictions[] = {
    {"UPDATE layer_step SET h2d_blocks = 2 * h2d_blocks; UPDATE step SET h2d_blocks = 2 * h2d_blocks", "layer-loads"},
    {"UPDATE step SET hits = selected, misses = 0; UPDATE layer_step SET hits = selected, misses = 0; UPDATE selection"
     " SET hits = selected, misses = 0, blocks = NULL; UPDATE run SET level = 'counters'",
     "layer-loads"},
    {"UPDATE layer_step SET exposed_ns = 0; UPDATE step SET exposed_ns = 0", "layer-waits"},
    {"UPDATE layer_step SET exposed_ns = h2d_ns / 2; UPDATE step SET exposed_ns = (SELECT total(exposed_ns) FROM"
     " layer_step l WHERE l.id >> 10 = step.id)",
     "layer-waits"},
    {"UPDATE run SET method = 'full'", "full-selects"},
    {"UPDATE run SET timing = 'measured'", "timing-backend"},
    {"UPDATE run SET timing = 'measured'; UPDATE layer_step SET h2d_ns = 0, d2h_ns = d2h_bytes > 0", "link-speed"},
    {"UPDATE run SET query_heads = 2 * kv_heads + 1", "head-groups"},
    {"INSERT INTO run_meta VALUES (1, 'shadow', 'true')", "shadow-loads"},
    {"INSERT INTO run_meta VALUES (1, 'index_leader', '[0, 1, 1, 1]')", "leader-rows"},
    {"INSERT INTO run_meta VALUES (1, 'needles', '[{\"sequence\": 1, \"first\": 0, \"tokens\": 2, \"value\":"
     " \"79930\"}]')",
     "needles-text"},
    {"INSERT INTO run_meta VALUES (1, 'needles', '[{\"sequence\": 0, \"first\": 100, \"tokens\": 1, \"value\":"
     " \"The needle\"}]')",
     "needles-text"},
    {"UPDATE oracle SET recall = 1", "oracle-whole"},
    {"UPDATE oracle SET far_recall = 1 WHERE far_recall IS NOT NULL", "oracle-whole"},
    {"INSERT INTO lookahead SELECT id, 900, 0, 900, 0, NULL FROM selection", "lookahead-wasted"},
    {"INSERT INTO run_meta VALUES (1, 'denoising_block', '32')", "step-denoises"},
    {"INSERT INTO denoise VALUES (((1 << 25) | 3) << 20, 0, 0, 1, 0, 0)", "denoise-said"},
    {"UPDATE run SET backend = 'cuda'; INSERT INTO text VALUES (1, 'a'); INSERT INTO span(id, run_id, step, layer, "
     "kind,"
     " track, name, start_ns, duration_ns, depth) VALUES (1, 1, 0, 0, 1, 1, 1, 0, 1500000, 0), (2, 1, 1, 0, 1, 1, 1, "
     "100,"
     " 4, 0)",
     "span-order"},
    {"UPDATE run SET backend = 'cuda'; INSERT INTO text VALUES (1, 'a'); INSERT INTO span(id, run_id, step, layer, "
     "kind,"
     " track, name, start_ns, duration_ns, depth) VALUES (1, 1, 2, 0, 2, 1, 1, -90000000, 4, 0)",
     "span-kernel"},
    {"UPDATE run SET backend = 'cuda'; INSERT INTO text VALUES (1, 'a'); INSERT INTO span(id, run_id, step, layer, "
     "kind,"
     " track, name, start_ns, duration_ns, depth) VALUES (1, 1, 2, 0, 1, 1, 1, 90000000, 4, 0)",
     "span-kernel"},
};

TEST_F(Check, FindsEveryContradiction) { expectBroken(kContradictions); }

// One sequence, so that no step decodes some sequences densely beside others that select.
TEST_F(Check, FindsDenseAttentionOfALayerThatSelects) {
    std::filesystem::remove(file);
    synthetic::RunShape shape;
    shape.denseLayers = 1;
    synthetic::recordFile(file, shape);
    sayShape();
    EXPECT_EQ(listed(checkTrace(TraceReader(file))), "");
    const std::pair<const char*, const char*> edits[] = {
        {"UPDATE layer_step SET attention_ns = stage2_ns, stage2_ns = 0 WHERE stage2_ns > 0", "layer-attention"},
    };
    expectBroken(edits);
}

// What another engine cannot know, or does otherwise, is no contradiction there.
TEST_F(Check, JudgesOnlyItsOwnEngineByWhatItDoes) {
    change("UPDATE run_meta SET value = 'abacus' WHERE key = 'engine'; UPDATE run SET method = 'full', level ="
           " 'counters'; UPDATE selection SET blocks = NULL; UPDATE layer_step SET exposed_ns = h2d_ns / 2, h2d_blocks"
           " = h2d_blocks + (misses > 0), attention_ns = stage2_ns, stage2_ns = 0 WHERE selected > 0; UPDATE step SET"
           " exposed_ns = (SELECT total(exposed_ns) FROM layer_step l WHERE l.id >> 10 = step.id), h2d_blocks = (SELECT"
           " total(h2d_blocks) FROM layer_step l WHERE l.id >> 10 = step.id)");
    EXPECT_EQ(listed(checkTrace(TraceReader(file))), "");
}

// A rank writes the shape and the index leaders of its own part; merged, its run has the heads and layers of all ranks.
TEST_F(Check, TakesTheShapeOfAMergedRunForThatOfItsRank) {
    change("UPDATE run_meta SET value = json_set(value, '$.kv_heads', 1) WHERE key = 'model_shape'");
    change("INSERT INTO run_meta VALUES (1, 'index_leader', '[0, 0]')");
    EXPECT_THAT(broken(), testing::UnorderedElementsAre("shape-of-run", "index-leader"));
    change("INSERT INTO run_meta VALUES (1, 'merged_from', 'rank0.kvtrace:1'), (1, 'head_range', '0..0')");
    EXPECT_EQ(listed(checkTrace(TraceReader(file))), "");
}

TEST_F(Check, FindsNothingInWhatWritersSayOfARun) {
    change("INSERT INTO run_meta SELECT 1, 'fork', json_object('run', 1, 'created_utc', created_utc, 'step', 3,"
           " 'changes', json_array('method quest')) FROM run");
    change(
        "INSERT INTO run_meta VALUES (1, 'rank', '3'), (1, 'world', '4'), (1, 'layout', 'tp=3/4 dp=0/1'),"
        " (1, 'head_first', '6'), (1, 'head_range', '1..1'), (1, 'clocks', '[[\"utc\", 5, 1000, 3]]'),"
        " (1, 'clock_offset', '{\"added_ns\": -5, \"error_ns\": 1, \"by\": \"utc\"}'),"
        " (1, 'index_leader', '[0, 0, 2, 3]'), (1, 'labels', '{\"name\": \"a\", \"tags\": [\"b\"]}'),"
        " (1, 'needles', '[{\"sequence\": 1, \"first\": 0, \"tokens\": 2, \"name\": \"a\", \"value\": \"needle\"}]'),"
        " (1, 'recording_overhead', '{\"plain_ms\": 1.5, \"tokens_equal\": true}')");
    EXPECT_EQ(listed(checkTrace(TraceReader(file))), "");
}

TEST_F(Check, FindsEveryEditOfAServingRun) {
    const std::pair<const char*, const char*> edits[] = {
        {"UPDATE request SET arrival_ns = first_sched_ns + 1 WHERE id & 0xFF = 3", "request-times"},
        {"UPDATE request SET end_ns = 5 WHERE id & 0xFF = 3", "request-times"},
        {"UPDATE request SET first_sched_ns = NULL WHERE id & 0xFF = 3", "request-times"},
        {"UPDATE request SET output_tokens = max_tokens + 1 WHERE id & 0xFF = 3", "request-counts"},
        {"UPDATE request SET pauses = -1", "request-counts"},
        {"UPDATE request SET status = 'asleep' WHERE id & 0xFF = 3", "request-status"},
        {"UPDATE request SET end_ns = NULL WHERE id & 0xFF = 3", "request-status"},
        {"UPDATE request_span SET state = 'asleep' WHERE id & 0xFF = 2", "span-request"},
        {"UPDATE request_span SET request = 999 WHERE id & 0xFF = 2", "span-request"},
        {"UPDATE request_span SET start_ns = start_ns + 1 WHERE state = 'decode'", "span-gapless"},
        {"UPDATE request SET arrival_ns = 0 WHERE id & 0xFF = 3", "span-gapless"},
        {"UPDATE iteration SET start_ns = 0 WHERE id & 0xFF = 5", "iteration-times"},
        {"UPDATE iteration SET decode_ns = duration_ns, prefill_ns = 1 WHERE id & 0xFF = 5", "iteration-times"},
        {"UPDATE iteration SET ws_bytes = -1 WHERE id & 0xFF = 5", "iteration-counts"},
        {"UPDATE run_meta SET value = json_set(value, '$.host_kv_bytes', 1) WHERE key = 'serving'; UPDATE iteration "
         "SET host_bytes = 2"
         " WHERE id & 0xFF = 5",
         "iteration-budget"},
        {"UPDATE run_meta SET value = json_set(value, '$.device_kv_bytes', 1) WHERE key = 'serving'; UPDATE iteration "
         "SET mavl_bytes = 2"
         " WHERE id & 0xFF = 5",
         "iteration-budget"},
        {"UPDATE iteration SET decode_rows = decode_rows + 1 WHERE id & 0xFF = 5", "iteration-members"},
        {"DELETE FROM member WHERE id = (SELECT max(id) FROM member)", "iteration-members"},
        {"UPDATE member SET request = 999 WHERE id = (SELECT max(id) FROM member)", "member-place"},
        {"UPDATE member SET token_ns = 1 WHERE id = (SELECT max(id) FROM member)", "member-place"},
        {"UPDATE member SET kind = 7 WHERE id = (SELECT max(id) FROM member)", "member-place"},
        {"UPDATE member SET misses = misses + 1 WHERE id = (SELECT max(id) FROM member)", "request-tokens"},
        {"UPDATE request SET output_tokens = output_tokens - 1 WHERE id & 0xFF = 3", "request-tokens"},
        {"UPDATE iteration SET waiting = 900 WHERE id & 0xFF = 5", "iteration-requests"},
        {"UPDATE iteration SET admitted = admitted + 1", "iteration-requests"},
        {"UPDATE iteration SET refused = 5 WHERE id & 0xFF = 5", "iteration-requests"},
        {"UPDATE iteration SET waiting = waiting + 1 WHERE id & 0xFF = 5", "iteration-waiting"},
        {"UPDATE iteration SET waiting = waiting - 1 WHERE id & 0xFF = 14", "iteration-waiting"},
        {"UPDATE iteration SET admitted = admitted + 1 WHERE id & 0xFF = 4", "iteration-admitted"},
        {"UPDATE iteration SET admitted = admitted - 1 WHERE admitted > 0", "iteration-admitted"},
        {"UPDATE iteration SET refused = 1 WHERE id & 0xFF = 7", "iteration-refused"},
        {"UPDATE iteration SET paused = paused + 1 WHERE id & 0xFF = 5", "iteration-paused"},
        {"UPDATE iteration SET paused = 0 WHERE paused > 0", "iteration-paused"},
        {"UPDATE member SET tokens = 100000 WHERE kind = 1", "member-place"},
        {"UPDATE request SET slo_ttft_ms = -4 WHERE id & 0xFF = 3", "request-counts"},
        {"UPDATE request SET slo_tbt_ms = 9e999 WHERE id & 0xFF = 3", "request-counts"},
        {"UPDATE request SET first_step = 3, last_step = 2 WHERE id & 0xFF = 3", "request-steps"},
        {"UPDATE request SET first_step = 1, last_step = 9", "request-steps"},
        {"UPDATE request SET last_step = 4 WHERE id & 0xFF = 3", "request-steps"},
        {"UPDATE request SET first_token_ns = NULL WHERE id & 0xFF = 3", "request-progress"},
        {"UPDATE request SET max_tokens = max_tokens + 1 WHERE id & 0xFF = 3", "request-progress"},
        {"UPDATE request SET first_sched_ns = arrival_ns WHERE status = 'refused'", "request-progress"},
        {"UPDATE request SET status = 'queued', end_ns = NULL WHERE id & 0xFF = 3", "request-progress"},
        {"UPDATE request SET end_ns = end_ns + 1 WHERE id & 0xFF = 3", "span-gapless"},
        {"DELETE FROM request_span WHERE id = (SELECT max(id) FROM request_span)", "span-gapless"},
        {"DELETE FROM request_span WHERE request = 3", "span-gapless"},
        {"UPDATE request SET paused_ns = paused_ns + 1 WHERE pauses > 0", "request-pauses"},
        {"UPDATE request SET pauses = 7 WHERE pauses > 0", "request-pauses"},
        {"UPDATE request_span SET state = 'decode' WHERE state = 'paused'", "request-pauses"},
        {"UPDATE request_span SET first_iteration = last_iteration + 1 WHERE state = 'decode'", "span-iterations"},
        {"UPDATE request_span SET last_iteration = 33000000 WHERE state = 'decode'", "span-iterations"},
        {"UPDATE request_span SET first_iteration = -1 WHERE state = 'decode'", "span-iterations"},
        {"UPDATE request_span SET last_iteration = NULL WHERE state = 'decode'", "span-iterations"},
        {"DELETE FROM iteration WHERE id & 0xFF = 5", "iteration-numbers"},
        {"UPDATE iteration SET id = id + 9 WHERE id = (SELECT max(id) FROM iteration)", "iteration-numbers"},
        {"UPDATE iteration SET start_ns = 90000000000000 WHERE id = (SELECT max(id) FROM iteration)",
         "iteration-heartbeat"},
        {"UPDATE member SET tokens = 5 WHERE kind = 0", "member-layers"},
        {"UPDATE member SET layer_to = layer_from - 1 WHERE kind = 1 AND layer_from > 0", "member-layers"},
        {"UPDATE member SET layer_to = 700 WHERE kind = 1", "member-layers"},
        {"UPDATE request SET row = row + 1 WHERE id & 0xFF = 3", "request-row"},
        {"UPDATE request SET row = NULL WHERE id & 0xFF = 3", "request-row"},
        {"UPDATE run SET sequences = 1", "request-row"},
        {"UPDATE request SET first_token_ns = first_token_ns + 1 WHERE id & 0xFF = 3", "request-first"},
        {"UPDATE request SET first_sched_ns = arrival_ns + 1 WHERE id & 0xFF = 7", "request-first"},
        {"INSERT INTO request SELECT (9 << 40) | 5, row, class, arrival_ns, first_sched_ns, first_token_ns, end_ns,"
         " prompt_tokens, max_tokens, output_tokens, status, reason, paused_ns, pauses, hits, misses, h2d_bytes,"
         " host_bytes, device_bytes, slo_ttft_ms, slo_tbt_ms, NULL, NULL, NULL FROM request LIMIT 1",
         "request-run"},
        {"UPDATE request_span SET id = (9 << 40) | 5 WHERE id = (SELECT max(id) FROM request_span)",
         "request-span-run"},
        {"UPDATE iteration SET id = (9 << 25) | 5 WHERE id = (SELECT max(id) FROM iteration)", "iteration-run"},
        {"UPDATE member SET id = (9 << 35) | 5 WHERE id = (SELECT max(id) FROM member)", "member-run"},
        {"UPDATE row_event SET id = (9 << 40) | 5 WHERE id = (SELECT max(id) FROM row_event)", "event-run"},
        {"UPDATE row_event SET kind = 'asleep' WHERE id & 0xFF = 3", "event-place"},
        {"UPDATE row_event SET row = 7 WHERE id & 0xFF = 3", "event-place"},
        {"UPDATE row_event SET request = 999 WHERE id & 0xFF = 3", "event-place"},
        {"UPDATE row_event SET iteration = 0 WHERE id = (SELECT max(id) FROM row_event)", "event-place"},
        {"UPDATE row_event SET iteration = 33000000 WHERE id = (SELECT max(id) FROM row_event)", "event-place"},
        {"UPDATE row_event SET time_ns = -1 WHERE id & 0xFF = 3", "event-place"},
        {"UPDATE row_event SET time_ns = time_ns + 30000000 WHERE kind = 'admitted' AND request = 3", "event-time"},
        {"UPDATE row_event SET time_ns = time_ns - 30000000 WHERE kind = 'admitted' AND request = 5", "event-time"},
        {"UPDATE row_event SET time_ns = time_ns + 1 WHERE kind = 'released' AND request = 3", "event-time"},
        {"UPDATE row_event SET time_ns = time_ns + 1 WHERE kind = 'paused'", "event-span"},
        {"UPDATE row_event SET time_ns = time_ns + 1 WHERE kind = 'resumed'", "event-span"},
        {"DELETE FROM row_event WHERE kind = 'released' AND request = 3", "event-row"},
        {"UPDATE row_event SET request = 5 WHERE kind = 'released' AND request = 3", "event-row"},
        {"DELETE FROM row_event WHERE kind = 'paused'", "event-order"},
        {"UPDATE row_event SET kind = 'paused' WHERE kind = 'resumed'", "event-order"},
        {"UPDATE row_event SET row = (row + 1) % 3 WHERE kind = 'paused'", "event-order"},
        {"DELETE FROM row_event WHERE kind IN ('paused', 'resumed')", "event-pauses"},
        {"UPDATE row_event SET iteration = iteration + 1 WHERE kind = 'admitted'", "event-member"},
        {"UPDATE row_event SET iteration = iteration - 1 WHERE kind = 'released'", "event-member"},
        {"DELETE FROM row_event WHERE request = 3", "event-member"},
        {"UPDATE step SET tokens = tokens + 1", "served-step"},
        {"UPDATE step SET duration_ns = duration_ns - 1", "served-step"},
        {"UPDATE step SET start_ns = 0 WHERE id = (SELECT min(id) FROM step)", "served-step"},
        {"DELETE FROM iteration WHERE id = (SELECT max(id) FROM step)", "served-step"},
        {"DELETE FROM step WHERE id = (SELECT id FROM step LIMIT 1 OFFSET 3)", "step-gaps"},
        {"UPDATE member SET kind = 1 WHERE id = (SELECT max(id) FROM member WHERE kind = 0)", "served-selection"},
        {"DELETE FROM member WHERE id = (SELECT max(id) FROM member WHERE kind = 0)", "served-selection"},
        {"UPDATE member SET hits = hits - 1, misses = misses + 1 WHERE kind = 0", "served-hits"},
        {"UPDATE selection SET opens_block = 1 - opens_block", "served-opens"},
        {"UPDATE selection SET kept = 0 WHERE kept IS NULL", "served-kept"},
        {"UPDATE request SET prompt_tokens = 16 WHERE id & 0xFF = 3", "blob-range"},
        {"UPDATE run_meta SET value = json_set(value, '$.host_kv_bytes', 10) WHERE key = 'serving'; UPDATE request SET"
         " host_bytes = 11 WHERE id & 0xFF = 3",
         "request-budget"},
        {"UPDATE request_span SET state = 'decode' WHERE state = 'prefill'", "span-state"},
        {"UPDATE request_span SET state = 'prefill' WHERE state = 'decode'", "span-state"},
        {"UPDATE iteration SET surprises = 1000000", "iteration-surprises"},
        {"DELETE FROM row_event WHERE kind = 'resumed'", "event-paused"},
    };
    std::filesystem::remove(file);
    synthetic::recordServing(file, 12, true, RunStatus::Finished, true);
    EXPECT_EQ(listed(checkTrace(TraceReader(file))), "");
    expectBroken(edits);
}

// Steps 1 and 2 of the good run read another prompt for sequence 1, which selects there all the same.
TEST_F(Check, FindsEveryEditOfPiecesOfPrompts) {
    change("DELETE FROM prompt; DELETE FROM token WHERE (id >> 10) & 1023 = 1 AND (id >> 20) & 0x1FFFFFF > 0;"
           "INSERT INTO prompt_piece VALUES ((((1 << 25) | 1) << 20) | (1 << 10), 1, 0, 100),"
           " ((((1 << 25) | 2) << 20) | (1 << 10), 0, 100, 101);"
           "DELETE FROM oracle WHERE (id >> 10) & 1023 = 1 AND (id >> 30) & 0x1FFFFFF IN (1, 2)");
    const std::pair<const char*, const char*> edits[] = {
        {"INSERT INTO prompt_piece VALUES ((9 << 45) | 12345, 1, 0, 5)", "piece-run"},
        {"INSERT INTO prompt_piece VALUES (((1 << 25) | 900) << 20, 1, 0, 5)", "piece-step"},
        {"UPDATE prompt_piece SET id = id | (7 << 10)", "piece-sequence"},
        {"UPDATE prompt_piece SET id = id | 1", "piece-sequence"},
        {"UPDATE prompt_piece SET begins = 2", "piece-numbers"},
        {"UPDATE prompt_piece SET first = -1", "piece-numbers"},
        {"UPDATE prompt_piece SET tokens = 0", "piece-numbers"},
        {"UPDATE prompt_piece SET tokens = 100000", "piece-tokens"},
        {"UPDATE prompt_piece SET first = 20 WHERE begins = 0", "piece-order"},
        {"INSERT INTO token VALUES ((((1 << 25) | 3) << 20) | (1 << 10), 150, 1, 'a', NULL)", "piece-token"},
        {"UPDATE step SET tokens = tokens", "piece-selects"},
    };
    expectBroken(edits);
}

TEST_F(Check, FindsNothingInAServingRunWithoutSteps) {
    std::filesystem::remove(file);
    synthetic::recordServing(file);
    EXPECT_EQ(listed(checkTrace(TraceReader(file))), "");
    // A trace from before rows had events.
    change("DELETE FROM row_event");
    EXPECT_EQ(listed(checkTrace(TraceReader(file))), "");
}

/// Where nothing is selected a writer may leave `kept` out or write 0: docs/trace-format.md allows both.
TEST_F(Check, KeptOfAPrefillIsNoneOrNothing) {
    ASSERT_EQ(test::value(file, "SELECT sum(selected) FROM layer_step WHERE (id >> 10) & 0x1FFFFFF = 0"), "0");
    for (const char* kept : {"0", "NULL"}) {
        change(std::string("UPDATE step SET kept = ") + kept + " WHERE id & 0x1FFFFFF = 0");
        EXPECT_EQ(listed(checkTrace(TraceReader(file))), "") << kept;
    }
    change("UPDATE step SET kept = 3 WHERE id & 0x1FFFFFF = 0");
    EXPECT_THAT(broken(), Contains("step-sum-kept"));
}

TEST_F(Check, AppliesRulesOnlyToWhatTheRunKnows) {
    change("UPDATE step SET hits = 0, misses = 0; UPDATE layer_step SET hits = 0, misses = 0;"
           "UPDATE selection SET hits = 0, misses = 0");
    EXPECT_THAT(broken(), Contains("hits-and-misses"));
    change("CREATE TABLE IF NOT EXISTS run_meta (run_id INTEGER NOT NULL, key TEXT NOT NULL, value TEXT NOT NULL,"
           " PRIMARY KEY (run_id, key)) STRICT, WITHOUT ROWID; DELETE FROM run_meta;"
           "INSERT INTO run_meta VALUES (1, 'knows', '[\"selections\",\"bytes\",\"transfer_times\",\"exposed_times\","
           "\"step_times\",\"stage_times\"]')");
    EXPECT_EQ(broken(), std::vector<std::string>());
    const RunCheck check = checkRun(TraceReader(file), 1);
    const auto hits = std::find_if(check.rules.begin(), check.rules.end(),
                                   [](const RuleResult& rule) { return rule.id == "hits-and-misses"; });
    ASSERT_NE(hits, check.rules.end());
    EXPECT_FALSE(hits->tested);
}

TEST_F(Check, TakesTheFingerprintAndShapeThatSessionsWrite) {
    change("INSERT OR REPLACE INTO run_meta VALUES (1, 'model_fingerprint', '1:1:29224224:daed7af7b6b5a3b4');"
           "INSERT OR REPLACE INTO run_meta SELECT 1, 'model_shape', json_object('layers', layers, 'query_heads',"
           " query_heads, 'kv_heads', kv_heads, 'head_dim', head_dim) FROM run;"
           "INSERT INTO text VALUES (901, printf('%.*c', 65536, 'x'))");
    EXPECT_EQ(broken(), std::vector<std::string>());
}

TEST_F(Check, SaysWhichRulesItLeftOutForTooManySelections) {
    change("UPDATE selection SET blocks = x'ff00'");
    CheckOptions few = counting();
    const std::int64_t selections = std::stoll(test::value(file, "SELECT count(*) FROM selection"));
    few.blobs = selections;
    EXPECT_EQ(checkRun(TraceReader(file), 1, few).violations(), selections);
    EXPECT_EQ(checkRun(TraceReader(file), 1, few).leftOut(), "");
    few.blobs = selections - 1;
    const RunCheck check = checkRun(TraceReader(file), 1, few);
    EXPECT_EQ(check.violations(), 0);
    EXPECT_THAT(check.leftOut(),
                HasSubstr("the rules blob, blob-count, blob-hits, blob-kept, blob-range and blob-scores"
                          " were not tested, because the run has " +
                          std::to_string(selections) + " selections"));
}

TEST_F(Check, CountsAllAndShowsAsManyAsAsked) {
    change("UPDATE selection SET kept = selected + 1 WHERE kept IS NOT NULL");
    CheckOptions options;
    options.examples = 3;
    const RunCheck check = checkRun(TraceReader(file), 1, options);
    std::int64_t shown = 0;
    for (const Violation& each : check.examples) shown += each.rule == "kept";
    EXPECT_EQ(shown, 3);
    for (const RuleResult& rule : check.rules)
        if (rule.id == "kept") {
            EXPECT_EQ(std::to_string(rule.violations),
                      test::value(file, "SELECT count(*) FROM selection WHERE kept IS NOT NULL"));
        }
    EXPECT_TRUE(check.concerns(Concern::Selection));
    EXPECT_FALSE(check.concerns(Concern::Bytes));
    EXPECT_THAT(check.sentence(), HasSubstr("kept is at most selected, in a selection (kept)"));
    EXPECT_THROW(checkRun(TraceReader(file), 9), Error);
}

TEST_F(Check, HeatmapsShowNoValueThatIsImpossible) {
    change("UPDATE layer_step SET kept = 3 * selected, hits = -1, exposed_ns = -22 WHERE id >> 10 = (1 << 25) | 7;"
           "UPDATE selection SET kept = 3 * selected WHERE id >> 30 = (1 << 25) | 7");
    const TraceReader reader(file);
    for (const Metric metric : {Metric::Locality, Metric::HitRate, Metric::ExposedTime}) {
        const StepMatrix matrix = reader.layerMatrix(1, metric);
        EXPECT_TRUE(std::isnan(matrix.at(7, 2))) << int(metric);
        EXPECT_FALSE(std::isnan(matrix.at(8, 2))) << int(metric);
    }
    EXPECT_TRUE(std::isnan(reader.headMatrix(1, Metric::Locality, 2).at(7, 0)));
    EXPECT_FALSE(std::isnan(reader.headMatrix(1, Metric::Locality, 2).at(8, 0)));
}

TEST_F(Check, AbsurdNumbersEndNothing) {
    change("UPDATE step SET selected = 9223372036854775807, hits = 9223372036854775807, misses = 9223372036854775807,"
           " transfer_ns = -9223372036854775807, duration_ns = 9223372036854775807;"
           "UPDATE layer_step SET h2d_bytes = 9223372036854775807, ffn_ns = 9223372036854775807, selected = -1");
    EXPECT_THAT(broken(), Contains("step-sum-bytes"));
}

TEST(CheckDocument, EveryRuleIsBrokenByAnEdit) {
    std::string text;
    for (const char* name : {"check_test.cpp", "denoise_trace_test.cpp"}) {
        std::ifstream stream(test::source(std::string("tests/profiler/") + name));
        text.append(std::istreambuf_iterator<char>(stream), {});
    }
    test::Folder folder;
    const std::string file = (folder / "run.kvtrace").string();
    synthetic::recordFile(file, {});
    for (const RunCheck& check : checkTrace(TraceReader(file)))
        for (const RuleResult& rule : check.rules)
            EXPECT_THAT(text, HasSubstr("\"" + std::string(rule.id) + "\"},")) << "which edit breaks it?";
}

TEST(CheckDocument, NamesEveryRule) {
    std::ifstream stream(test::source("docs/trace-format.md"));
    const std::string text{std::istreambuf_iterator<char>(stream), {}};
    test::Folder folder;
    const std::string file = (folder / "run.kvtrace").string();
    synthetic::recordFile(file, {});
    for (const RunCheck& check : checkTrace(TraceReader(file)))
        for (const RuleResult& rule : check.rules)
            EXPECT_THAT(text, HasSubstr("| `" + std::string(rule.id) + "` | " + std::string(rule.says) + " |"));
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
