#include "profiler/export/export.h"

#include "base/error.h"
#include "base/indexed.h"
#include "base/nearest_name.h"
#include "profiler/export/denoising.h"
#include "profiler/export/figure_numbers.h"
#include "profiler/export/has_table.h"
#include "profiler/export/layer_overlap.h"
#include "profiler/export/line_writer.h"
#include "profiler/format/selection_blob.h"
#include "profiler/format/trace_keys.h"
#include "profiler/read/open_trace.h"
#include "profiler/read/run_knowledge.h"

#include <algorithm>

namespace kvscope {
namespace {

struct TableQuery {
    const char* columns;
    const char* view;
    const char* order;
};

TableQuery queryOf(ExportTable table) {
    switch (table) {
    case ExportTable::Steps:
        return {"run_id, step, phase, tokens, start_ns, duration_ns, selected, hits, misses, h2d_bytes, d2h_bytes, "
                "transfer_ns,"
                " exposed_ns, kept, opens_block, h2d_blocks, d2h_blocks, embed_ns, lm_head_ns, sample_ns",
                "v_step", ""};
    case ExportTable::Breakdown:
        return {"run_id, phase, layer, component, calls, total_ns", "v_breakdown",
                " ORDER BY run_id, phase DESC, layer"};
    case ExportTable::Transfers:
        return {"run_id, step, layer, direction, mechanism, blocks, bytes, start_ns, duration_ns", "v_transfer",
                " ORDER BY run_id, step, layer, direction DESC"};
    case ExportTable::Tokens:
        return {"run_id, step, seq, token_id, text, position", "v_token", ""};
    case ExportTable::Counters:
        return {"run_id, track, start_ns, duration_ns, value", "v_counter", " ORDER BY run_id, start_ns, track"};
    case ExportTable::Layers:
        return {"*", "v_layer", ""};
    case ExportTable::Locality:
        return {"*", "v_locality", ""};
    case ExportTable::Spans:
        return {"*", "v_span", " ORDER BY run_id, start_ns, depth"};
    case ExportTable::Gauges:
        return {"*", "v_gauge", " ORDER BY run_id, time_ns"};
    case ExportTable::Flows:
        return {"*", "v_flow", " ORDER BY run_id, to_start_ns"};
    case ExportTable::Prompt:
        return {"run_id, seq, position, token_id, text", "v_prompt", ""};
    case ExportTable::Runs:
        return {"*", "runs", ""};
    case ExportTable::Denoising:
        return {"*", "v_denoise", ""};
    case ExportTable::Requests:
        return {"*", "v_request", ""};
    case ExportTable::RequestSpans:
        return {"*", "v_request_span", " ORDER BY run_id, request, start_ns"};
    case ExportTable::Iterations:
        return {"*", "v_iteration", ""};
    case ExportTable::Members:
        return {"*", "v_member", ""};
    case ExportTable::RowEvents:
        return {"*", "v_row_event", ""};
    case ExportTable::ServedSelections:
        return {"*", "v_served_selection", " ORDER BY run_id, request, step, layer, kv_head"};
    case ExportTable::Kernels:
    case ExportTable::Selections:
    case ExportTable::LayerOverlap:
    case ExportTable::WindowOverlap:
    case ExportTable::TokenChanges:
    case ExportTable::ActiveSets:
        break;
    }
    return {"run_id, step, layer, track, name, start_ns, duration_ns", "v_kernel", " ORDER BY run_id, start_ns"};
}

constexpr std::int64_t kRowsPerReport = 1 << 15;

/// How many rows will come is known only at the end: the fraction comes closer to 1 and never gets there.
void reportRows(const Progress& progress, std::int64_t rows) {
    report(progress, double(rows) / double(rows + 32 * kRowsPerReport), fmt::format("exporting: {} rows", rows));
}

void writeValue(LineWriter& writer, const Statement& rows, int column, ExportFormat format) {
    switch (rows.type(column)) {
    case Statement::Type::Null:
        if (format == ExportFormat::Jsonl) writer.addText("null");
        break;
    case Statement::Type::Integer:
        writer.add("{}", rows.int64(column));
        break;
    case Statement::Type::Real:
        writer.add("{}", rows.real(column));
        break;
    case Statement::Type::Text:
    case Statement::Type::Blob:
        if (format == ExportFormat::Csv)
            writer.addCsv(rows.text(column));
        else
            writer.addJson(rows.text(column));
        break;
    }
}

/// Which values of the rows of a view their run knows. The others are written as undefined, whatever the file holds.
class RowKnowledge {
public:
    RowKnowledge(Connection& connection, const Statement& rows, std::string_view view)
        : connection_(connection), rows_(rows) {
        for (int column = 0; column < rows.columns(); ++column) {
            const std::string_view name = rows.columnName(column);
            if (name == "run_id") runColumn_ = column;
            if (name == "track" && view == "v_span") trackColumn_ = column;
            if (name == "name" && view == "v_span") nameColumn_ = column;
            const auto ofView = neededInView(view, name);
            needs_.push_back(ofView ? ofView : neededByColumn(name));
        }
    }
    /// Whether the row at which the statement stands has a value in the column.
    bool has(int column) {
        const auto& needed = needs_[column];
        if (!needed || runColumn_ < 0) return true;
        if (trackColumn_ >= 0 && !isOfStep(rows_.text(trackColumn_), rows_.text(nameColumn_))) return true;
        const std::int64_t run = rows_.int64(runColumn_);
        if (run != run_) {
            run_ = run;
            knows_ = run > 0 && run <= trace::kMaxRuns ? knowledgeOf(connection_, int(run)) : Knowledge();
        }
        return knows_.has(*needed);
    }

private:
    /// Whether a row of v_span is made of a step; spans of other sources have their own times.
    static bool isOfStep(std::string_view track, std::string_view name) {
        const auto among = [name](const auto& names) {
            return std::find(names.begin(), names.end(), name) != names.end();
        };
        return track == "host" && (name == "layer" || isStepName(name) || among(kStageNames) || among(kStepStageNames));
    }
    /// What a run must know for a column of this view whose name other views use for something else. Nothing: the
    /// column is not one of those.
    static std::optional<Known> neededInView(std::string_view view, std::string_view column) {
        const bool time = column == "start_ns" || column == "duration_ns";
        if (view == "v_transfer") {
            if (column == "blocks" || column == "bytes") return Known::Bytes;
            if (column == "start_ns") return Known::StepTimes;
            if (column == "duration_ns") return Known::TransferTimes;
            return std::nullopt;
        }
        if (view == "v_layer" && column == "duration_ns")
            return Known::StageTimes; // a layer's duration is the sum of its stages
        if (view == "v_breakdown" && column == "total_ns") return Known::StepTimes;
        if ((view == "v_step" || view == "v_layer" || view == "v_span") && time) return Known::StepTimes;
        return std::nullopt;
    }

    Connection& connection_;
    const Statement& rows_;
    Numbered<std::optional<Known>> needs_; // [column]
    int runColumn_ = -1, trackColumn_ = -1, nameColumn_ = -1;
    std::int64_t run_ = 0;
    Knowledge knows_;
};

ExportResult exportView(Connection& connection, const TableQuery& query, ExportFormat format, LineWriter& writer,
                        const ExportOptions& options) {
    ExportResult result;
    std::string where;
    if (options.runId) where = " WHERE run_id = ?1";
    if (options.range)
        where +=
            std::string(where.empty() ? " WHERE" : " AND") + " start_ns < ?3 AND start_ns + max(duration_ns, 1) > ?2";
    Statement rows(connection, fmt::format("SELECT {} FROM {}{}{}", query.columns, query.view, where, query.order));
    if (options.runId) rows.bind(1, *options.runId);
    if (options.range) {
        rows.bind(2, options.range->fromNs);
        rows.bind(3, options.range->toNs);
    }
    if (format == ExportFormat::Csv) {
        for (int column = 0; column < rows.columns(); ++column)
            writer.add("{}{}", column == 0 ? "" : ",", rows.columnName(column));
        writer.addText("\n");
    }
    RowKnowledge knowledge(connection, rows, query.view);
    for (; rows.step(); ++result.rows) {
        if (result.rows % kRowsPerReport == 0) reportRows(options.progress, result.rows);
        for (int column = 0; column < rows.columns(); ++column) {
            if (format == ExportFormat::Jsonl)
                writer.add("{}\"{}\":", column == 0 ? "{" : ",", rows.columnName(column));
            else if (column > 0)
                writer.addText(",");
            if (knowledge.has(column))
                writeValue(writer, rows, column, format);
            else if (format == ExportFormat::Jsonl)
                writer.addText("null");
        }
        writer.addText(format == ExportFormat::Jsonl ? "}\n" : "\n");
        writer.endRow();
    }
    return result;
}

/// Why the runs from `first` to `last` have no row of a selection.
std::string whyNoSelections(Connection& connection, int first, int last) {
    bool know = true, decoded = false;
    Statement runs(connection, "SELECT run_id FROM run WHERE run_id BETWEEN ? AND ?");
    runs.bindAll(first, last);
    while (runs.step()) know &= knowledgeOf(connection, int(runs.int64(0))).has(Known::Selections);
    if (!know) return "the trace does not know which blocks were selected";
    Statement layers(connection, "SELECT selected <> 0 FROM layer_step WHERE id BETWEEN ? AND ?");
    layers.bindAll(trace::keysOfSteps(first, 0, 0, trace::kLayerShift).first,
                   trace::keysOfSteps(last, 0, trace::kMaxStep, trace::kLayerShift).second);
    while (layers.step()) {
        decoded = true;
        if (layers.int64(0) != 0) return "the trace has no selections, only how many blocks its layers selected";
    }
    return decoded ? "the trace has no selections: its method attends every block"
                   : "the trace has no selections: no decode step of a layer was recorded";
}

ExportResult exportSelections(Connection& connection, ExportFormat format, LineWriter& writer,
                              const ExportOptions& options) {
    ExportResult result;
    if (format == ExportFormat::Csv) writer.addText("run_id,step,layer,seq,kv_head,block,origin,hit\n");
    const int firstRun = options.runId.value_or(1), lastRun = options.runId.value_or(trace::kMaxRuns);
    if (firstRun < 1 || lastRun > trace::kMaxRuns) return result;
    Statement rows(connection, "SELECT id, blocks FROM selection WHERE id BETWEEN ? AND ? ORDER BY id");
    rows.bindAll(trace::selectionKey(firstRun, 0, 0, 0, 0),
                 trace::keysOfSteps(lastRun, 0, trace::kMaxStep, trace::kSelectionShift).second);
    std::vector<PackedBlock> blocks;
    std::vector<float> scores;
    bool blockless = false, knowsHits = true;
    std::int64_t selections = 0, knownRun = 0;
    const auto hitOf = [&](PackedBlock block, const char* unknown) {
        return knowsHits ? (block.hit() ? "1" : "0") : unknown;
    };
    while (rows.step()) {
        if (rows.isNull(1)) {
            blockless = true;
            continue;
        }
        const std::int64_t id = rows.int64(0);
        const std::int64_t run = id >> 55;
        const int step = trace::stepOf(id, trace::kSelectionShift), layer = int((id >> 20) & 1023),
                  sequence = int((id >> 10) & 1023), head = int(id & 1023);
        if (!decodeSelection(rows.blob(1), blocks, scores))
            throw Error(
                ErrorKind::BadInput,
                fmt::format("{} is damaged (the selection of step {}, layer {}, sequence {}, KV head {} cannot be "
                            "decoded)",
                            connection.path(), step, layer, sequence, head),
                "record it again");
        if (++selections % (kRowsPerReport / 16) == 0) reportRows(options.progress, result.rows);
        if (run != knownRun) knownRun = run, knowsHits = knowledgeOf(connection, int(run)).has(Known::Hits);
        for (const PackedBlock block : blocks) {
            if (format == ExportFormat::Csv)
                writer.add("{},{},{},{},{},{},{},{}\n", run, step, layer, sequence, head, block.id(),
                           nameOf(block.origin()), hitOf(block, ""));
            else
                writer.add(
                    "{{\"run_id\":{},\"step\":{},\"layer\":{},\"seq\":{},\"kv_head\":{},\"block\":{},\"origin\":\"{}\","
                    "\"hit\":{}}}\n",
                    run, step, layer, sequence, head, block.id(), nameOf(block.origin()), hitOf(block, "null"));
            writer.endRow();
            ++result.rows;
        }
    }
    if (result.rows == 0)
        result.note = blockless ? "the trace was recorded at level counters: it has no selected blocks"
                                : whyNoSelections(connection, firstRun, lastRun);
    return result;
}

bool hasTimes(ExportTable table) {
    switch (table) {
    case ExportTable::Steps:
    case ExportTable::Layers:
    case ExportTable::Transfers:
    case ExportTable::Kernels:
    case ExportTable::Spans:
    case ExportTable::Counters:
        return true;
    default:
        return false;
    }
}

} // namespace

const std::vector<std::string>& exportTableNames() {
    static const std::vector<std::string> names{
        "selections", "steps",         "breakdown",      "transfers",        "tokens",      "kernels",  "layers",
        "locality",   "spans",         "counters",       "gauges",           "flows",       "prompt",   "runs",
        "denoising",  "layer-overlap", "window-overlap", "token-changes",    "active-sets", "requests", "request-spans",
        "iterations", "members",       "row-events",     "served-selections"};
    return names;
}

ExportTable parseExportTable(std::string_view name) {
    const auto& names = exportTableNames();
    const auto found = std::find(names.begin(), names.end(), name);
    if (found == names.end())
        throw Error(ErrorKind::BadInput,
                    fmt::format("there is no table '{}' to export{}", name, didYouMean(name, names)),
                    fmt::format("use one of {}", fmt::join(names, ", ")));
    return ExportTable(found - names.begin());
}

ExportFormat parseExportFormat(std::string_view name) {
    if (name == "csv") return ExportFormat::Csv;
    if (name == "jsonl") return ExportFormat::Jsonl;
    throw Error(ErrorKind::BadInput, fmt::format("unknown table format '{}'", name), "use csv or jsonl");
}

ExportResult exportTable(const std::string& path, ExportTable table, ExportFormat format, std::ostream& out,
                         const ExportOptions& options) {
    if (options.range && !hasTimes(table))
        throw Error(ErrorKind::BadInput,
                    fmt::format("the table of {} has no times", exportTableNames()[std::size_t(table)]),
                    "export all of it");
    const OpenTrace trace = openTrace(path);
    trace.connection->setInterrupt(options.interrupt);
    const bool recordedByOthers = table == ExportTable::Gauges || table == ExportTable::Flows;
    if (recordedByOthers && !hasTable(*trace.connection, "flow"))
        throw Error(
            ErrorKind::BadInput,
            fmt::format("{} was written before traces had a table of {}", path, exportTableNames()[std::size_t(table)]),
            "export another table");
    LineWriter writer(out);
    if (options.guardFormulas) writer.guardFormulas();
    if (table == ExportTable::Counters && !hasTable(*trace.connection, "counter"))
        return {0, "the trace has no counters: it was recorded before there were any"};
    if (table == ExportTable::Denoising && !hasTable(*trace.connection, "denoise"))
        return {0, "the trace has no denoising forwards: it was recorded before there were any"};
    const bool isOfFigures =
        table == ExportTable::WindowOverlap || table == ExportTable::TokenChanges || table == ExportTable::ActiveSets;
    // JSON lines hold whole forwards.
    const bool forwards = table == ExportTable::Denoising && format == ExportFormat::Jsonl;
    ExportResult result =
        table == ExportTable::Selections     ? exportSelections(*trace.connection, format, writer, options)
        : table == ExportTable::LayerOverlap ? exportLayerOverlap(*trace.connection, format, writer, options)
        : isOfFigures                        ? exportFigureNumbers(path, table, format, writer, options)
        : forwards                           ? exportDenoising(*trace.connection, writer, options)
                                             : exportView(*trace.connection, queryOf(table), format, writer, options);
    if (table == ExportTable::Denoising && result.rows == 0)
        result.note = "the trace has no denoising forwards: its model decodes token by token";
    if (table >= ExportTable::Requests && result.rows == 0)
        result.note = table == ExportTable::ServedSelections
                          ? "the trace has no selections of served requests: kvscope-cli load --trace FILE --record "
                            "selections records them"
                          : "the trace has no serving runs: kvscope-cli load --trace records them";
    if (table == ExportTable::Transfers && result.rows == 0 && !options.range)
        result.note = "no transfers are recorded: nothing crossed the link, or the engine did not see it";
    if (table == ExportTable::Locality && result.rows == 0)
        result.note =
            "no selections are recorded: every step attended to everything, or the engine did not see what it "
            "chose";
    if (table == ExportTable::Kernels && result.rows == 0)
        result.note = "the trace has no kernels: they are recorded on GPUs only";
    if (table == ExportTable::Counters && result.rows == 0)
        result.note = "the trace has no counters: they are recorded on GPUs at level full";
    if (table == ExportTable::Gauges && result.rows == 0)
        result.note = "the trace has no gauges: only imported traces have them";
    if (table == ExportTable::Flows && result.rows == 0)
        result.note =
            "the trace has no flows: GPUs at level full record what CUDA calls started, and imported traces have "
            "what the other tool knew";
    writer.flush();
    return result;
}

} // namespace kvscope
