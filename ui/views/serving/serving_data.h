// What the view Serving draws from: everything that was read of a run, and how to find one thing in it.
#pragma once

#include "profiler/read/serving_latency.h"
#include "profiler/read/thrash.h"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvscope::ui {

/// How much memory the run's server may have, in bytes; 0: the run does not say.
struct ServingBudgets {
    double device = 0, host = 0, scratch = 0;
};

struct ServingData {
    bool serving = false; // false: the run served no requests
    ServingRows rows;
    std::vector<TokenGap> gaps; // in the order of their times
    std::vector<LatencyPoint> latency;
    double windowNs = 0; // of the latencies
    ServingBudgets budgets;

    /// The moment at which the last thing happened that the trace knows of.
    double end() const;
    /// The place of a request among the rows; below 0: there is none of this number.
    std::ptrdiff_t indexOf(std::int64_t request) const;
    const IterationRow* iterationAt(double ns) const; // null: none ran then
    const IterationRow* iterationOf(int number) const;
    /// The bound that all requests have; 0: they have none, or not the same one.
    double commonBound(double RequestRow::*bound) const;
};

/// windowNs: over which latencies are taken; 0: a twentieth of the run, but at least a second, and never more than the
/// run. @throws Error as TraceReader does
ServingData readServingData(TraceReader& reader, int runId, double windowNs);

} // namespace kvscope::ui
