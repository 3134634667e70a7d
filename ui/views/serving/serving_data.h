// What the views of a serving run draw from: everything that was read of it, and how to find one thing in it.
#pragma once

#include "profiler/read/served_classes.h"
#include "profiler/read/serving_latency.h"
#include "profiler/read/serving_rates.h"
#include "profiler/read/thrash.h"

#include <cstddef>
#include <cstdint>
#include <optional>
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
    ServingRates rates;
    std::vector<ServedClass> classes; // all requests as one, and behind that each class
    ServingBudgets budgets;

    /// The moment at which the last thing happened that the trace knows of.
    double end() const;
    /// The place of a request among the rows; nothing: there is none of this number.
    std::optional<std::size_t> indexOf(std::int64_t request) const;
    /// The row that served the request; -1: there is no such request.
    int servedRow(std::int64_t request) const;
    const IterationRow* iterationAt(double ns) const; // null: none ran then
    const IterationRow* iterationOf(int number) const;
    /// The bound that all requests have; 0: they have none, or not the same one.
    double commonBound(double RequestRow::*bound) const;
};

/// What a view needs of a run beside its requests, iterations and gaps.
struct ServingWish {
    bool latency = false; // over a sliding window
    double windowNs = 0;  // its length; 0: a twentieth of the run, but at least a second, and never more than the run
    bool classes = false;
    bool rates = false;    // in intervals
    double intervalNs = 0; // their length, about, because they divide the run evenly; 0: a sixtieth of the run
};

/// @throws Error as TraceReader does
ServingData readServingData(TraceReader& reader, int runId, const ServingWish& wish);

} // namespace kvscope::ui
