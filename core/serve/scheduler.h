// What the next iteration does: SparseServe's Algorithm 1 with the choices that the paper leaves open
// (docs/serving.md).
#pragma once

#include "core/serve/ledger.h"
#include "core/serve/request.h"
#include "core/serve/scheduler_options.h"
#include "core/serve/service_costs.h"

#include <array>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace kvscope::serve {

/// Everything that a plan depends on, as it is between two iterations.
struct Snapshot {
    std::int64_t nowNs = 0;
    std::span<const ServeRequest> waiting; // in the order of arrival
    std::span<const ServeRequest> running; // prefilling and decoding, in the order of admission
    std::span<const ServeRequest> paused;  // in the order of their pauses
    Budget budget;
    Amounts used;           // of the ledger
    int iterationsOver = 0; // how many iterations in a row, up to the last one, had working sets above M_avl
    double hitRate = 1;     // share of selected blocks found on the device, expected of warm rows
};

/// Where a request of the plan stands in the snapshot.
struct Member {
    RequestId id = 0;
    int index = 0; // in `running`, `paused` or `waiting`, as the list says
};

/// A part of one prompt, read in one iteration. Layer-segmented: from one layer and token to another, layer by layer.
/// In chunks: the tokens from.token to to.token through all layers.
struct PrefillSegment {
    RequestId id = 0;
    int index = 0;         // in `running`, or in `waiting` of a request that this plan admits
    bool admitted = false; // which of the two
    PromptPosition from, to;
    bool last = false; // the prompt is read behind it, and the first token is there
    double ms = 0;     // predicted
};

struct Refusal {
    Member request;
    Limit limit = Limit::TooLarge;          // TooLarge or QueueFull
    Limit of = Limit::None;                 // TooLarge: of which budget
    std::int64_t needed = 0, available = 0; // of that budget
};

/// One iteration. Whoever executes it does so in this order: it takes what is paused out of the batch and brings what
/// is resumed into it, reserves for what is admitted, reads the segments, and makes one token for every decoding
/// request.
struct IterationPlan {
    std::vector<Member> decode;   // of `running`; those that were resumed come besides
    std::vector<Member> paused;   // of `running`
    std::vector<Member> resumed;  // of `paused`; they decode too
    std::vector<Member> admitted; // of `waiting`
    std::vector<PrefillSegment> segments;
    std::vector<Refusal> refused; // of `waiting`

    Limit limitedBy = Limit::None;         // what bound the plan; None: nothing waits
    std::array<int, kLimits> waitingFor{}; // requests that stay in the queue, by what they wait for
    std::int64_t workingSetBytes = 0;      // of those that run, after admissions
    std::int64_t availableBytes = 0;       // M_avl, after admissions
    std::int64_t hardBytes = 0;            // one layer's selections at once
    bool over = false;                     // the working sets exceed M_avl
    double decodeMs = 0, predictedMs = 0;  // of the decode step; of the whole iteration

    int decodeRows() const { return int(decode.size() + resumed.size()); }
    bool empty() const { return decode.empty() && resumed.empty() && segments.empty(); }
    void clear();
};

/// Makes plans. It has no state but its options, reads no clock and knows no device, so that the engine's loop, the
/// simulator and the tests use the same one.
class Scheduler {
public:
    Scheduler(const SchedulerOptions& options, ServiceCosts costs) : options_(options), costs_(std::move(costs)) {}

    const SchedulerOptions& options() const { return options_; }
    const ServiceCosts& costs() const { return costs_; }

    /// Fills `plan`, whose memory is used again. Every request whose arrival was accepted gets work in the end, as long
    /// as requests that run end.
    void plan(const Snapshot& snapshot, IterationPlan& plan) const;
    /// What keeps the request from running even when it is alone; limit None: it fits. Refused at once, because it
    /// would wait for ever.
    Refusal neverFits(const Budget& budget, const ServeRequest& request) const;

private:
    SchedulerOptions options_;
    ServiceCosts costs_;
};

} // namespace kvscope::serve
