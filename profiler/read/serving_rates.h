// How fast requests came to a server and left it, tokens were made and bytes moved, over time.
#pragma once

#include "profiler/read/counters.h"
#include "profiler/read/serving.h"

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace kvscope {

/// What happened in one interval.
struct RateInterval {
    std::int64_t arrived = 0;      // requests, at their intended arrivals
    std::int64_t finished = 0;     // with all their tokens
    std::int64_t lost = 0;         // ended without: refused, failed, cancelled
    std::int64_t tokens = 0;       // made
    std::int64_t promptTokens = 0; // of the prompts that were read to their ends, which is when their first tokens came
    double loadedBytes = 0;        // missing blocks that came to the device for the iterations that ended in it
    std::optional<PcieTraffic> pcie; // what the GPU's counters saw; nothing where they took no sample
};

struct ServingRates {
    double lengthNs = 0; // of each interval
    std::vector<RateInterval> intervals;

    /// Something that was counted in one interval, as a rate.
    double perSecond(double count) const { return count / (lengthNs / 1e9); }
    /// The place of the interval that a time belongs to; the last one has its end too. There must be an interval.
    std::size_t placeOf(double ns) const;
};

/// Bytes of missing blocks that came to the device in an iteration, for all its requests together.
struct IterationBytes {
    int iteration = 0;
    double bytes = 0;
};
/// Reads them in the order of iterations. @throws Error as TraceReader does
std::vector<IterationBytes> readIterationBytes(const TraceReader& reader, int runId);

/// Counts in `count` intervals that divide [0, endNs] evenly; a time outside counts in the nearest one. Iterations and
/// `loads` are in the order of their numbers. pcie stays empty.
ServingRates ratesOverTime(const ServingRows& rows, const std::vector<TokenGap>& gaps,
                           const std::vector<IterationBytes>& loads, double endNs, int count);

/// How many requests were in the system, from their arrivals to their ends: the times at which the number changed, in
/// order, with the number from then on.
std::vector<std::pair<double, int>> requestsInSystem(std::span<const RequestRow> requests);

} // namespace kvscope
