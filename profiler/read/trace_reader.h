// The one way to read a .kvtrace: a read-only connection that returns vectors of plain rows. Every view, the command
// line, the reports and the tests use it. One object per thread.
#pragma once

#include "base/extents.h"
#include "base/progress.h"
#include "core/trace/trace_sink.h"
#include "profiler/format/run_fact.h"
#include "profiler/read/prompt_steps.h"

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvscope {

struct RunRow {
    int runId = 0;
    std::string name, createdUtc, model, method, paramsJson, device, link, statusMessage;
    RunFact<RunBackend> backend;
    RunFact<Timing> timing; // how its transfer times are known
    RunFact<RunStatus> status;
    RunFact<RecordLevel> level;
    /// The storage error that ended the recording: nothing was recorded after it, and the status is `failed`.
    std::string error;
    int blockSize = 0, layers = 0, kvHeads = 0, queryHeads = 0, headDim = 0, sequences = 0, deviceSlots = 0,
        budgetBlocks = 0;
    std::int64_t blockBytes = 0;
    double linkGbps = 0, linkLatencyUs = 0;
    std::int64_t droppedSteps = 0, writerBusyNs = 0;
    int steps = 0;      // the last recorded step's number + 1; dropped steps leave gaps
    int iterations = 0; // of a run that served requests: the last one's number + 1. Its steps have their numbers, and
                        // those that only read prompts are gaps between the steps
    bool stale = false; // says "running", but nothing was written for seconds: the writer is gone
    /// What the writer could see. In all other groups its rows hold 0, and have no kept, hit flags and scores. Where
    /// the file does not say (key `knows` of run_meta), the first decode steps show it.
    Knowledge knows;
    std::map<std::string, std::string> meta; // table run_meta; empty in older traces
    PromptSteps prompts;                     // which steps read prompts, as far as the run has come

    /// A value of run_meta; empty: there is none.
    const std::string& metaOr(const std::string& key) const;
    /// Whether the run's writer says that the run served requests. It has iterations then; its steps, if any were
    /// recorded, are the decode steps of these, and its sequences are rows, which one request after another has.
    bool serves() const;
    /// Whether the rows of a serving run shared one pool of device slots.
    bool sharesPool() const;
};

struct StepRow {
    int step = 0;
    Phase phase = Phase::Decode;
    int tokens = 0;                // fed, of prompts as well
    std::int64_t promptTokens = 0; // of them; of a step that reads prompts only: all
    bool opensBlock = false;
    std::int64_t startNs = 0, durationNs = 0;
    std::int64_t selected = 0, kept = -1, hits = 0, misses = 0, h2dBytes = 0, d2hBytes = 0, transferNs = 0,
                 exposedNs = 0;
    /// Tokens of sequences that decode.
    std::int64_t decodeTokens() const { return tokens - promptTokens; }
    /// Some sequences read pieces of their prompts, others decode.
    bool mixed() const { return phase == Phase::Decode && promptTokens > 0; }
};

struct TokenRow {
    int step = 0, sequence = 0, position = 0;
    std::int32_t id = 0;
    std::string bytes; // raw
};

enum class Metric { Locality, HitRate, Misses, H2dBytes, ExposedTime, LayerTime, Mass, Recall, FarMass };
/// Recorded with the oracle only, beside the mass.
constexpr bool isOfOracle(Metric metric) { return metric == Metric::Recall || metric == Metric::FarMass; }
/// Registry of metrics: id, title, unit, what it means; used by pickers, tooltips, docs.
struct MetricInfo {
    Metric metric;
    const char *id, *title, *unit, *help;
    double fixedMin, fixedMax; // NaN: from the data
};
const std::vector<MetricInfo>& metrics();
/// The group that a run must know for the metric to have values.
Known neededBy(Metric metric);

/// A dense matrix, column = step, rows top to bottom; NaN = undefined (e.g. locality of the first decode step).
struct StepMatrix {
    int firstStep = 0, steps = 0, rows = 0;
    std::vector<float> values; // [steps][rows]: step-major, so that a live run appends
    std::vector<std::string> rowNames;
    Extents<int, int> extents() const { return Extents<int, int>(steps, rows); } // of values
    float at(int step, int row) const { return values[extents().offset(step, row)]; }
    float& at(int step, int row) { return values[extents().offset(step, row)]; }
};

/// One recorded selection.
struct SelectionRow {
    int step = 0, layer = 0, sequence = 0, kvHead = 0;
    int kept = -1, hits = 0, misses = 0;
    float mass = 0;                  // NaN unless recorded with the oracle
    std::vector<PackedBlock> blocks; // ids ascend
    bool knowsHits = false;          // false: PackedBlock::hit() of the blocks means nothing
    std::vector<float> scores;       // empty unless recorded at level full
    int selected = 0;                // blocks, also where they were not recorded one by one
    double locality() const;         // NaN where undefined
};

struct BreakdownRow {
    Phase phase = Phase::Decode;
    std::string component;
    int layer = -1; // -1: outside the layers
    std::int64_t calls = 0, totalNs = 0;
};

struct BreakdownStep { // one decode step or prefill
    int step = 0;
    std::int64_t durationNs = 0;
    std::array<std::int64_t, kStageCount> stageNs{}; // summed over layers
    std::array<std::int64_t, kStepStageCount> stepStageNs{};
    std::int64_t otherNs = 0;
};

struct TransferRow {
    int step = 0, layer = 0;
    bool toDevice = true;
    std::string mechanism; // "block copy, modelled link"
    std::int64_t blocks = 0, bytes = 0, startNs = 0, durationNs = 0;
};

struct RunSummary;     // read/summary.h
struct SelectionTrace; // replay/selection_trace.h

/// Which part of a matrix to aggregate: -1 = all.
struct HeadFilter {
    int sequence = -1, kvHead = -1;
};

class TraceReader {
public:
    /// @throws Error(Storage | BadInput): not there, not a trace, newer than this program, damaged
    explicit TraceReader(const std::string& path);
    ~TraceReader();
    TraceReader(TraceReader&&) noexcept;

    const std::string& path() const;
    std::vector<RunRow> runs() const;
    std::optional<RunRow> run(int runId) const;
    int stepCount(int runId) const; // cheap

    /// Steps [first, last]; last < 0: to the end.
    std::vector<StepRow> steps(int runId, int first = 0, int last = -1) const;
    std::vector<TokenRow> tokens(int runId, int sequence, int firstStep = 0) const; // generated
    std::vector<TokenRow> prompt(int runId, int sequence, int firstPosition = 0, int count = -1) const;
    /// Text of a KV block (prompt and generated tokens), malformed UTF-8 replaced; empty if the block does not exist.
    std::string blockText(int runId, int sequence, int block) const;

    /// Rows = layers. With a head filter it reads the selection rows, else the per-layer sums.
    StepMatrix layerMatrix(int runId, Metric metric, HeadFilter filter = {}, int firstStep = 0,
                           int lastStep = -1) const;
    /// Rows = (sequence, KV head) of one layer.
    StepMatrix headMatrix(int runId, Metric metric, int layer, int firstStep = 0, int lastStep = -1) const;
    std::vector<SelectionRow> selections(int runId, int layer, int sequence, int kvHead, int firstStep = 0,
                                         int lastStep = -1) const;
    std::optional<SelectionRow> selection(int runId, int step, int layer, int sequence, int kvHead) const;
    std::vector<BreakdownRow> breakdown(int runId) const; // v_breakdown
    std::vector<BreakdownStep> breakdownSteps(int runId, int firstStep = 0, int lastStep = -1) const;
    /// Stage times of one step, per layer: [layer][stage].
    std::vector<LayerRecord> layers(int runId, int step) const;
    std::vector<TransferRow> transfers(int runId, int firstStep = 0, int lastStep = -1) const;

    /// Long reads poll this and throw Error(Cancelled).
    void setInterrupt(const std::atomic<bool>* flag);

private:
    friend RunSummary summarize(const TraceReader& reader, int runId);
    friend SelectionTrace loadSelectionTrace(const TraceReader& reader, int runId, const Progress& progress,
                                             const std::stop_token& stop);
    friend struct ReaderAccess; // read/reader_impl.h: for other readings of the profiler
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

} // namespace kvscope
