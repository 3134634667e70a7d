// What a serving run did: its requests, the states they went through, and the iterations that served them.
#pragma once

#include "core/trace/serving_record.h"
#include "profiler/format/run_fact.h"
#include "profiler/read/trace_reader.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvscope {

/// Times are nanoseconds on the run's clock; -1: the request did not get so far.
struct RequestRow {
    std::int64_t number = 0;
    int row = -1;
    std::string kind, reason;
    RunFact<ServedStatus> status;
    std::int64_t arrivalNs = 0, firstScheduledNs = -1, firstTokenNs = -1, endNs = -1;
    std::int64_t promptTokens = 0, maxTokens = 0, outputTokens = 0;
    std::int64_t pausedNs = 0, pauses = 0;
    std::int64_t hits = 0, misses = 0, h2dBytes = 0;
    double ttftBoundMs = 0, tbtBoundMs = 0;

    bool ended() const { return endNs >= 0; }
    bool finished() const { return status == ServedStatus::Length || status == ServedStatus::Stop; }
};

struct RequestSpanRow {
    std::int64_t request = 0;
    ServedState state = ServedState::Queued;
    std::int64_t startNs = 0, endNs = 0;
};

struct IterationRow {
    int iteration = 0;
    std::int64_t startNs = 0, durationNs = 0, decodeNs = 0, prefillNs = 0, predictedNs = 0;
    std::int64_t decodeRows = 0, prefillRequests = 0, prefillTokens = 0, waiting = 0, paused = 0;
    std::int64_t workingSetBytes = 0, availableBytes = 0, deviceBytes = 0, scratchBytes = 0, hostBytes = 0;
    std::int64_t surprises = 0;
    std::string limitedBy;
    std::int64_t endNs() const { return startNs + durationNs; }
};

/// What an iteration did for one request.
struct MemberRow {
    int iteration = 0, row = 0;
    std::int64_t request = 0;
    bool prefill = false;
    std::int64_t tokens = 0, layerFrom = 0, layerTo = 0, hits = 0, misses = 0, h2dBytes = 0, workingSetBytes = 0;
    std::int64_t tokenNs = -1; // -1: it made no token
};

/// A token that is not the first of its request, and the time since the one before it.
struct TokenGap {
    std::int64_t request = 0, ns = 0, gapNs = 0;
};

struct ServingRows {
    std::vector<RequestRow> requests;     // by number
    std::vector<RequestSpanRow> spans;    // spans that have ended, in the order of their ends
    std::vector<IterationRow> iterations; // in their order
    std::vector<TokenGap> late;           // gaps beyond the bounds of their requests, in the order of their times
};

/// Calls take(request, ns) for every token whose time is known, in the order of iterations or steps. A server of
/// KVScope's says it of the members of its iterations; another engine's tokens were there when their step ended.
void forEachServedToken(const TraceReader& reader, int runId,
                        const std::function<void(std::int64_t request, std::int64_t ns)>& take);

/// Whether the run has requests or iterations of a server.
bool isServing(const TraceReader& reader, int runId);
/// gaps: takes all gaps in the order of their times, unless it is null. @throws Error as TraceReader does
ServingRows readServing(const TraceReader& reader, int runId, std::vector<TokenGap>* gaps = nullptr);
/// Reads what one iteration did for requests, in the order of their rows. @throws Error as TraceReader does
std::vector<MemberRow> readMembers(const TraceReader& reader, int runId, int iteration);

/// Sums over all requests that the trace has; those of a warm-up count too.
struct ServingSummary {
    std::int64_t requests = 0, finished = 0, refused = 0, open = 0; // open: without an end
    std::int64_t iterations = 0, tokens = 0;
    std::vector<double> ttftMs, queueMs, tbtMs; // samples, ascending
};
/// The summary; nothing where isServing() is false.
std::optional<ServingSummary> summarizeServing(const TraceReader& reader, int runId);

} // namespace kvscope
