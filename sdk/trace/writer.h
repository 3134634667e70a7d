// What the handles of a recording stand for: the file, its run, and the steps that are being filled.
#pragma once

#include "core/trace/trace_sink.h"
#include "profiler/record/recorder.h"
#include "sdk/trace/handles.h"
#include "sdk/trace/names.h"
#include "sdk/trace/requests.h"
#include "sdk/trace/selected_blocks.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace kvscope::sdk {

/// Counts over one run.
struct RunCounts {
    std::atomic<std::int64_t> discardedSteps{0}, futureIds{0}, duplicateIds{0};
};

class Writer final : public Object {
public:
    /// rank: of the process; absent: it has none. sampleEvery: of so many decode steps two keep their selections.
    Writer(std::string path, const RecorderOptions& options, std::optional<int> rank, int sampleEvery);
    void settle() override;
    void resume() override;
    const std::string& writes() const override { return path_; }

    /// The recorder. @throws Refusal once the writer is closed
    std::shared_ptr<Recorder> recorder() const;
    /// Takes the recorder away. The last owner that lets it go finishes the file.
    std::shared_ptr<Recorder> close();
    /// @throws Refusal where the file is not written any more
    void requireWritable() const;
    /// Likewise where the file has reached the size that it may have.
    void requireRoom() const;

    const std::optional<int> rank;
    const int sampleEvery;
    Names names;
    std::mutex beginning;      // held while a run begins
    mutable std::mutex mutex;  // guards what follows
    std::uint64_t openRun = 0; // handle; 0: none
    // counts of the open run; of the last one where none is open
    std::shared_ptr<RunCounts> counts = std::make_shared<RunCounts>();

private:
    const std::string path_;
    std::shared_ptr<Recorder> recorder_;
    std::shared_ptr<Recorder> held_; // during a fork; only the forking thread uses it
};

class Run final : public Object {
public:
    /// Begins the run. @throws Refusal, Error
    Run(std::shared_ptr<Writer> writer, const kvtrace_run_info& info);

    std::int64_t now() const;
    bool knows(unsigned bits) const { return (knows_ & bits) != 0; }
    /// Sets the phase and the start of a step's record. @return whether the step keeps its selections. @throws Refusal
    bool beginStep(StepRecord& record, int phase, std::int64_t startNs);
    /// Gives the record its number, finds out which blocks were kept, and hands the record over. @throws Refusal if it
    /// breaks a rule
    /// leaders: [layer] whose selection it has; -1: its own.
    void commit(std::unique_ptr<StepRecord> record, bool ownClock, int phase, const std::vector<int>& leaders,
                bool sampled);
    void discard(int phase);
    void note(unsigned knownBits) { written_ |= knownBits; }
    /// Hands over a reading of another clock. @throws Refusal
    void addClock(ClockReading reading);
    /// Gives the spans their numbers and hands them over. @return the number of the first one
    std::int64_t addSpans(std::vector<EngineSpan> spans);
    /// @throws Refusal: no span has such a number yet
    void addFlow(std::int64_t from, std::int64_t to);
    /// @return the row of the batch that the request has from now on. @throws Refusal
    std::int32_t beginRequest(const kvtrace_request& request);
    void endRequest(std::int32_t row, std::int32_t outcome, std::string reason, std::int64_t endNs);
    /// @throws Refusal if the run has ended
    void requireOpen() const;
    void end(RunStatus status, std::string message);

    const std::shared_ptr<Writer> writer;
    const std::shared_ptr<RunCounts> counts;
    int layers = 0, kvHeads = 0, sequences = 0;
    bool hasSlots = false; // some blocks are not resident
    BlockRules rules;
    RecordLevel level = RecordLevel::Selections;

private:
    struct Chosen {
        int step = -1;
        std::vector<PackedBlock> blocks;
    };
    /// How far the prompts of a sequence are read.
    struct Reading {
        int prompts = 0;       // begun
        std::int64_t end = 0;  // behind the last piece
        std::int64_t kept = 0; // tokens in table prompt
    };
    void requireFollowing(const std::vector<PieceRecord>& pieces) const;
    void takePieces(std::vector<PieceRecord>& pieces);
    void placeInTime(StepRecord& record, bool ownClock) const;
    /// Reads the clocks of a rank where they were not read for ten seconds.
    void lookAtClocks();
    void findKept(StepRecord& record);
    void forgetChosen(int sequence);
    void noteLeaders(const std::vector<int>& leaders);

    const unsigned knows_;
    std::atomic<unsigned> written_{0};
    std::atomic<std::int64_t> spans_{0}; // how many have numbers
    const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
    bool readsClocks_ = false; // of a rank: merging needs them
    mutable std::mutex mutex_; // guards what follows
    std::chrono::steady_clock::time_point clocksRead_ = began_;
    std::unordered_map<std::uint64_t, Chosen> chosen_; // [layer, sequence, KV head] what the last step selected
    std::unordered_map<int, Reading> read_;            // [sequence] of prompts that are read in pieces
    Requests requests_;
    std::vector<int> leaders_;  // [layer] the layer whose selection it has; empty: no step has said it
    bool writesLeaders_ = true; // the caller gives none, and they have not changed so far
    std::int64_t begunDecodes_ = 0;
    int nextStep_ = 1, openSteps_ = 0; // nextStep_: step 0 is the prefill, recorded or not
    int lastDecode_ = -1;              // the last step committed in which sequences decode
    std::int64_t lastStartNs_ = 0, lastEndNs_ = 0;
    bool ended_ = false, hasBegunSteps_ = false, prefillOpen_ = false, zeroTaken_ = false;
    bool hasPrompts_ = false; // the prompts were given with the run
    bool hasPrefill_ = false; // a step of KVTRACE_PREFILL is committed
};

class Step final : public Object {
public:
    Step(std::shared_ptr<Run> run, int phase, std::int32_t tokens, std::int64_t startNs);

    void select(const kvtrace_selection& selection);
    void share(int layer, int leader);
    void addLayer(const kvtrace_layer& layer);
    void addStages(std::int64_t embedNs, std::int64_t lmHeadNs, std::int64_t sampleNs);
    void addTokens(int sequence, std::int64_t position, const std::int32_t* ids, std::int64_t count, const char* text,
                   const std::int64_t* offsets);
    void addPiece(const kvtrace_prompt_piece& piece);
    void commit(std::int64_t endNs);
    void discard();

private:
    bool readsPrompt(int sequence) const;
    void requirePieces() const;
    void requireSelectable(const kvtrace_selection& selection) const;
    void addRow(const kvtrace_selection& selection, std::int64_t row, std::int64_t head);
    void requireTimes() const;

    const std::shared_ptr<Run> run_;
    /// Guards what follows. A step should be used by one thread; two are the caller's mistake, which must not crash.
    std::mutex mutex_;
    std::unique_ptr<StepRecord> record_;
    const int phase_;                   // of kvtrace_phase
    bool ownClock_ = true;              // the library takes the times of the step itself
    std::vector<std::uint8_t> counted_; // [layer] whether hits were given as counts without selections
    std::vector<int> leaders_;          // [layer] whose selection it has; -1: its own; empty: all do
    bool sampled_ = true;               // the trace keeps its selections
    BlockFinder finder_;
    SelectedBlocks found_;
};

} // namespace kvscope::sdk
