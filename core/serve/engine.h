// An engine that serves: requests join and leave while it runs. Its iterations are the scheduler's plans, carried out
// with a backend's rows.
#pragma once

#include "base/error.h"
#include "base/indexed.h"
#include "core/serve/request_table.h"
#include "core/serve/serves.h"
#include "core/serve/slot_pool.h"
#include "core/serve/working_set.h"
#include "core/session/row_engine.h"
#include "core/session/sampler.h"
#include "core/trace/trace_sink.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <stop_token>
#include <string>
#include <unordered_map>
#include <vector>

namespace kvscope::serve {

struct EngineOptions {
    /// Method, its settings, threads and link. A request brings its own sampling, number of new tokens and end; slots
    /// and offloading come from the scheduler's options.
    SessionOptions session;
    SchedulerOptions scheduler;
    Budget budget;                     // `rows` and `workingSetControl` are replaced by the scheduler's
    ServiceCosts costs;                // the scheduler plans with these; their shape is replaced by the engine's own
    std::function<std::int64_t()> now; // nanoseconds of a clock that never goes back; empty: the steady clock
    RecordLevel level = RecordLevel::Selections; // Full: the records of rows hold scores as well
    /// Selections are drawn at random with these localities, see PlantedSelections, because the model's weights are
    /// random. Every row, layer and KV head draws for itself, by the number of its request. Empty: the method selects.
    std::vector<double> planted;
    /// Once it is requested, an iteration that reads a prompt ends between two pieces of it with Error(Cancelled), and
    /// the engine is of no more use. A server, whose requests end in order, leaves it out.
    std::stop_token stop;
};

/// A request as a client gives it.
struct Submission {
    RequestId id = 0; // no other request that the engine has may have this id
    std::vector<std::int32_t> prompt;
    int maxTokens = 1;
    bool stopAtEos = true;
    Sampling sampling;
    std::int64_t queuedNs = -1; // when it arrived, on the engine's clock; below 0: when the engine takes it in
    double ttftBoundMs = 0;     // 0: the scheduler's
    /// Whether the request ends with this token. Called once for each token, in their order, on the engine's thread.
    /// Empty: the length and the end of text alone end it.
    std::function<bool(std::int32_t token)> endsWith;
};

enum class Ending : std::uint8_t { Length, Stop, Cancelled, Refused, Failed };
constexpr const char* nameOf(Ending ending) {
    constexpr const char* names[] = {"length", "stop", "cancelled", "refused", "failed"};
    return names[int(ending)];
}

/// What an iteration did for one request.
struct MemberReport {
    RequestId id = 0;
    int row = 0;
    bool prefill = false; // the iteration read a part of its prompt; false: it decoded
    int tokens = 1;       // how many prompt tokens were read in the last layer of the part; 1 when it decoded
    // of a prompt's part: the layer in which it began, and the layer behind the last one that is complete
    int layerFrom = 0, layerTo = 0;
    std::int64_t hits = 0, misses = 0, missedBytes = 0; // of the selection of its decode step
    std::int64_t workingSetBytes = 0;                   // its estimated working set after the iteration
    bool madeToken = false;
};

/// What an iteration did, told when it has ended.
struct IterationReport {
    const IterationPlan& plan;
    std::int64_t beginNs = 0, endNs = 0;
    std::int64_t decodeNs = 0;               // time of the decode step, sampling included
    std::span<const std::int64_t> segmentNs; // time of each segment of the plan; 0: its request had ended
    std::int64_t contextTokens = 0;          // of all decoded rows together
    std::int64_t hits = 0, misses = 0;       // of the decoded rows' selections, in the units that the method selects
    std::int64_t selectedBytes = 0, missedBytes = 0; // the same in bytes; missed ones came over the link
    std::int64_t surprises = 0; // with global-lru: blocks that warm rows selected outside of their working sets
    Amounts reserved = {};      // while it ran
    std::span<const MemberReport> members = {}; // what it did for the requests of the plan that had not failed
    std::int64_t decodeBeginNs = 0;
    /// With global-lru on the CPU: the blocks that the pool did not have. The records of rows say nothing of the pool
    /// there; on a GPU they say it all.
    std::span<const PooledBlock> poolMisses = {};
    /// The time from the end of the iteration before to the beginning of this one, in which tokens are handed out, rows
    /// are closed and requests are taken in; -1: the engine had nothing to do in between.
    std::int64_t gapNs = -1;
    int gapRows = 0, gapRequests = 0; // what that time depends on: rows of the step before; requests that ended or came
};

/// Is told what happens, on the engine's thread. Its functions may submit and cancel.
class EngineObserver {
public:
    virtual ~EngineObserver() = default;
    /// The request has the row from the present iteration on.
    virtual void admitted(RequestId, int /*row*/, std::int64_t /*ns*/) {}
    /// The request gives its row back. atEnd: at the end of the present iteration; else before it begins.
    virtual void released(RequestId, int /*row*/, bool /*atEnd*/, std::int64_t /*ns*/) {}
    /// The first iteration that works for the request begins.
    virtual void scheduled(RequestId, std::int64_t /*ns*/) {}
    /// The request has one more token. record: selections and transfers of the row's step, or of its whole prompt.
    virtual void token(RequestId, std::int32_t /*token*/, int /*generated*/, std::int64_t /*ns*/,
                       const StepRecord& /*record*/) {}
    virtual void paused(RequestId, std::int64_t /*ns*/) {}
    virtual void resumed(RequestId, std::int64_t /*ns*/) {}
    /// The request has left. error: why it was refused or failed; else null.
    virtual void ended(RequestId, Ending, std::int64_t /*ns*/, const Error* /*error*/) {}
    virtual void iteration(const IterationReport&) {}
};

/// Any thread may call submit and cancel; one thread, the engine's, calls everything else. A request gets the tokens,
/// selections and logits that it would get alone, whatever else is served; on a GPU only with
/// SchedulerOptions::batchInvariant.
///
/// Admission reserves memory (the ledger) and takes it, so that an admitted request never runs out of memory. With
/// cache=partition a row has real slots on the device. With cache=global-lru the rows read their blocks where they are
/// stored, because the two tiers of the CPU backend are the same memory, and a SlotPool of M_avl blocks says which
/// blocks would have been loaded; on a GPU its engine has such a pool with real slots. There a row reserves and takes
/// exactly what its engine declares.
class Engine {
public:
    /// @throws Error(BadInput | Unsupported | OutOfMemory) where the method, the model or this machine cannot do what
    /// the options ask for
    Engine(std::shared_ptr<const Model> model, EngineOptions options, EngineObserver& observer);
    ~Engine();

    void submit(Submission submission);
    /// Ends the request at the next iteration, in whatever state it is then. Does nothing where there is no such
    /// request.
    void cancel(RequestId id);

    /// One iteration: takes in what was submitted and cancelled, plans, reads parts of prompts, makes a token for every
    /// request that decodes. @return false where nothing is left to do until something is submitted
    /// @throws Error(Cancelled) by EngineOptions::stop
    bool iterate();

    /// How many requests wait, run or are paused.
    int requests() const { return int(served_.size()); }
    const RequestTable& table() const { return table_; }
    const ServiceCosts& costs() const { return scheduler_.costs(); }
    std::string description() const { return rows_->description(); }
    /// See RowEngine::rowsApart.
    std::int64_t rowsApart() const { return rows_->rowsApart(); }
    /// Whether the method decides by a rule of its own what is on the device.
    bool ownDeviceTier() const { return plans_.ownTiers() > 0; }
    /// How many rows have memory.
    int openRows() const;
    /// The facts of this engine's run for a trace.
    RunInfo runInfo() const;

private:
    struct Served;
    struct Inbox {
        std::vector<Submission> submissions;
        std::vector<RequestId> cancelled;
    };

    std::int64_t now() const;
    void takeIn();
    void take(Submission submission, std::int64_t ns);
    std::shared_ptr<const PlantedSelections> makePlanted() const;
    SessionOptions rowOptions() const;
    int rowSlots() const;
    ServeRequest requestOf(Served& served, const Submission& submission, std::int64_t ns) const;
    void measureRows(MemoryShape& shape) const;
    std::int64_t poolSlots() const;
    std::int64_t indexBytes(ContextLength length) const;
    void pauseAndResume(std::int64_t ns);
    void admit(std::int64_t ns);
    void readSegments();
    void decode();
    void choose(Served& served);
    void account(IterationReport& report);
    void accountPool();
    std::int64_t keepWorkingSet(Served& served, const StepRecord& record);
    bool hasFailed(RequestId id) const;
    void handOut(std::int64_t ns);
    void end(RequestId id, Ending ending, std::int64_t ns, const Error* error = nullptr);

    const std::shared_ptr<const Model> model_;
    const EngineOptions options_;
    EngineObserver& observer_;
    const MethodEntry& method_;
    const ParameterValues parameters_;
    const SelectionSpec spec_;
    const std::shared_ptr<const PlantedSelections> planted_; // null: the method selects
    const LayerPlans plans_; // which layers are offloaded, to the rows' own slots or to pool_
    Scheduler scheduler_;
    RequestTable table_;
    std::unique_ptr<RowEngine> rows_;

    /// The slots that all rows share.
    struct {
        bool used = false;     // cache=global-lru, and at least one layer is offloaded
        bool modelled = false; // used, and nothing is copied: `slots` says what would be
        SlotPool slots;
        std::vector<PooledBlock> wanted; // of one layer
        Numbered<std::int64_t> missesOf; // [row], in the present iteration
        std::vector<PooledBlock> misses;
    } pool_;

    std::mutex mutex_;
    Inbox inbox_; // under mutex_
    std::unordered_map<RequestId, std::unique_ptr<Served>> served_;
    std::vector<int> freeRows_;
    double hitRate_ = 0.9;
    /// What the time between two iterations depends on.
    struct {
        std::int64_t lastEndNs = -1; // end of the last iteration, behind which requests were left; else -1
        int lastRows = 0;            // of its step
        int cameOrWent = 0;          // requests that ended or arrived since
    } gap_;

    /// The iteration that runs now.
    struct {
        IterationPlan plan;
        std::vector<std::int64_t> segmentNs;
        std::vector<MemberReport> members;
        std::vector<Served*> decoding;
        std::vector<RowToken> step;
        bool carriesOut = false; // the plan
        std::vector<std::pair<RequestId, Error>> failed;
    } running_;
};

} // namespace kvscope::serve
