// An engine that serves: requests join and leave while it runs. Its iterations are the scheduler's plans, carried out
// with a backend's rows.
#pragma once

#include "base/error.h"
#include "core/serve/request_table.h"
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
#include <string>
#include <unordered_map>
#include <vector>

namespace kvscope::serve {

struct EngineOptions {
    /// Method, its settings, threads and link. What belongs to a request (sampling, new tokens, its end) comes with the
    /// request; slots and offloading come from the scheduler's options.
    SessionOptions session;
    SchedulerOptions scheduler;
    Budget budget;                     // rows and control are those of the scheduler
    ServiceCosts costs;                // what plans are made from. Its shape is replaced by the engine's own
    std::function<std::int64_t()> now; // nanoseconds of a clock that never goes back; empty: the steady clock
};

/// A request as a client gives it.
struct Submission {
    RequestId id = 0; // of no other request that the engine has
    std::vector<std::int32_t> prompt;
    int maxTokens = 1;
    bool stopAtEos = true;
    Sampling sampling;
    std::int64_t queuedNs = -1; // when it arrived, on the engine's clock; below 0: when the engine takes it in
    double ttftBoundMs = 0;     // 0: the scheduler's
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
    bool prefill = false; // a part of its prompt was read; else it decoded
    int tokens = 1;       // of the prompt that were read, in the last layer of the part
    int layerFrom = 0,
        layerTo = 0; // of a prompt: the layer in which the part began, and the one behind the last whole one
    std::int64_t hits = 0, misses = 0, missedBytes = 0; // of a decode step's selection
    std::int64_t workingSetBytes = 0;                   // its estimate behind the iteration
    bool madeToken = false;
};

/// What an iteration did, when it has ended.
struct IterationReport {
    const IterationPlan& plan;
    std::int64_t beginNs = 0, endNs = 0;
    std::int64_t decodeNs = 0;               // of the decode step, sampling included
    std::span<const std::int64_t> segmentNs; // of each segment of the plan; 0: its request had ended
    std::int64_t contextTokens = 0;          // of the decoded rows together
    std::int64_t hits = 0, misses = 0;       // of the decoded rows' selections, in units that the method selects
    std::int64_t selectedBytes = 0, missedBytes = 0; // likewise; missed ones came over the link
    std::int64_t surprises = 0; // with global-lru: selected blocks outside of the working sets, of warm rows
    Amounts reserved = {};      // while it ran
    std::span<const MemberReport> members = {}; // those of the plan that had not failed
};

/// Told what happens, on the engine's thread. It may submit and cancel.
class EngineObserver {
public:
    virtual ~EngineObserver() = default;
    /// The first iteration that works for the request begins.
    virtual void scheduled(RequestId, std::int64_t /*ns*/) {}
    /// A token more. record: the row's selections and transfers of its step, or of its whole prompt.
    virtual void token(RequestId, std::int32_t /*token*/, int /*generated*/, std::int64_t /*ns*/,
                       const StepRecord& /*record*/) {}
    virtual void paused(RequestId, std::int64_t /*ns*/) {}
    virtual void resumed(RequestId, std::int64_t /*ns*/) {}
    /// The request is gone. error: why, where it was refused or failed; else null.
    virtual void ended(RequestId, Ending, std::int64_t /*ns*/, const Error* /*error*/) {}
    virtual void iteration(const IterationReport&) {}
};

/// submit and cancel may be called from any thread, everything else from one, the engine's. A request's tokens,
/// selections and logits are those that it has alone, whatever else is served; on a GPU only with
/// SchedulerOptions::batchInvariant.
///
/// Memory is reserved at admission (the ledger) and taken then: a request that was admitted never runs out of it. With
/// cache=partition a row's part of the device is real slots. With cache=global-lru rows read their blocks where they
/// lie, and a SlotPool of M_avl blocks says what would have been loaded: on the CPU backend both tiers are the same
/// memory. On a GPU a row takes exactly what its engine declares, and that is what is reserved.
class Engine {
public:
    /// @throws Error(BadInput | Unsupported | OutOfMemory) for what the method, the model or this machine cannot do
    Engine(std::shared_ptr<const Model> model, EngineOptions options, EngineObserver& observer);
    ~Engine();

    void submit(Submission submission);
    /// The request ends at the next iteration, whatever it does then. Nothing happens where there is no such request.
    void cancel(RequestId id);

    /// One iteration: takes in what was submitted and cancelled, plans, reads parts of prompts, makes a token for every
    /// request that decodes. @return false where nothing is left to do until something is submitted
    bool iterate();

    /// Requests that wait, run or are paused.
    int requests() const { return int(served_.size()); }
    const RequestTable& table() const { return table_; }
    const ServiceCosts& costs() const { return scheduler_.costs(); }
    std::string description() const { return rows_->description(); }
    /// Whether the method keeps by its own rule what is on the device.
    bool ownDeviceTier() const { return plans_.ownTiers() > 0; }
    /// Rows that have memory.
    int openRows() const;
    /// What a trace says of this engine.
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
    ServeRequest requestOf(Served& served, const Submission& submission, std::int64_t ns) const;
    std::int64_t indexBytes(ContextLength length) const;
    Error refusalOf(const Refusal& refusal) const;
    void refuseOnGpu() const;
    void checkBudgets() const;
    void pauseAndResume(std::int64_t ns);
    void admit();
    void readSegments();
    void decode();
    void choose(Served& served);
    void account(IterationReport& report);
    void accountPool();
    std::int64_t keepWorkingSet(Served& served, const StepRecord& record);
    void handOut(std::int64_t ns);
    void end(RequestId id, Ending ending, std::int64_t ns, const Error* error = nullptr);

    const std::shared_ptr<const Model> model_;
    const EngineOptions options_;
    EngineObserver& observer_;
    const MethodEntry& method_;
    const ParameterValues parameters_;
    const SelectionSpec spec_;
    const LayerPlans plans_; // what is offloaded, whether to real slots or to the pool
    const bool pooled_;      // cache=global-lru, and something is offloaded
    Scheduler scheduler_;
    RequestTable table_;
    std::unique_ptr<RowEngine> rows_;
    SlotPool pool_;

    std::mutex mutex_;
    Inbox inbox_; // under mutex_
    std::unordered_map<RequestId, std::unique_ptr<Served>> served_;
    std::vector<int> freeRows_;
    double hitRate_ = 0.9;

    // Of the present iteration.
    IterationPlan plan_;
    std::vector<std::int64_t> segmentNs_;
    std::vector<MemberReport> members_;
    std::vector<Served*> decoding_;
    std::vector<RowToken> step_;
    std::vector<PooledBlock> wanted_;    // of one layer
    std::vector<std::int64_t> missesOf_; // [row], of the pool
    std::vector<std::pair<RequestId, Error>> failed_;
};

/// Why requests of a method cannot be served on a backend, as a sentence without a full stop; empty: they can.
std::string whyNotServed(const MethodEntry& method, Backend backend = Backend::Cpu);

} // namespace kvscope::serve
