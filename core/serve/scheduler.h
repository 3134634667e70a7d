// Decides what the next iteration does: SparseServe's Algorithm 1, with our choices where the paper leaves them open
// (docs/serving.md).
#pragma once

#include "base/indexed.h"
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

/// Everything from which a plan is made, as it is between two iterations.
struct Snapshot {
    std::int64_t nowNs = 0;
    NumberedSpan<const ServeRequest> waiting; // in the order of arrival
    NumberedSpan<const ServeRequest> running; // prefilling and decoding, in the order of admission
    NumberedSpan<const ServeRequest> paused;  // in the order of their pauses
    Budget budget;
    Amounts used;           // of the ledger
    int iterationsOver = 0; // the last iterations without a gap whose working sets exceeded M_avl
    double hitRate = 1;     // the share of selected blocks that warm rows are expected to find on the device
};

/// The place of a planned request in the snapshot.
struct Member {
    RequestId id = 0;
    int index = 0; // index in `running`, `paused` or `waiting`, as each list of the plan says
};

/// A part of one prompt that one iteration reads. Layer-segmented: from one layer and token to another, layer by layer.
/// In chunks: the tokens from.token to to.token, through all layers.
struct PrefillSegment {
    RequestId id = 0;
    int index = 0;         // index in `running`; of a request that this plan admits, in `waiting`
    bool admitted = false; // which of the two
    PromptPosition from, to;
    bool last = false; // the prompt's last segment: the first token follows it
    double ms = 0;     // predicted
};

struct Refusal {
    Member request;
    Limit limit = Limit::TooLarge;          // TooLarge or QueueFull
    Limit of = Limit::None;                 // with TooLarge: the budget that is too small
    std::int64_t needed = 0, available = 0; // of that budget
};

/// The plan of one iteration. It is carried out in this order: paused requests leave the batch, resumed ones join it,
/// admitted ones reserve memory, segments are read, and one token is made for every request that decodes.
struct IterationPlan {
    std::vector<Member> decode;   // indices in `running`; resumed requests decode besides
    Numbered<Member> paused;      // of `running`
    std::vector<Member> resumed;  // indices in `paused`; these requests decode too
    std::vector<Member> admitted; // of `waiting`
    std::vector<PrefillSegment> segments;
    std::vector<Refusal> refused; // of `waiting`

    Limit limitedBy = Limit::None;         // what limited the plan; None: no request waits
    std::array<int, kLimits> waitingFor{}; // how many requests stay in the queue for each reason
    std::int64_t workingSetBytes = 0;      // of the requests that run, after admissions
    std::int64_t availableBytes = 0;       // M_avl, after admissions
    std::int64_t hardBytes = 0;            // of one layer's selections together
    bool over = false;                     // the working sets exceed M_avl
    double decodeMs = 0, admissionsMs = 0; // predicted for the decode step; for the admissions
    double predictedMs = 0;                // for the whole iteration

    int decodeRows() const { return int(decode.size() + resumed.size()); }
    bool empty() const { return decode.empty() && resumed.empty() && segments.empty(); }
    void clear();
};

/// Makes plans. A scheduler has no state but its options, reads no clock and knows no device, so that the engine's
/// loop, the simulator and the tests use the same one.
class Scheduler {
public:
    Scheduler(const SchedulerOptions& options, ServiceCosts costs) : options_(options), costs_(std::move(costs)) {}

    const SchedulerOptions& options() const { return options_; }
    const ServiceCosts& costs() const { return costs_; }

    /// Fills `plan`, whose memory is used again. Every request that the queue accepted gets work in the end, as long as
    /// running requests end.
    void plan(const Snapshot& snapshot, IterationPlan& plan) const;
    /// What keeps the request from running even alone; limit None: it can run. Such a request is refused at once,
    /// because it would wait for ever.
    Refusal neverFits(const Budget& budget, const ServeRequest& request) const;

private:
    SchedulerOptions options_;
    ServiceCosts costs_;
};

} // namespace kvscope::serve
