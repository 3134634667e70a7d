#include "profiler/report/run_data.h"

#include "base/error.h"
#include "profiler/check/check.h"
#include "profiler/format/trace_keys.h"
#include "profiler/import/import.h"
#include "profiler/read/open_trace.h"
#include "profiler/report/ratio.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <map>
#include <set>

namespace kvscope::reports {
namespace {

/// The sums of v_layer by layer, and of v_transfer by layer, phase and direction, in one pass in the order of the rows;
/// SQL's grouping would sort all of them. Sums of absurd numbers wrap.
class LayerSums {
public:
    /// cold: numbers of the decode steps that rates and means leave out.
    LayerSums(const std::vector<StepRow>& steps, std::set<int> cold) : steps_(steps), cold_(std::move(cold)) {}

    void read(Connection& connection, int runId, const Progress& progress) {
        constexpr int kToldSteps = 1024; // between two reports of progress
        std::string columns = "id, selected, hits, misses, exposed_ns, h2d_blocks, h2d_bytes, h2d_ns, d2h_blocks,"
                              " d2h_bytes, d2h_ns";
        for (const std::string_view stage : kStageNames) columns += ", " + std::string(stage) + "_ns";
        Statement rows(connection, "SELECT " + columns + " FROM layer_step WHERE id BETWEEN ? AND ? ORDER BY id");
        const auto [low, high] = trace::keysOfSteps(runId, 0, trace::kMaxStep, trace::kLayerShift);
        rows.bindAll(low, high);
        for (auto step = steps_.begin(); rows.step();) {
            const int number = trace::stepOf(rows.int64(0), trace::kLayerShift);
            for (; step != steps_.end() && step->step < number; ++step)
                if (step->step % kToldSteps == 0)
                    report(progress, double(step - steps_.begin()) / double(steps_.size()), "reading layers");
            if (step == steps_.end()) break;
            if (step->step > number) continue; // of a step that has no row
            for (std::size_t way = 0; way < 2; ++way)
                addTransfer(transfers_[step->phase == Phase::Decode][way], rows, 5 + 3 * int(way));
            if (step->phase == Phase::Decode) addLayer(rows, !cold_.contains(number));
        }
    }
    /// The locality of the layers' selections; those of steps that open a block are left out.
    void readLocality(Connection& connection, int runId, const Progress& progress) {
        constexpr int kToldSteps = 64; // of many selections each
        int told = -1;
        Statement rows(connection, "SELECT id, CAST(kept AS REAL) / selected FROM selection WHERE id BETWEEN ? AND ?"
                                   " AND opens_block = 0 AND kept IS NOT NULL AND selected > 0");
        const auto [low, high] = trace::keysOfSteps(runId, 0, trace::kMaxStep, trace::kSelectionShift);
        rows.bindAll(low, high);
        while (rows.step()) {
            const int step = trace::stepOf(rows.int64(0), trace::kSelectionShift);
            if (step / kToldSteps != told && !steps_.empty()) {
                told = step / kToldSteps;
                report(progress, std::min(1.0, double(step) / (steps_.back().step + 1.0)), "reading localities");
            }
            const auto at = std::size_t(rows.int64(0) >> 20 & (trace::kMaxLayers - 1));
            if (at >= layers_.size()) continue;
            LayerTotals& layer = layers_[at];
            const double locality = rows.real(1);
            layer.localityMin = layer.localityCount > 0 ? std::min(layer.localityMin, locality) : locality;
            layer.localityMean += locality; // a sum until all are read
            ++layer.localityCount;
        }
    }
    std::vector<LayerTotals> layers() const {
        std::vector<LayerTotals> layers;
        for (LayerTotals layer : layers_) {
            if (layer.steps == 0) continue;
            layer.localityMean =
                layer.localityCount > 0 ? layer.localityMean / double(layer.localityCount) : kUndefined;
            if (layer.localityCount == 0) layer.localityMin = kUndefined;
            layers.push_back(layer);
        }
        return layers;
    }
    std::vector<TransferTotals> transfers() const {
        std::vector<TransferTotals> totals;
        for (std::size_t way = 0; way < 2; ++way)
            for (const Phase phase : {Phase::Prefill, Phase::Decode})
                if (TransferTotals sums = transfers_[phase == Phase::Decode][way]; sums.transfers > 0) {
                    sums.phase = phase;
                    sums.toDevice = way == 0;
                    totals.push_back(sums);
                }
        return totals;
    }

private:
    static void add(std::int64_t& sum, std::int64_t value) {
        sum = std::int64_t(std::uint64_t(sum) + std::uint64_t(value));
    }
    static void addTransfer(TransferTotals& sums, const Statement& row, int column) {
        if (row.int64(column) <= 0 && row.int64(column + 1) <= 0) return;
        ++sums.transfers;
        add(sums.blocks, row.int64(column));
        add(sums.bytes, row.int64(column + 1));
        add(sums.durationNs, row.int64(column + 2));
    }
    void addLayer(const Statement& row, bool counts) {
        const auto at = std::size_t(row.int64(0) & (trace::kMaxLayers - 1));
        if (layers_.size() <= at) layers_.resize(at + 1);
        LayerTotals& layer = layers_[at];
        layer.layer = int(at);
        ++layer.steps;
        add(layer.selected, row.int64(1));
        add(layer.hits, row.int64(2));
        add(layer.misses, row.int64(3));
        add(layer.exposedNs, row.int64(4));
        add(layer.h2dBlocks, row.int64(5));
        add(layer.h2dBytes, row.int64(6));
        add(layer.h2dNs, row.int64(7));
        for (std::size_t stage = 0; stage < kStageCount; ++stage) {
            const std::int64_t ns = row.int64(11 + int(stage));
            add(layer.stageNs[stage], ns);
            add(layer.durationNs, ns);
            if (!counts) continue;
            add(layer.warmStageNs[stage], ns);
            add(layer.warmDurationNs, ns);
        }
        if (!counts) return;
        ++layer.warmSteps;
        add(layer.warmHits, row.int64(2));
        add(layer.warmMisses, row.int64(3));
        add(layer.warmExposedNs, row.int64(4));
    }

    const std::vector<StepRow>& steps_; // all of the run
    std::set<int> cold_;
    std::vector<LayerTotals> layers_;                        // [layer]
    std::array<std::array<TransferTotals, 2>, 2> transfers_; // [prefill, decode][to device, to host]
};

/// The recorder's notes on the run, each text once, and only the first of many: a report has room for a few.
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
    std::uint64_t sum = 0; // absurd numbers of a damaged file wrap
    for (const StepRow& step : steps) sum += std::uint64_t(step.*member);
    return std::int64_t(sum);
}

Cell RunData::ifKnown(Known what, Cell cell) const {
    return row.knows.has(what) ? std::move(cell) : notKnown(cell.quantity, cell.basis);
}

bool RunData::counts(std::size_t step) const {
    return summary.countedSteps == std::int64_t(steps.size()) || !isLeftOut(kinds[step]);
}

std::vector<StepRow> RunData::countedSteps() const {
    std::vector<StepRow> counted;
    for (std::size_t i = 0; i < steps.size(); ++i)
        if (counts(i)) counted.push_back(steps[i]);
    return counted;
}

bool haveMixed(const std::vector<RunData>& runs) {
    return std::any_of(runs.begin(), runs.end(), [](const RunData& run) { return run.summary.mixedSteps > 0; });
}

std::string modelName(const RunRow& row) {
    const bool isPath = row.model.starts_with('/') || row.model.starts_with('~');
    if (!isPath) return row.model; // also "owner/name" of a hub
    const std::string name = std::filesystem::path(row.model).lexically_normal().filename().string();
    return name.empty() ? std::filesystem::path(row.model).parent_path().filename().string() : name;
}

std::int64_t partOf(const BreakdownStep& step, std::string_view component) {
    for (std::size_t i = 0; i < kStageNames.size(); ++i)
        if (component == kStageNames[i]) return step.stageNs[i];
    for (std::size_t i = 0; i < kStepStageNames.size(); ++i)
        if (component == kStepStageNames[i]) return step.stepStageNs[i];
    return step.otherNs;
}

double RunData::componentMeanNs(std::string_view component) const {
    double sum = 0;
    std::int64_t counted = 0;
    for (std::size_t i = 0; i < stepParts.size(); ++i)
        if (counts(i)) sum += double(partOf(stepParts[i], component)), ++counted;
    return counted > 0 ? sum / double(counted) : 0;
}

double RunData::meanContext() const {
    if (steps.empty() || row.sequences < 1 || row.serves()) return kUndefined;     // rows of requests come and go
    if (summary.mixedSteps > 0 || row.prompts.severalPrompts()) return kUndefined; // so do prompts
    // A sequence that has not ended holds its prompt and one more token with every decode step.
    return double(summary.promptTokens) / row.sequences + (double(steps.size()) + 1) / 2;
}

namespace {

/// Where the run's rows break rules of the format: marks the numbers that this spoils as not known, and adds a note
/// that says why.
void refuseBroken(const TraceReader& reader, RunData& run) {
    const RunCheck check = checkRun(reader, run.row.runId, counting());
    if (const std::string left = check.leftOut(); !left.empty())
        run.notes.push_back("Of the rules of the trace format, " + left + ".");
    if (check.violations() == 0) return;
    run.row.knows = trusted(run.row.knows, check);
    RunSummary& summary = run.summary;
    run.tokensBroken = check.concerns(Concern::Tokens);
    if (check.concerns(Concern::Tokens) || check.concerns(Concern::Times))
        summary.tokensPerSecond = summary.tokensPerSecondWithGaps = kUndefined;
    if (check.concerns(Concern::Selection)) {
        summary.localityMean = summary.localityMin = kUndefined;
        summary.localityCount = 0;
        for (LayerTotals& layer : run.layers) {
            layer.localityMean = layer.localityMin = kUndefined;
            layer.localityCount = 0;
        }
    }
    run.notes.insert(run.notes.begin(),
                     "Rows break rules of the trace format, so the numbers concerned are left out: " +
                         check.sentence() + ". kvscope-cli check names every row.");
}

} // namespace

RunData readRun(TraceReader& reader, const RunRow& row, const Progress& progress) {
    RunData run;
    run.path = reader.path();
    run.file = std::filesystem::path(run.path).filename().string();
    run.row = row;
    std::vector<StepRow> steps; // the prefill too
    const auto show = [&](double from, double to) -> Progress {
        return [&progress, from, to](double fraction, std::string_view what) {
            report(progress, std::lerp(from, to, fraction), what);
        };
    };
    std::vector<StepMark> marks; // of the decode steps
    const auto take = [&](const StepRow& step, const StepMark& mark, const BreakdownStep& parts) {
        steps.push_back(step);
        if (step.phase != Phase::Decode) return;
        run.steps.push_back(step);
        marks.push_back(mark);
        run.stepParts.push_back(parts);
    };
    run.summary = summarize(reader, row.runId, show(0, 0.4), take);
    run.kinds = kindsOf(marks);
    OpenTrace trace = openTrace(run.path);
    Statement program(*trace.connection, "SELECT program FROM runs WHERE run_id = ?");
    program.bindAll(row.runId);
    if (program.step() && !program.isNull(0)) run.program = std::string(program.text(0));
    std::set<int> cold;
    for (std::size_t i = 0; i < run.steps.size(); ++i)
        if (!run.counts(i)) cold.insert(run.steps[i].step);
    LayerSums layers(steps, std::move(cold));
    layers.read(*trace.connection, row.runId, show(0.4, 0.7));
    layers.readLocality(*trace.connection, row.runId, show(0.7, 1));
    run.layers = layers.layers();
    run.transfers = layers.transfers();
    if (row.backend != RunBackend::Imported)
        // another tool may use the track of the notes for something else
        run.notes = readNotes(*trace.connection, row.runId);
    run.pcie = pcieTraffic(reader, row.runId);
    run.pcieSteps = pcieOfSteps(reader, row.runId);
    run.lookahead = lookaheadTotals(reader, row.runId);
    run.activeSets = readActiveSets(reader, row.runId);
    run.changeRanks = readChangeRanks(reader, row.runId);
    run.keyRanks = readChangeRanks(reader, row.runId, ChangeOf::Keys);
    run.valueRanks = readChangeRanks(reader, row.runId, ChangeOf::Values);
    run.served = readServedLoad(reader, row.runId);
    run.lostGpuRecords = lostGpuRecords(reader, row.runId).value_or(0);
    run.lostPmSamples = lostPmSamples(reader, row.runId).value_or(0);
    if (row.backend != RunBackend::Imported && (row.status != RunStatus::Running || row.stale))
        refuseBroken(reader, run);
    return run;
}

std::vector<RunData> readRuns(const std::vector<std::string>& traces, const Progress& progress) {
    std::vector<RunData> runs;
    for (std::size_t file = 0; file < traces.size(); ++file) {
        const std::string& path = traces[file];
        TraceReader reader(path);
        const std::vector<RunRow> rows = reader.runs();
        if (rows.empty())
            throw Error(ErrorKind::BadInput, "trace " + path + " holds no run",
                        "record one with kvscope-cli run --trace");
        for (std::size_t i = 0; i < rows.size(); ++i)
            runs.push_back(readRun(reader, rows[i], [&](double fraction, std::string_view what) {
                report(progress, (double(file) + (double(i) + fraction) / double(rows.size())) / double(traces.size()),
                       what);
            }));
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
