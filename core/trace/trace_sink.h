// What an engine and the recorder of its GPU tell a sink: a step, spans, counts or a remark at a time. The engine fills
// one StepRecord for each step, hands it over and never waits.
#pragma once

#include "base/indexed.h"
#include "core/trace/denoise_record.h"
#include "core/trace/knowledge.h"
#include "core/trace/serving_record.h"
#include "core/trace/stage.h"
#include "kernels/packed_block.h"

#include <cstdint>
#include <functional>
#include <iterator>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace kvscope {

enum class Phase : std::uint8_t { Prefill, Decode };
constexpr const char* nameOf(Phase phase) { return phase == Phase::Prefill ? "prefill" : "decode"; }

/// How much a recorder wants. Counters: times, hits, bytes. Selections: also the selected blocks with origin and hit.
/// Full: also the score of every selected block.
enum class RecordLevel : std::uint8_t { Counters, Selections, Full };
constexpr const char* nameOf(RecordLevel level) {
    return level == RecordLevel::Counters ? "counters" : level == RecordLevel::Selections ? "selections" : "full";
}

/// Whether the times of transfers were measured or modelled. Measured and modelled times are never added up.
enum class Timing : std::uint8_t { Measured, Modelled };
constexpr const char* nameOf(Timing timing) { return timing == Timing::Measured ? "measured" : "modelled"; }

enum class RunStatus : std::uint8_t { Running, Finished, Stopped, Failed };
constexpr const char* nameOf(RunStatus status) {
    constexpr const char* names[] = {"running", "finished", "stopped", "failed"};
    return names[int(status)];
}

/// A run's prompts, lent: the ids, and who says what an id decodes to. Copies share both, so that a writer may read
/// them while the engine goes on and a million tokens are kept once.
class RunPrompts {
public:
    using Ids = std::vector<std::vector<std::int32_t>>; // [sequence]
    /// The bytes that a token decodes to; they may be part of a UTF-8 character. Called from the sink's thread.
    using BytesOf = std::function<std::string(std::int32_t id)>;

    RunPrompts() = default; // none
    RunPrompts(std::shared_ptr<const Ids> ids, BytesOf bytesOf) : ids_(std::move(ids)), bytesOf_(std::move(bytesOf)) {}

    std::size_t sequences() const { return ids_ ? ids_->size() : 0; }
    std::span<const std::int32_t> of(std::size_t sequence) const { return (*ids_)[sequence]; }
    std::string bytesOf(std::int32_t id) const { return bytesOf_(id); }
    const Ids* ids() const { return ids_.get(); }

private:
    std::shared_ptr<const Ids> ids_;
    BytesOf bytesOf_;
};

/// Everything that does not change during a run.
struct RunInfo {
    std::string name;       // shown to people; defaults to "method on model"
    std::string model;      // name or path
    std::string method;     // registry id
    std::string paramsJson; // resolved parameters, one JSON object
    std::string backend;    // "cpu" or "cuda"
    std::string device;     // e.g. "cpu: AVX3, 2 threads"
    std::string link;       // e.g. "pcie5: 55.5 GB/s, 10 us (modelled)"
    Timing linkTiming = Timing::Modelled;
    double linkGbps = 0, linkLatencyUs = 0;
    int blockSize = 0, layers = 0, kvHeads = 0, queryHeads = 0, headDim = 0, sequences = 0;
    int deviceSlots = 0;         // block slots per (sequence, layer, KV head); 0: everything resident
    int budgetBlocks = 0;        // blocks a KV head attends at most; 0: all
    std::int64_t blockBytes = 0; // one KV block of one KV head as transferred
    RecordLevel level = RecordLevel::Full;
    Knowledge knows; // the writer knows these groups; in all others its records hold 0
    /// More about the run, key and value: rows of table `run_meta`. docs/trace-format.md has the keys.
    std::vector<std::pair<std::string, std::string>> meta;
    RunPrompts prompts;
};

/// One layer of one step, all sequences. Stages follow each other: the first starts at startNs, each next one when the
/// one before it ends.
struct LayerRecord {
    std::int64_t startNs = 0; // relative to the run's start
    PerValue<Stage, std::int64_t, kStageCount> stageNs{};
    /// Sums over sequences and KV heads. kept: -1 where undefined
    std::int32_t selected = 0, kept = 0, hits = 0, misses = 0;
    std::int32_t h2dBlocks = 0, d2hBlocks = 0;
    std::int64_t h2dBytes = 0, d2hBytes = 0;
    std::int64_t transferNs = 0; // link busy, both directions
    std::int64_t exposedNs = 0;  // of that, on the critical path
};

/// One (layer, sequence, KV head) of one step. Its blocks are StepRecord::blocks[first .. first + selected), which
/// StepRecord::blocksOf gives.
struct SelectionRecord {
    std::int32_t layer = 0, sequence = 0, kvHead = 0;
    std::int32_t selected = 0;
    std::int32_t kept = -1; // |S(t) and S(t-1)|; -1 where undefined: the first decode step of a sequence
    std::int32_t hits = 0, misses = 0;
    float mass = std::numeric_limits<float>::quiet_NaN(); // attention mass captured, 0..1, only with the oracle
    // With the oracle too, NaN without it or where undefined; see OracleRecord for what is best and what is far.
    float bestMass = std::numeric_limits<float>::quiet_NaN(), recall = bestMass, farMass = bestMass,
          farBestMass = bestMass, farRecall = bestMass;
    std::uint32_t first = 0;
    // Of a transfer schedule that looks ahead: blocks asked for before the attention (-1: none were); of those, the
    // selected, the transferred but not selected, and the ones that had not arrived when the attention needed them.
    std::int32_t predicted = -1, used = 0, wasted = 0, late = 0;
    std::int32_t stale = -1; // of a method that lags: blocks this query would have chosen but could not see; -1: no lag
};

struct TokenRecord {
    std::int32_t sequence = 0, id = 0, position = 0; // position in the sequence, prompt included
    std::string bytes;
};

/// A token that a sequence is fed in a step.
struct FedPosition {
    std::int32_t sequence = 0, position = 0; // position in the sequence, prompt included
};

/// The part of one sequence's prompt that a step reads. An engine that reads all of every prompt in step 0 has none.
struct PieceRecord {
    std::int32_t sequence = 0, first = 0, tokens = 0; // first: position of the piece's first token
    bool begins = false;           // the first piece of a prompt, which replaces the sequence's tokens
    std::vector<TokenRecord> read; // the piece's tokens and their positions; empty: not known
};

/// Something that took time on a track of its own: a kernel, a copy, a range of another tool.
struct SpanRecord {
    enum class Kind : std::uint8_t { Range = 0, Kernel = 1, Copy = 2 };
    std::int32_t step = -1, layer = -1; // -1: none
    Kind kind = Kind::Range;
    std::string track, name;                  // name: without what the fields below say, e.g. "host to device"
    std::int64_t startNs = 0, durationNs = 0; // relative to the run's start
    std::int32_t depth = 0;
    StageId stage = {};      // the stage that a kernel was launched for
    std::int64_t bytes = -1; // moved or set; -1: not known
    /// A call (a Range) and the kernels and copies that it started have the same number; 0: not known. What a call
    /// started may be told later than the call, but not before it.
    std::uint32_t launch = 0;
};

/// A count of something, such as bytes, in an interval of a run. The samples of one track follow each other in time.
struct CounterSample {
    std::string track;                        // e.g. "PCIe bytes to device"
    std::int64_t startNs = 0, durationNs = 0; // relative to the run's start
    std::int64_t value = 0;                   // counted within the interval
};

/// A sentence for people about how a run was recorded.
struct Remark {
    std::string sentence;
};

/// One step of the whole batch: the prefill is step 0, and the decode steps follow. An engine that reads prompts in
/// pieces also reads them in later steps: in steps of phase Prefill, which only read, and in decode steps.
struct StepRecord {
    std::int32_t step = 0;
    Phase phase = Phase::Decode;
    std::int32_t tokens = 0; // tokens fed; written, in a block-diffusion run
    bool opensBlock = false; // some sequence began a new KV block in this step
    std::int64_t startNs = 0, durationNs = 0;
    PerValue<StepStage, std::int64_t, kStepStageCount> stepStageNs{};
    Numbered<LayerRecord> layers;
    std::vector<SelectionRecord> selections;
    std::vector<PackedBlock> blocks; // ids ascend within a selection; empty at level Counters
    std::vector<float> scores;       // empty below level Full
    std::vector<TokenRecord> generated;
    std::vector<FedPosition> fed; // of sequences whose tokens are not recorded; `generated` has those of the others
    std::vector<PieceRecord> pieces;
    std::vector<SpanRecord> spans; // of transfers beside the step's kernels, where somebody records kernels
    DenoiseStep denoise;           // of a block-diffusion run

    /// The blocks of one of its selections.
    std::span<const PackedBlock> blocksOf(const SelectionRecord& selection) const {
        return std::span(blocks).subspan(selection.first, Elements(selection.selected));
    }
    /// Empties it, keeping its memory.
    void clear();
};

/// What a sink is told while a run is on.
using RunEvent = std::variant<std::unique_ptr<StepRecord>, std::vector<SpanRecord>, std::vector<CounterSample>, Remark,
                              std::unique_ptr<ServingRecord>>;

/// Where a run's events go. The engine's thread begins and ends the run and hands over its steps; the recorder of the
/// GPU may hand over spans, counts and remarks on a thread of its own. No call waits for storage, and only beginRun
/// throws.
class TraceSink {
public:
    virtual ~TraceSink() = default;
    virtual RecordLevel level() const = 0;
    virtual void beginRun(const RunInfo& info) = 0;
    /// An empty record to fill; recycled where possible.
    virtual std::unique_ptr<StepRecord> acquire() = 0;
    /// Steps in their order; everything else in any order.
    virtual void take(RunEvent event) noexcept = 0;
    virtual void endRun(RunStatus status, const std::string& message) noexcept = 0;
};

/// Drops everything.
class NullSink final : public TraceSink {
public:
    RecordLevel level() const override { return RecordLevel::Counters; }
    void beginRun(const RunInfo&) override {}
    std::unique_ptr<StepRecord> acquire() override;
    void take(RunEvent event) noexcept override {
        if (auto* step = std::get_if<std::unique_ptr<StepRecord>>(&event)) spare_ = std::move(*step);
    }
    void endRun(RunStatus, const std::string&) noexcept override {}

private:
    std::unique_ptr<StepRecord> spare_; // the engine's thread
};

/// Keeps everything in memory, for tests and --verify; all of it from one thread.
class CollectingSink final : public TraceSink {
public:
    explicit CollectingSink(RecordLevel level = RecordLevel::Full) : level_(level) {}
    RecordLevel level() const override { return level_; }
    void beginRun(const RunInfo& runInfo) override { info = runInfo; }
    std::unique_ptr<StepRecord> acquire() override { return std::make_unique<StepRecord>(); }
    void take(RunEvent event) noexcept override;
    void endRun(RunStatus runStatus, const std::string&) noexcept override { status = runStatus; }

    RunInfo info;
    std::vector<StepRecord> steps;
    std::vector<SpanRecord> spans;
    std::vector<CounterSample> counts;
    std::vector<std::string> remarks;
    std::vector<ServingRecord> served;
    RunStatus status = RunStatus::Running;

private:
    RecordLevel level_;
};

} // namespace kvscope
