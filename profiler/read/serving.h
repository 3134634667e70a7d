// What a serving run did: its requests, the states they went through, and the iterations that served them.
#pragma once

#include "profiler/read/trace_reader.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvscope {

/// What a request was doing for a time.
enum class ServedState : std::uint8_t { Queued, Prefill, Decode, Paused };
inline constexpr int kServedStates = 4;
constexpr std::string_view nameOf(ServedState state) {
    constexpr std::string_view names[] = {"queued", "prefill", "decode", "paused"};
    return names[int(state)];
}

/// Times are nanoseconds on the run's clock; -1: it did not come to that.
struct RequestRow {
    std::int64_t number = 0;
    int row = -1;
    std::string kind, status, reason;
    std::int64_t arrivalNs = 0, firstScheduledNs = -1, firstTokenNs = -1, endNs = -1;
    std::int64_t promptTokens = 0, maxTokens = 0, outputTokens = 0;
    std::int64_t pausedNs = 0, pauses = 0;
    std::int64_t hits = 0, misses = 0, h2dBytes = 0;
    double ttftBoundMs = 0, tbtBoundMs = 0;

    bool ended() const { return endNs >= 0; }
    bool finished() const { return status == "length" || status == "stop"; }
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

/// What an iteration did for a request.
struct MemberRow {
    int iteration = 0, row = 0;
    std::int64_t request = 0;
    bool prefill = false;
    std::int64_t tokens = 0, layerFrom = 0, layerTo = 0, hits = 0, misses = 0, h2dBytes = 0, workingSetBytes = 0;
    std::int64_t tokenNs = -1; // -1: it made no token
};

/// A token that came later behind the one before it than its request's bound allows.
struct LateToken {
    std::int64_t request = 0, ns = 0, gapNs = 0;
};

struct ServingRows {
    std::vector<RequestRow> requests;     // by number
    std::vector<RequestSpanRow> spans;    // that have ended, in the order of their ends
    std::vector<IterationRow> iterations; // in their order
    std::vector<LateToken> late;          // in the order of their times
};

/// Whether the run has requests or iterations of a server.
bool isServing(const TraceReader& reader, int runId);
/// @throws Error as TraceReader does
ServingRows readServing(const TraceReader& reader, int runId);
/// Those of one iteration, by row. @throws Error as TraceReader does
std::vector<MemberRow> readMembers(const TraceReader& reader, int runId, int iteration);

/// Of all requests that the trace has, those of a warm-up among them.
struct ServingSummary {
    std::int64_t requests = 0, finished = 0, refused = 0, open = 0; // open: without an end
    std::int64_t iterations = 0, tokens = 0;
    std::vector<double> ttftMs, queueMs, tbtMs; // samples, ascending
};
/// Nothing where isServing() is false.
std::optional<ServingSummary> summarizeServing(const TraceReader& reader, int runId);

} // namespace kvscope
