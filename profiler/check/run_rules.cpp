// Rules about the file as a whole, and about a run's own row.
#include "profiler/check/rule.h"
#include "profiler/read/own_views.h"

#include <fmt/format.h>
#include <vector>

namespace kvscope::check {
namespace {

/// Rows of a table whose run is not in the file. `run`: the run of a row, in SQL
SqlRule orphans(const char* id, const char* says, const char* table, const char* run) {
    return {id,
            says,
            Concern::Identity,
            Needs::Nothing,
            table,
            Form::None,
            fmt::format("SELECT NULL, '{0} has ' || count(*) || CASE count(*) WHEN 1 THEN ' row' ELSE ' rows' END || ' "
                        "of run ' || ({1}) ||"
                        " ', which is not in the file'"
                        " FROM {0} WHERE ({1}) NOT IN (SELECT run_id FROM run) GROUP BY {1}",
                        table, run)};
}

/// A rule about texts so long that readers cut them. It asks the file's own table, which has the whole texts.
SqlRule lengthOf(const char* id, const char* says, const char* table, const char* column, const char* key) {
    return {id,
            says,
            Concern::Timeline,
            Needs::Nothing,
            table,
            Form::None,
            fmt::format("SELECT NULL, '{0} of {1} ' || {2} || ' has ' || length({0}) || ' characters and begins with '"
                        " || substr({0}, 1, 60) FROM main.{1} WHERE length({0}) > {3}",
                        column, table, key, kLongestName)};
}

std::string runLengths() {
    std::string sql;
    for (const char* column : {"name", "created_utc", "model", "method", "params_json", "backend", "device", "link",
                               "timing", "level", "status", "status_message"})
        sql +=
            fmt::format("{0}SELECT NULL, '{1} of run ' || run_id || ' has ' || length({1}) || ' characters and begins"
                        " with ' || substr({1}, 1, 60) FROM main.run WHERE length({1}) > {2}",
                        sql.empty() ? "" : " UNION ALL ", column,
                        std::string_view(column) == "params_json" ? kLongestParameters : kLongestName);
    return sql;
}

/// `column` of the run is one of `words`.
std::string oneOf(const char* column, const char* words) {
    return fmt::format(
        "SELECT NULL, '{0} is ''' || substr({0}, 1, 60) || '''' FROM run WHERE run_id = ?1 AND {0} NOT IN"
        " ({1})",
        column, words);
}

} // namespace

std::span<const SqlRule> fileRules() {
    static const std::vector<SqlRule> rules{
        {"run-number", "a run's number is 1 to 255", Concern::Identity, Needs::Nothing, "run", Form::None,
         "SELECT NULL, 'there is a run ' || run_id FROM run WHERE run_id NOT BETWEEN 1 AND 255"},
        orphans("step-run", "a step belongs to a run of the file", "step", "id >> 25"),
        orphans("layer-run", "a layer belongs to a run of the file", "layer_step", "id >> 35"),
        orphans("selection-run", "a selection belongs to a run of the file", "selection", "id >> 55"),
        orphans("token-run", "a token belongs to a run of the file", "token", "id >> 45"),
        orphans("prompt-run", "a prompt token belongs to a run of the file", "prompt", "id >> 55"),
        orphans("piece-run", "a piece of a prompt belongs to a run of the file", "prompt_piece", "id >> 45"),
        orphans("span-run", "a span belongs to a run of the file", "span", "run_id"),
        orphans("counter-run", "a counter belongs to a run of the file", "counter", "run_id"),
        orphans("clock-run", "a reading of a clock belongs to a run of the file", "clock_sync", "run_id"),
        orphans("gauge-run", "a gauge belongs to a run of the file", "gauge", "run_id"),
        orphans("flow-run", "a flow belongs to a run of the file", "flow", "run_id"),
        orphans("note-run", "a note belongs to a run of the file", "note", "run_id"),
        orphans("lookahead-run", "a lookahead row belongs to a run of the file", "lookahead", "id >> 55"),
        orphans("oracle-run", "an oracle row belongs to a run of the file", "oracle", "id >> 55"),
        orphans("denoise-run", "a denoising forward belongs to a run of the file", "denoise", "id >> 45"),
        orphans("denoise-token-run", "a token of a forward belongs to a run of the file", "denoise_token", "id >> 45"),
        orphans("denoise-layer-run", "a layer of a forward belongs to a run of the file", "denoise_layer", "id >> 55"),
        orphans("denoise-tile-run", "densities of rows of tiles belong to a run of the file", "denoise_tile",
                "id >> 55"),
        orphans("denoise-change-run", "changes of keys and values belong to a run of the file", "denoise_change",
                "id >> 55"),
        orphans("request-run", "a request belongs to a run of the file", "request", "id >> 40"),
        orphans("request-span-run", "a span of a request belongs to a run of the file", "request_span", "id >> 40"),
        orphans("iteration-run", "an iteration belongs to a run of the file", "iteration", "id >> 25"),
        orphans("member-run", "a member of an iteration belongs to a run of the file", "member", "id >> 35"),
        orphans("event-run", "an event of a row belongs to a run of the file", "row_event", "id >> 40"),
        orphans("meta-run", "a row of run_meta belongs to a run of the file", "run_meta", "run_id"),
        {"detail-span", "a span_detail is of a span of the file", Concern::Timeline, Needs::Nothing, "span_detail",
         Form::None, "SELECT NULL, 'there is no span ' || id FROM span_detail WHERE id NOT IN (SELECT id FROM span)"},
        orphans("health-run", "a health row belongs to a run of the file", "health", "run_id"),
        lengthOf("text-length", "a name has at most 65536 characters; a longer one is cut", "text", "value", "id"),
        {"run-length",
         "a text of a run has at most 65536 characters, its parameters 1048576; longer texts are cut, longer"
         " parameters left out",
         Concern::Identity, Needs::Nothing, "run", Form::None, runLengths()},
        lengthOf("note-length", "a note has at most 65536 characters; a longer one is cut", "note", "text", "id"),
        lengthOf("meta-length", "a value of run_meta has at most 65536 characters; a longer one is cut", "run_meta",
                 "value", "key"),
        lengthOf("error-length", "a health row's error has at most 65536 characters; a longer one is cut", "health",
                 "error", "run_id"),
        lengthOf("args-length", "a span's args have at most 65536 characters; longer ones are cut", "span_detail",
                 "args", "id"),
    };
    return rules;
}

std::span<const SqlRule> runRules() {
    static const std::vector<SqlRule> rules{
        {"timing-word", "timing is measured or modelled", Concern::Transfer, Needs::Nothing, "run", Form::None,
         oneOf("timing", "'measured', 'modelled'")},
        {"level-word", "level is counters, selections or full", Concern::Identity, Needs::Nothing, "run", Form::None,
         oneOf("level", "'counters', 'selections', 'full'")},
        {"status-word", "status is running, finished, stopped or failed", Concern::Identity, Needs::Nothing, "run",
         Form::None, oneOf("status", "'running', 'finished', 'stopped', 'failed'")},
        {"created-time", "created_utc is an ISO 8601 time in UTC", Concern::Identity, Needs::Nothing, "run", Form::None,
         "SELECT NULL, 'created_utc is ''' || substr(created_utc, 1, 60) || '''' FROM run WHERE run_id = ?1 AND"
         " (created_utc NOT GLOB '[0-9][0-9][0-9][0-9]-[01][0-9]-[0-3][0-9]T[0-2][0-9]:[0-5][0-9]:[0-6][0-9]*Z'"
         " OR julianday(substr(created_utc, 1, 19)) IS NULL)"},
        {"params-object", "params_json is one JSON object", Concern::Identity, Needs::Nothing, "run", Form::None,
         "SELECT NULL, 'params_json is not a JSON object' FROM run WHERE run_id = ?1 AND"
         " CASE WHEN json_valid(params_json) THEN json_type(params_json) <> 'object' ELSE 1 END"},
        {"run-sizes", "sizes of a run are not negative, and at most 1024 layers, KV heads and sequences",
         Concern::Identity, Needs::Nothing, "run", Form::None,
         "SELECT NULL, name || ' is ' || value FROM ("
         " SELECT 'block_size' AS name, block_size AS value, 9e15 AS most FROM run WHERE run_id = ?1"
         " UNION ALL SELECT 'layers', layers, 1024 FROM run WHERE run_id = ?1"
         " UNION ALL SELECT 'kv_heads', kv_heads, 1024 FROM run WHERE run_id = ?1"
         " UNION ALL SELECT 'query_heads', query_heads, 9e15 FROM run WHERE run_id = ?1"
         " UNION ALL SELECT 'head_dim', head_dim, 9e15 FROM run WHERE run_id = ?1"
         " UNION ALL SELECT 'sequences', sequences, 1024 FROM run WHERE run_id = ?1"
         " UNION ALL SELECT 'device_slots', device_slots, 9e15 FROM run WHERE run_id = ?1"
         " UNION ALL SELECT 'budget_blocks', budget_blocks, 9e15 FROM run WHERE run_id = ?1"
         " UNION ALL SELECT 'block_bytes', block_bytes, 9e15 FROM run WHERE run_id = ?1"
         " UNION ALL SELECT 'link_gbps', link_gbps, 1e9 FROM run WHERE run_id = ?1"
         " UNION ALL SELECT 'link_latency_us', link_latency_us, 1e12 FROM run WHERE run_id = ?1)"
         " WHERE NOT (value BETWEEN 0 AND most)"},
        {"backend-word", "backend is cpu, cuda or imported", Concern::Identity, Needs::Nothing, "run", Form::None,
         oneOf("backend", "'cpu', 'cuda', 'imported'")},
        {"block-size", "a run that selects blocks has a block_size and block_bytes", Concern::Identity,
         Needs::Selections, "selection", Form::None,
         fmt::format("SELECT NULL, 'block_size is ' || block_size || ', block_bytes is ' || block_bytes FROM run WHERE"
                     " run_id = ?1 AND (block_size <= 0 OR block_bytes <= 0) AND EXISTS (SELECT 1 FROM selection WHERE"
                     " {} AND selected > 0)",
                     kSelections)},
        {"block-bytes",
         "block_bytes is at most 16 bytes for each number of a block's keys and values, and at most 4 GiB",
         Concern::Bytes, Needs::Nothing, "run", Form::None,
         "SELECT NULL, 'block_bytes is ' || block_bytes || ', block_size ' || block_size || ', head_dim ' || head_dim"
         " FROM run WHERE run_id = ?1 AND (block_bytes > 4294967296 OR (block_size > 0 AND head_dim > 0 AND block_bytes"
         " > 16.0 * 2 * block_size * head_dim))"},
        // Where the rows are lost, the run looks like one that knows nothing of selections.
        {"run-selections", "a run whose steps select has selections, at levels selections and full", Concern::Selection,
         Needs::Nothing, "step", Form::None,
         fmt::format("SELECT NULL, 'the level is ' || r.level || ', steps select ' || CAST(s.selected AS INTEGER) ||"
                     " ' blocks, and there is no selection' FROM run r, (SELECT total(selected) AS selected FROM step"
                     " WHERE {}) s WHERE r.run_id = ?1 AND r.level IN ('selections', 'full') AND s.selected > 0 AND NOT"
                     " EXISTS (SELECT 1 FROM selection WHERE {})",
                     kSteps, kSelections)},
        {"modelled-link", "modelled transfer times have a link with a bandwidth", Concern::Transfer,
         Needs::TransferTimes, "run", Form::None,
         "SELECT NULL, 'timing is modelled and link_gbps is ' || link_gbps FROM run WHERE run_id = ?1 AND"
         " timing = 'modelled' AND NOT link_gbps > 0 AND EXISTS (SELECT 1 FROM step WHERE id BETWEEN ?1 << 25 AND"
         " (?1 << 25) | 0x1FFFFFF AND h2d_bytes + d2h_bytes > 0)"},
        {"health-row", "a run has one health row, whose numbers are not negative", Concern::Identity, Needs::Nothing,
         "health", Form::None,
         "SELECT NULL, 'there is no health row' WHERE NOT EXISTS (SELECT 1 FROM health WHERE run_id = ?1)"
         " UNION ALL SELECT NULL, 'dropped_steps is ' || dropped_steps || ', writer_busy_ns is ' || writer_busy_ns ||"
         " ', heartbeat_ms is ' || heartbeat_ms FROM health WHERE run_id = ?1 AND (dropped_steps NOT BETWEEN 0 AND"
         " 33554432 OR writer_busy_ns < 0 OR heartbeat_ms NOT BETWEEN 0 AND 9999999999999)"},
        {"heartbeat-time", "the writer's last sign of life is between the run's start and today, give or take a day",
         Concern::Identity, Needs::Nothing, "health", Form::None,
         "SELECT NULL, 'heartbeat_ms is ' || h.heartbeat_ms || ', created_utc ' || substr(r.created_utc, 1, 60) FROM"
         " health h JOIN run r ON r.run_id = h.run_id WHERE h.run_id = ?1 AND h.heartbeat_ms > 0 AND (h.heartbeat_ms <"
         " 1000 * (strftime('%s', substr(r.created_utc, 1, 19)) - 86400) OR h.heartbeat_ms > 1000 *"
         " (strftime('%s', 'now') + 86400))"},
        {"writer-busy", "the writer was busy for no longer than the run lasted, give or take an hour",
         Concern::Identity, Needs::Nothing, "health", Form::None,
         "SELECT NULL, 'writer_busy_ns is ' || h.writer_busy_ns || ', the run lasted for ' || (h.heartbeat_ms - 1000 *"
         " strftime('%s', substr(r.created_utc, 1, 19))) || ' ms' FROM health h JOIN run r ON r.run_id = h.run_id"
         " WHERE h.run_id = ?1 AND h.heartbeat_ms > 0 AND h.writer_busy_ns > (h.heartbeat_ms - 1000 * strftime('%s',"
         " substr(r.created_utc, 1, 19)) + 3600000) * 1000000"},
        {"finished-without-error", "a run whose recording ended with an error is not finished", Concern::Identity,
         Needs::Nothing, "health", Form::None,
         "SELECT NULL, 'status is finished, error is ''' || substr(h.error, 1, 60) || '''' FROM run r JOIN health h ON"
         " h.run_id = r.run_id WHERE r.run_id = ?1 AND r.status = 'finished' AND h.error <> ''"},
    };
    return rules;
}

} // namespace kvscope::check
