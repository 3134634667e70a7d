#include "profiler/report/run_data.h"

#include "kernels/base/error.h"
#include "profiler/import/import.h"
#include "profiler/read/open_trace.h"

#include <filesystem>
#include <limits>
#include <map>

namespace kvscope::reports {
namespace {

constexpr double kUndefined = std::numeric_limits<double>::quiet_NaN();

std::vector<LayerTotals> readLayers(Connection& connection, int runId) {
    std::vector<LayerTotals> layers;
    std::string stages;
    for (const std::string_view stage : kStageNames) stages += ", sum(" + std::string(stage) + "_ns)";
    Statement sums(connection, "SELECT layer, count(*), sum(duration_ns), sum(selected), sum(hits), sum(misses),"
                               " sum(h2d_blocks), sum(h2d_bytes), sum(h2d_ns), sum(exposed_ns)" +
                                   stages +
                                   " FROM v_layer WHERE run_id = ? AND phase = 'decode' GROUP BY layer ORDER BY layer");
    sums.bindAll(runId);
    while (sums.step()) {
        LayerTotals& layer = layers.emplace_back();
        layer.layer = sums.int32(0);
        layer.steps = sums.int64(1);
        layer.durationNs = sums.int64(2);
        layer.selected = sums.int64(3);
        layer.hits = sums.int64(4);
        layer.misses = sums.int64(5);
        layer.h2dBlocks = sums.int64(6);
        layer.h2dBytes = sums.int64(7);
        layer.h2dNs = sums.int64(8);
        layer.exposedNs = sums.int64(9);
        for (int stage = 0; stage < kStageCount; ++stage) layer.stageNs[std::size_t(stage)] = sums.int64(10 + stage);
        layer.localityMean = layer.localityMin = kUndefined;
    }
    Statement locality(connection, "SELECT layer, avg(locality), min(locality), count(locality) FROM v_locality"
                                   " WHERE run_id = ? AND opens_block = 0 GROUP BY layer");
    locality.bindAll(runId);
    while (locality.step())
        for (LayerTotals& layer : layers)
            if (layer.layer == locality.int32(0) && !locality.isNull(1)) {
                layer.localityMean = locality.real(1);
                layer.localityMin = locality.real(2);
                layer.localityCount = locality.int64(3);
            }
    return layers;
}

std::vector<TransferTotals> readTransfers(Connection& connection, int runId) {
    std::vector<TransferTotals> totals;
    // What v_transfer shows, with the phase that it leaves out.
    for (const char* way : {"h2d", "d2h"}) {
        const std::string name = way;
        Statement rows(connection, "SELECT phase, count(*), sum(" + name + "_blocks), sum(" + name + "_bytes), sum(" +
                                       name + "_ns) FROM v_layer WHERE run_id = ? AND (" + name + "_blocks > 0 OR " +
                                       name + "_bytes > 0) GROUP BY phase ORDER BY phase DESC");
        rows.bindAll(runId);
        while (rows.step())
            totals.push_back(
                {std::string(rows.text(0)), name, rows.int64(1), rows.int64(2), rows.int64(3), rows.int64(4)});
    }
    return totals;
}

/// Each once; a report has room for a few.
std::vector<std::string> readNotes(Connection& connection, int runId) {
    constexpr int kMostNotes = 20;
    std::vector<std::string> notes;
    Statement rows(connection, "SELECT n.value FROM span s JOIN text n ON n.id = s.name WHERE s.run_id = ?"
                               " AND s.track = (SELECT id FROM text WHERE value = 'recorder')"
                               " GROUP BY s.name ORDER BY min(s.id) LIMIT ?");
    rows.bindAll(runId, kMostNotes);
    while (rows.step()) notes.emplace_back(rows.text(0));
    return notes;
}

} // namespace

std::int64_t RunData::decodeSum(std::int64_t StepRow::*member) const {
    std::int64_t sum = 0;
    for (const StepRow& step : steps) sum += step.*member;
    return sum;
}

double RunData::meanContext() const {
    if (steps.empty() || row.sequences < 1) return kUndefined;
    // A sequence that has not ended holds its prompt and one more token with every decode step.
    return double(summary.promptTokens) / row.sequences + (double(steps.size()) + 1) / 2;
}

RunData readRun(TraceReader& reader, const RunRow& row) {
    RunData run;
    run.path = reader.path();
    run.file = std::filesystem::path(run.path).filename().string();
    run.row = row;
    run.summary = summarize(reader, row.runId);
    for (const StepRow& step : reader.steps(row.runId))
        if (step.phase == Phase::Decode) run.steps.push_back(step);
    std::size_t next = 0; // both are in the order of the steps
    for (const BreakdownStep& step : reader.breakdownSteps(row.runId)) {
        if (next == run.steps.size() || run.steps[next].step != step.step) continue;
        run.stepParts.push_back(step);
        ++next;
    }
    OpenTrace trace = openTrace(run.path);
    Statement program(*trace.connection, "SELECT program FROM runs WHERE run_id = ?");
    program.bindAll(row.runId);
    if (program.step() && !program.isNull(0)) run.program = std::string(program.text(0));
    run.layers = readLayers(*trace.connection, row.runId);
    run.transfers = readTransfers(*trace.connection, row.runId);
    if (row.backend != kImported) run.notes = readNotes(*trace.connection, row.runId); // else the track is another's
    run.pcie = pcieTraffic(reader, row.runId);
    run.pcieSteps = pcieOfSteps(reader, row.runId);
    run.lookahead = lookaheadTotals(reader, row.runId);
    run.lostGpuRecords = lostGpuRecords(reader, row.runId).value_or(0);
    run.lostPmSamples = lostPmSamples(reader, row.runId).value_or(0);
    return run;
}

std::vector<RunData> readRuns(const std::vector<std::string>& traces) {
    std::vector<RunData> runs;
    for (const std::string& path : traces) {
        TraceReader reader(path);
        const std::vector<RunRow> rows = reader.runs();
        if (rows.empty())
            throw Error(ErrorKind::BadInput, "trace " + path + " holds no run",
                        "record one with kvscope-cli run --trace");
        for (const RunRow& row : rows) runs.push_back(readRun(reader, row));
    }
    std::map<std::string, int> uses, numbers;
    for (const RunData& run : runs) ++uses[run.row.name];
    for (RunData& run : runs) {
        const std::string name = run.row.name;
        if (uses[name] > 1) run.row.name += " (" + std::to_string(++numbers[name]) + ")";
    }
    return runs;
}

} // namespace kvscope::reports
