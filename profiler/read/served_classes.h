// How the requests of a serving run kept their bounds, class by class.
#pragma once

#include "profiler/read/serving.h"

#include <cstdint>
#include <string>
#include <vector>

namespace kvscope {

/// A latency and the token that it belongs to.
struct LatencySample {
    double ns = 0;
    std::int64_t request = 0, atNs = 0; // when the token was there
};

/// The requests of one class. A request is good if it finished, its first token came in time, and so did its gaps
/// between tokens, by their 99th percentile; a bound of 0 is always kept.
struct ServedClass {
    std::string kind; // empty: requests without a class
    std::int64_t requests = 0, refused = 0, pauses = 0;
    std::int64_t open = 0; // those without an end in the trace, which are not good
    std::int64_t keptFirst = 0, keptGaps = 0, good = 0;
    double queueNs = 0; // from the arrivals to the first iterations, a sum over the requests with a first token
    // Latencies, ascending, of the requests that have them.
    std::vector<LatencySample> ttft, gaps;
    std::vector<LatencySample> worst; // the 99th percentile of each request's gaps, with the token of its largest gap

    /// Share of good ones among all, refused ones too. There must be a request.
    double attainment() const { return double(good) / double(requests); }
};

/// The latencies alone, in their order.
std::vector<double> nanosecondsOf(const std::vector<LatencySample>& samples);

/// The classes in the order of their names. gaps: in any order.
std::vector<ServedClass> servedClasses(const std::vector<RequestRow>& requests, const std::vector<TokenGap>& gaps);
/// All of them as one, whose name is empty.
ServedClass allClasses(const std::vector<ServedClass>& classes);

} // namespace kvscope
