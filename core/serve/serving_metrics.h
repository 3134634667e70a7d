// Numbers of a serving run: percentiles, attainment, goodput, stability. Every latency starts at the intended arrival.
#pragma once

#include "base/indexed.h"

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace kvscope::serve {

/// The value below which a share p of the samples lies, 0 <= p <= 1, linear between order statistics (numpy's default).
/// The samples ascend, and there is at least one.
double percentile(std::span<const double> samples, double p);

/// A percentile with the 95 % interval of its order statistics.
struct Percentile {
    double p = 0, value = 0, low = 0, high = 0;
};
/// A percentile beyond which at least 10 samples lie. Nothing where there are fewer; the largest sample says more then.
std::optional<Percentile> shownPercentile(std::span<const double> ascending, double p);
/// The ranks, from 1 on, between which a share p of a population lies with 95 %, by the normal
/// approximation of the binomial distribution. 0 and n + 1 stand for "below the first" and "above the last".
std::pair<int, int> percentileRanks(int samples, double p);

enum class Status : std::uint8_t { Finished, Refused, Unfinished };

/// What became of a request. Times are nanoseconds on one clock; -1: the request did not get so far.
struct RequestOutcome {
    std::int64_t id = 0, arrivalNs = 0, firstScheduledNs = -1, firstTokenNs = -1, endNs = -1;
    std::int64_t pausedNs = 0;
    int promptTokens = 0, tokens = 0, pauses = 0, kind = 0;
    Status status = Status::Unfinished;
    std::vector<float> gapsMs; // between its tokens

    double ttftMs() const { return double(firstTokenNs - arrivalNs) / 1e6; }
    double queueMs() const { return double(firstScheduledNs - arrivalNs) / 1e6; }
    double e2eMs() const { return double(endNs - arrivalNs) / 1e6; }
    /// Mean gap between tokens after the first; nothing where the answer has one token.
    std::optional<double> tpotMs() const;
};

/// Bounds that a request's service should keep.
struct Slo {
    double ttftMs = 10000, tbtMs = 150;
    bool tpot = false; // tbtMs bounds the mean gap of a request; false: the 99th percentile of its gaps
};
/// Whether the request finished and kept both bounds. A request with one token has no gaps and keeps any bound on gaps.
bool isGood(const RequestOutcome& outcome, const Slo& slo);

/// How many requests were in the system over time: the times of changes, and the number from each time on.
struct Backlog {
    Numbered<std::int64_t> ns; // ascending
    Numbered<int> requests;    // from this time on
    /// The mean number of requests over [from, to).
    double mean(std::int64_t fromNs, std::int64_t toNs) const;
};

/// The trend of a backlog: a straight line by least squares through its means in 20 equal parts of a time.
struct Trend {
    double slope = 0, low = 0, high = 0; // requests per second, with a 95 % interval
    bool grows() const { return low > 0; }
};
/// The trend over [from, to). The interval supposes independent residuals. Those of a backlog depend on each other, so
/// the interval is too narrow.
Trend trendOf(const Backlog& backlog, std::int64_t fromNs, std::int64_t toNs);

/// How many samples from the beginning belong to the warm-up: the cut that leaves the least standard error of the mean,
/// in batches of 5 and at most half of all (MSER-5; White, 1997).
int warmUpByMser5(std::span<const double> samples);

} // namespace kvscope::serve
