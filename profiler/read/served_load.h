// What a serving run made of the load it was offered: waiting, times between tokens, tokens per second and bytes
// loaded, at the rate at which its requests arrived.
#pragma once

#include "profiler/read/serving.h"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace kvscope {

/// A token that a request got.
struct ServedToken {
    std::int64_t request = 0, ns = 0;
};
/// What the decode steps of one iteration moved to the device.
struct IterationLoads {
    std::int64_t startNs = 0, rows = 0, blocks = 0, bytes = 0;
    std::int64_t decodeNs = 0; // how long they took
};
/// The decode steps of all iterations with one number of rows: sums.
struct RowsLoad {
    std::int64_t rows = 0, iterations = 0;
    double decodeNs = 0, blocks = 0, bytes = 0;

    double tokensPerSecond() const { return 1e9 * double(rows * iterations) / decodeNs; }
    double blocksPerStep() const { return blocks / double(iterations); }
};

/// Times are milliseconds; NaN: there is no sample.
struct ServedLoad {
    double seconds = 0;          // of the window
    double rate = 0;             // requests that arrived in it, a second
    std::int64_t requests = 0;   // that arrived in it
    std::int64_t unanswered = 0; // of these, without a first token
    double ttftMs = 0, ttftP99Ms = 0;
    double tbtMs = 0, tbtP99Ms = 0;                           // of the tokens made in the window
    double tokensPerSecond = 0;                               // made in the window
    double decodeRows = 0, blocksLoaded = 0, bytesLoaded = 0; // means over the iterations of the window that decode
    /// Time in which iterations read prompts, for each token of the prompts that were read to their ends; of the whole
    /// run. Nanoseconds.
    double prefillNsPerToken = 0;
    std::vector<RowsLoad> byRows; // of the whole run, see loadsByRows
};

/// How the run's server was set, as the trace says it; a text is empty where it does not.
struct ServerKnobs {
    bool offload = true, workingSetControl = true;
    std::string cache, transfers, d2h, prefill;
    int chunkTokens = 0; // 0: not known
};
ServerKnobs serverKnobs(const RunRow& run);
/// Whether the run says how its server was set.
bool saysServer(const RunRow& run);

/// Mean and 99th percentile of samples, the latter linear between order statistics; NaN of none. Sorts the samples.
std::pair<double, double> meanAndP99(std::vector<double>& samples);

/// The window begins after the first fifth of the time from the first to the last arrival, in which batch and caches
/// are filled, and ends with the last arrival. Requests belong to it by their arrival, tokens and iterations by their
/// time. tokens: those of one request in the order of their times. Nothing where no two requests arrive at different
/// times.
std::optional<ServedLoad> measureLoad(std::span<const RequestRow> requests, std::span<const ServedToken> tokens,
                                      std::span<const IterationLoads> iterations);

/// How decode steps change with the number of rows that share them, ascending. Numbers of rows that fewer than three
/// iterations had are left out, and so are iterations whose decode step has no time.
std::vector<RowsLoad> loadsByRows(std::span<const IterationLoads> iterations);

/// The decode steps of a server that loads blocks, beside those of a server that has everything on the device, at equal
/// numbers of rows: what the first one's steps took, and what as many steps with as many rows took on the second one.
/// Both times are 0 where the servers have no number of rows in common.
struct StepsBeside {
    double loadingNs = 0, residentNs = 0;
    double steps = 0, rows = 0, bytes = 0; // of the server that loads; sums over the steps that are compared
};
StepsBeside stepsBeside(std::span<const RowsLoad> loading, std::span<const RowsLoad> resident);

/// How the server was set, in words for a legend: "partition, by layers", "resident, by chunks of 512"; empty where the
/// run does not say. Settings at their usual values are left out.
std::string serverWords(const RunRow& run);

/// Nothing where isServing() is false, or measureLoad() has nothing. @throws Error as TraceReader does
std::optional<ServedLoad> readServedLoad(const TraceReader& reader, int runId);

} // namespace kvscope
