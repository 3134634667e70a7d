// The functions of kvscope_trace.h that read a trace: one table at a time, column by column, into memory.
#include "profiler/format/selection_blob.h"
#include "profiler/format/trace_keys.h"
#include "profiler/sqlite/sqlite.h"
#include "sdk/trace/arguments.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <limits>
#include <string_view>
#include <vector>

using namespace kvscope;
using namespace kvscope::sdk;

namespace {

struct Column {
    std::string name;
    kvtrace_column_type type = KVTRACE_COLUMN_INT;
    std::vector<std::uint8_t> present;
    std::vector<std::int64_t> ints;
    std::vector<double> reals;
    std::string text;
    std::vector<std::int64_t> offsets{0};
};

struct Table final : Object {
    std::vector<Column> columns;
};

/// A table that can be read. Columns are "name:type", with type one of i, r, t; the blob of a selection is b and
/// becomes four columns. `sql` selects the columns in this order from tables, because a file may bring views of its
/// own. It takes the run, or 0 for all, as ?1.
struct Definition {
    std::string_view name, columns, sql;
};

// Whether a run knows a group of columns. A trace without the key is taken to know all that it has.
#define KNOWS(word, value)                                                                                             \
    "CASE WHEN coalesce((SELECT instr(m.value, '\"" word "\"') FROM run_meta m WHERE m.run_id = r.run_id AND m.key = " \
    "'knows'), 1) > 0 THEN " value " END"
#define OF_RUN " FROM run r CROSS JOIN "
#define STEP_KEYS " s.id BETWEEN r.run_id << 25 AND (r.run_id << 25) | 0x1FFFFFF"
#define WHERE_RUN " WHERE (?1 = 0 OR r.run_id = ?1)"

constexpr std::
    array
        kDefinitions{
            Definition{
                "runs",
                "run:i name:t created_utc:t model:t method:t params_json:t backend:t device:t link:t timing:t "
                "link_gbps:r"
                " link_latency_us:r block_size:i layers:i kv_heads:i query_heads:i head_dim:i sequences:i "
                "device_slots:i"
                " budget_blocks:i block_bytes:i level:t status:t status_message:t steps:i program:t dropped_steps:i "
                "knows:t",
                "SELECT r.run_id, r.name, r.created_utc, r.model, r.method, r.params_json, r.backend, r.device, r.link,"
                " r.timing, r.link_gbps, r.link_latency_us, r.block_size, r.layers, r.kv_heads, r.query_heads, "
                "r.head_dim,"
                " r.sequences, r.device_slots, r.budget_blocks, r.block_bytes, r.level, r.status, r.status_message,"
                " (SELECT count(*) FROM step s WHERE" STEP_KEYS "), h.program, h.dropped_steps,"
                " (SELECT m.value FROM run_meta m WHERE m.run_id = r.run_id AND m.key = 'knows')"
                " FROM run r LEFT JOIN health h ON h.run_id = r.run_id" WHERE_RUN " ORDER BY r.run_id"},
            Definition{"steps",
                       "run:i step:i phase:t tokens:i start_ns:i duration_ns:i selected:i kept:i hits:i misses:i "
                       "h2d_blocks:i"
                       " d2h_blocks:i h2d_bytes:i d2h_bytes:i transfer_ns:i exposed_ns:i opens_block:i embed_ns:i "
                       "lm_head_ns:i"
                       " sample_ns:i",
                       "SELECT r.run_id, s.id & 0x1FFFFFF, CASE s.phase WHEN 0 THEN 'prefill' ELSE 'decode' END, "
                       "s.tokens," KNOWS("step_times", "s.start_ns") "," KNOWS("step_times", "s.duration_ns") "," KNOWS("selections", "s.selected") "," KNOWS(
                           "selections",
                           "s.kept") "," KNOWS("hits", "s.hits") "," KNOWS("hits",
                                                                           "s.misses") "," KNOWS("bytes", "s.h2d_"
                                                                                                          "blocks") "," KNOWS("bytes", "s.d2h_blocks") "," KNOWS("bytes", "s.h2d_bytes") "," KNOWS("bytes", "s.d2h_bytes") "," KNOWS("transfer_times", "s.transfer_ns") "," KNOWS("exposed_times", "s.exposed_ns") ", s.opens_block," KNOWS("stage_times",
                                                                                                                                                                                                                                                                                                                                            "s.embed_ns") "," KNOWS("stage_times",
                                                                                                                                                                                                                                                                                                                                                                    "s.lm_head_ns") "," KNOWS("stage_times",
                                                                                                                                                                                                                                                                                                                                                                                              "s.sample_ns") OF_RUN
                       "step s ON" STEP_KEYS WHERE_RUN " ORDER BY s.id"},
            Definition{
                "layers",
                "run:i step:i layer:i start_ns:i qkv_linear_ns:i rope_ns:i compression_ns:i stage1_ns:i pooling_ns:i"
                " offloading_ns:i stage2_ns:i attention_ns:i o_linear_ns:i ffn_ns:i selected:i kept:i hits:i misses:i"
                " h2d_blocks:i d2h_blocks:i h2d_bytes:i d2h_bytes:i h2d_ns:i d2h_ns:i exposed_ns:i mass:r",
                "SELECT r.run_id, l.id >> 10 & 0x1FFFFFF, l.id & 0x3FF," KNOWS("stage_times",
                                                                               "l.start_ns") "," KNOWS("stage_times",
                                                                                                       "l.qkv_linear_"
                                                                                                       "ns") "," KNOWS("stage_times", "l.rope_ns") "," KNOWS("stage_times", "l.compression_ns") "," KNOWS("stage_times", "l.stage1_ns") "," KNOWS("stage_times", "l.pooling_ns") "," KNOWS("stage_times", "l.offloading_ns") "," KNOWS("stage_times",
                                                                                                                                                                                                                                                                                                                                       "l.stage2_ns") "," KNOWS("stage_times",
                                                                                                                                                                                                                                                                                                                                                                "l.attention_ns") "," KNOWS("stage_times", "l.o_linear_ns") "," KNOWS("stage_times", "l.ffn_ns") "," KNOWS("selections", "l.selected") "," KNOWS("selections", "l.kept") "," KNOWS("hits", "l.hits") "," KNOWS("hits", "l.misses") "," KNOWS("bytes",
                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                             "l.h2d_blocks") "," KNOWS("bytes", "l.d2h_blocks") "," KNOWS("bytes", "l.h2d_bytes") "," KNOWS("bytes", "l.d2h_bytes") "," KNOWS("transfer_times",
                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                              "l.h2d_ns") "," KNOWS("transfer_times",
                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                    "l.d2h_ns") "," KNOWS("exposed_times", "l.exposed_ns") ", l.mass" OF_RUN
                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                           "layer_step l ON l.id BETWEEN r.run_id << 35 AND (r.run_id << 35) | 0x7FFFFFFFF" WHERE_RUN
                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                           " ORDER BY l.id"},
            Definition{"selections",
                       "run:i step:i layer:i seq:i kv_head:i selected:i kept:i hits:i misses:i opens_block:i mass:r :b",
                       "SELECT r.run_id, s.id >> 30 & 0x1FFFFFF, s.id >> 20 & 0x3FF, s.id >> 10 & 0x3FF, s.id & 0x3FF, "
                       "s.selected,"
                       " s.kept," KNOWS("hits", "s.hits") "," KNOWS(
                           "hits", "s.misses") ", s.opens_block, s.mass, s.blocks," KNOWS("hits", "1") OF_RUN
                       "selection s ON s.id BETWEEN r.run_id << 55 AND (r.run_id << 55) | 0x7FFFFFFFFFFFFF" WHERE_RUN
                       " ORDER BY s.id"},
            Definition{"transfers", "run:i step:i layer:i direction:t blocks:i bytes:i duration_ns:i exposed_ns:i",
                       "SELECT r.run_id, l.id >> 10 & 0x1FFFFFF, l.id & 0x3FF, d.direction,"
                       " CASE d.direction WHEN 'h2d' THEN l.h2d_blocks ELSE l.d2h_blocks END,"
                       " CASE d.direction WHEN 'h2d' THEN l.h2d_bytes ELSE l.d2h_bytes END," KNOWS(
                           "transfer_times",
                           "CASE d.direction WHEN 'h2d' THEN l.h2d_ns ELSE l.d2h_ns END") "," KNOWS("exposed_times",
                                                                                                    "CASE d.direction "
                                                                                                    "WHEN 'h2d' THEN "
                                                                                                    "l.exposed_ns END")
                           OF_RUN "layer_step l ON l.id BETWEEN r.run_id << 35 AND (r.run_id << 35) | 0x7FFFFFFFF"
                                  " CROSS JOIN (SELECT 'h2d' AS direction UNION ALL SELECT 'd2h') d" WHERE_RUN
                                  " AND CASE d.direction WHEN 'h2d' THEN l.h2d_bytes ELSE l.d2h_bytes END > 0 ORDER BY "
                                  "l.id, d.direction DESC"},
            Definition{
                "tokens", "run:i step:i seq:i position:i token_id:i text:t",
                "SELECT r.run_id, t.id >> 20 & 0x1FFFFFF, t.id >> 10 & 0x3FF, t.position, t.token_id, t.text" OF_RUN
                "token t ON t.id BETWEEN r.run_id << 45 AND (r.run_id << 45) | 0x1FFFFFFFFFFF" WHERE_RUN
                " ORDER BY t.id"},
            Definition{"prompts", "run:i seq:i position:i token_id:i text:t",
                       "SELECT r.run_id, p.id >> 45 & 0x3FF, p.id & 0x1FFFFFFFFFFF, p.token_id, p.text" OF_RUN
                       "prompt p ON p.id BETWEEN r.run_id << 55 AND (r.run_id << 55) | 0x7FFFFFFFFFFFFF" WHERE_RUN
                       " ORDER BY p.id"},
            Definition{"pieces", "run:i step:i seq:i begins:i first:i tokens:i",
                       "SELECT r.run_id, p.id >> 20 & 0x1FFFFFF, p.id >> 10 & 0x3FF, p.begins, p.first, p.tokens" OF_RUN
                       "prompt_piece p ON p.id BETWEEN r.run_id << 45 AND (r.run_id << 45) | 0x1FFFFFFFFFFF" WHERE_RUN
                       " ORDER BY p.id"},
            Definition{
                "requests",
                "run:i request:i external_id:t seq:i kind:t arrival_ns:i first_sched_ns:i first_token_ns:i end_ns:i"
                " prompt_tokens:i max_tokens:i output_tokens:i status:t reason:t hits:i misses:i first_step:i"
                " last_step:i",
                "SELECT r.run_id, q.id & 0xFFFFFFFFFF, q.external_id, q.row, q.class, q.arrival_ns, q.first_sched_ns,"
                " q.first_token_ns, q.end_ns, nullif(q.prompt_tokens, 0), nullif(q.max_tokens, 0), q.output_tokens,"
                " q.status, q.reason," KNOWS("hits", "q.hits") "," KNOWS(
                    "hits",
                    "q.misses") ", q.first_step,"
                                " q.last_step" OF_RUN
                                "request q ON q.id BETWEEN r.run_id << 40 AND (r.run_id << 40) | 0xFFFFFFFFFF" WHERE_RUN
                                " ORDER BY q.id"},
            Definition{"spans",
                       "run:i track:t name:t start_ns:i duration_ns:i step:i layer:i kind:i depth:i bytes:i category:t"
                       " args:t",
                       "SELECT s.run_id, t.value, n.value, s.start_ns, s.duration_ns, nullif(s.step, -1),"
                       " nullif(s.layer, -1), s.kind, s.depth, s.bytes, c.value, d.args FROM span s JOIN run r ON"
                       " r.run_id = s.run_id JOIN text t ON t.id = s.track JOIN text n ON n.id = s.name LEFT JOIN"
                       " span_detail d ON d.id = s.id LEFT JOIN text c ON c.id = d.category" WHERE_RUN
                       " ORDER BY s.run_id, s.start_ns, s.id"},
            Definition{"counters", "run:i track:t start_ns:i duration_ns:i value:i",
                       "SELECT c.run_id, t.value, c.start_ns, c.duration_ns, c.value FROM counter c JOIN run r ON"
                       " r.run_id = c.run_id JOIN text t ON t.id = c.track" WHERE_RUN
                       " ORDER BY c.run_id, c.start_ns, c.id"},
            Definition{"gauges", "run:i track:t time_ns:i value:r",
                       "SELECT c.run_id, t.value, c.time_ns, c.value FROM gauge c JOIN run r ON r.run_id = c.run_id"
                       " JOIN text t ON t.id = c.track" WHERE_RUN " ORDER BY c.run_id, c.time_ns, c.id"},
            Definition{"flows", "run:i from_track:t from_name:t from_start_ns:i to_track:t to_name:t to_start_ns:i",
                       "SELECT f.run_id, at.value, an.value, a.start_ns, bt.value, bn.value, b.start_ns FROM flow f"
                       " JOIN run r ON r.run_id = f.run_id JOIN span a ON a.id = f.from_span JOIN span b ON b.id ="
                       " f.to_span JOIN text at ON at.id = a.track JOIN text an ON an.id = a.name JOIN text bt ON"
                       " bt.id = b.track JOIN text bn ON bn.id = b.name" WHERE_RUN " ORDER BY f.run_id, f.id"},
            Definition{"meta", "run:i key:t value:t",
                       "SELECT r.run_id, m.key, m.value FROM run r JOIN run_meta m ON m.run_id = r.run_id" WHERE_RUN
                       " ORDER BY r.run_id, m.key"},
        };
#undef KNOWS
#undef OF_RUN
#undef STEP_KEYS
#undef WHERE_RUN

const Definition& definitionOf(std::string_view name) {
    std::string names;
    for (const Definition& definition : kDefinitions) {
        if (definition.name == name) return definition;
        names += (names.empty() ? "" : ", ") + std::string(definition.name);
    }
    refuse(KVTRACE_INVALID, "a trace has no table \"", std::string(name), "\"; there are ", names);
}

std::vector<Column> columnsOf(const Definition& definition) {
    std::vector<Column> columns;
    std::string_view rest = definition.columns;
    while (!rest.empty()) {
        const std::size_t colon = rest.find(':'), end = std::min(rest.find(' '), rest.size());
        const char type = rest[colon + 1];
        if (type == 'b')
            for (const char* part : {"blocks", "origins", "hit"}) {
                columns.emplace_back().name = part;
                columns.back().type = KVTRACE_COLUMN_INT_LIST;
            }
        else {
            columns.emplace_back().name = rest.substr(0, colon);
            columns.back().type = type == 'i'   ? KVTRACE_COLUMN_INT
                                  : type == 'r' ? KVTRACE_COLUMN_REAL
                                                : KVTRACE_COLUMN_TEXT;
        }
        rest.remove_prefix(std::min(end + 1, rest.size()));
    }
    return columns;
}

void addValue(Column& column, const Statement& rows, int index) {
    const bool present = !rows.isNull(index);
    column.present.push_back(present ? 1 : 0);
    if (column.type == KVTRACE_COLUMN_INT) column.ints.push_back(present ? rows.int64(index) : 0);
    if (column.type == KVTRACE_COLUMN_REAL)
        column.reals.push_back(present ? rows.real(index) : std::numeric_limits<double>::quiet_NaN());
    if (column.type != KVTRACE_COLUMN_TEXT) return;
    if (present) column.text += rows.text(index);
    column.offsets.push_back(std::int64_t(column.text.size()));
}

template <class ValueOf>
void addList(Column& column, bool present, std::span<const PackedBlock> blocks, ValueOf valueOf) {
    column.present.push_back(present ? 1 : 0);
    if (present)
        for (const PackedBlock block : blocks) column.ints.push_back(std::int64_t(valueOf(block)));
    column.offsets.push_back(std::int64_t(column.ints.size()));
}

/// Appends the blob at column `index` of a row, with hits where the column behind it is not NULL.
/// blocks, scores: room for what the blob holds.
void addBlocks(std::span<Column> columns, const Statement& rows, int index, std::vector<PackedBlock>& blocks,
               std::vector<float>& scores, const std::string& path) {
    const bool present = !rows.isNull(index), hits = present && !rows.isNull(index + 1);
    if (present && !decodeSelection(rows.blob(index), blocks, scores))
        refuse(KVTRACE_STORAGE, path,
               " is damaged: a selection's blocks cannot be read; kvscope-cli check names the row");
    addList(columns[0], present, blocks, [](PackedBlock block) { return block.id(); });
    addList(columns[1], present, blocks, [](PackedBlock block) { return block.origin(); });
    addList(columns[2], hits, blocks, [](PackedBlock block) { return block.hit(); });
}

bool hasColumn(Connection& connection, std::string_view table, std::string_view column) {
    Statement found(connection, "SELECT 1 FROM pragma_table_info(?) WHERE name = ?");
    found.bind(1, table);
    return found.bind(2, column).step();
}

/// What came to the format later: traces of before have nothing to read there.
bool hasTable(Connection& connection, std::string_view name) {
    struct Later {
        std::string_view name;
        const char *table, *column;
    };
    constexpr std::array later{Later{"pieces", "prompt_piece", "id"}, Later{"requests", "request", "id"},
                               Later{"spans", "span_detail", "id"},   Later{"spans", "span", "bytes"},
                               Later{"counters", "counter", "id"},    Later{"gauges", "gauge", "id"},
                               Later{"flows", "flow", "id"}};
    return std::all_of(later.begin(), later.end(),
                       [&](const Later& of) { return of.name != name || hasColumn(connection, of.table, of.column); });
}

std::shared_ptr<Table> read(const std::string& path, const Definition& definition, std::int32_t run) {
    if (std::error_code ignored; std::filesystem::is_directory(path, ignored))
        refuse(KVTRACE_INVALID, path, " is a folder; name one of its traces");
    Connection connection(path, Connection::Mode::ReadOnly);
    if (connection.integer("PRAGMA application_id") != trace::kApplicationId)
        refuse(KVTRACE_STORAGE, path, " is not a KVScope trace");
    if (const std::int64_t version = connection.integer("PRAGMA user_version"); version > trace::kVersion)
        refuse(KVTRACE_UNSUPPORTED, path, " has trace format ", std::to_string(version),
               ", which is newer than this library; "
               "install a newer one");
    auto table = std::make_shared<Table>();
    table->columns = columnsOf(definition);
    if (!hasTable(connection, definition.name)) return table;
    if (definition.name == "requests" && !hasColumn(connection, "request", "last_step"))
        connection.execute("CREATE TEMP VIEW request AS SELECT *, NULL AS external_id, NULL AS first_step, NULL AS"
                           " last_step FROM main.request");
    Statement rows(connection, definition.sql);
    rows.bind(1, run);
    std::vector<PackedBlock> blocks;
    std::vector<float> scores;
    while (rows.step()) {
        int index = 0;
        for (std::size_t i = 0; i < table->columns.size(); ++i, ++index) {
            if (table->columns[i].type == KVTRACE_COLUMN_INT_LIST) {
                addBlocks(std::span(table->columns).subspan(i), rows, index, blocks, scores, path);
                break;
            }
            addValue(table->columns[i], rows, index);
        }
    }
    return table;
}

Table& tableOf(const std::shared_ptr<Object>& object) { return static_cast<Table&>(*object); }

} // namespace

int32_t kvtrace_read(const char* path, const char* name, int32_t run, kvtrace_table* table) {
    return atBorder([&] {
        *required(table, "table") = 0;
        if (run < 0) refuse(KVTRACE_INVALID, "run ", std::to_string(run), " is none; give 0 for all");
        *table = give(Kind::Table, read(required(path, "path"), definitionOf(required(name, "name")), run));
    });
}

int32_t kvtrace_table_columns(kvtrace_table table, int32_t* columns) {
    return atBorder(
        [&] { *required(columns, "columns") = std::int32_t(tableOf(find(Kind::Table, table)).columns.size()); });
}

int32_t kvtrace_table_column(kvtrace_table table, int32_t index, kvtrace_column* column) {
    return atBorder([&] {
        const std::shared_ptr<Object> open = find(Kind::Table, table);
        const std::vector<Column>& columns = tableOf(open).columns;
        if (index < 0 || std::size_t(index) >= columns.size())
            refuse(KVTRACE_INVALID, "the table has no column ", std::to_string(index), ", but ",
                   std::to_string(columns.size()));
        const Column& of = columns[std::size_t(index)];
        kvtrace_column mine{};
        mine.type = of.type;
        mine.name = of.name.c_str();
        mine.rows = std::int64_t(of.present.size());
        mine.present = of.present.data();
        mine.ints = of.ints.data();
        mine.reals = of.reals.data();
        mine.text = of.text.data();
        mine.offsets = of.offsets.data();
        hand(mine, column, "kvtrace_column");
    });
}

int32_t kvtrace_table_free(kvtrace_table table) {
    return atBorder([&] { release(Kind::Table, table); });
}
