// What an engine that serves tells of its requests and iterations: rows of the tables request, request_span, iteration,
// member and row_event of a trace (docs/trace-format.md). Times are nanoseconds on the run's clock.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kvscope {

/// What a request waits for or does.
enum class ServedState : std::uint8_t { Queued, Prefill, Decode, Paused };
inline constexpr int kServedStates = 4;
/// A request's state while it has not ended, and then how it ended.
enum class ServedStatus : std::uint8_t { Queued, Prefill, Decode, Paused, Stop, Length, Cancelled, Refused, Failed };
constexpr const char* nameOf(ServedStatus status) {
    constexpr const char* names[] = {"queued", "prefill",   "decode",  "paused", "stop",
                                     "length", "cancelled", "refused", "failed"};
    return names[int(status)];
}
constexpr ServedStatus statusOf(ServedState state) { return ServedStatus(int(state)); }
constexpr const char* nameOf(ServedState state) { return nameOf(statusOf(state)); }

/// One request as it is known now; a later record of the same number replaces it.
struct ServedRequest {
    std::int64_t number = 0; // from 0 on, in the order of arrival
    std::int32_t row = -1;   // of the engine; -1: none yet
    std::string kind;        // its class; may be empty
    std::int64_t arrivalNs = 0;
    std::int64_t firstScheduledNs = -1, firstTokenNs = -1, endNs = -1; // -1: not yet
    std::int32_t promptTokens = 0, maxTokens = 0, outputTokens = 0;
    ServedStatus status = ServedStatus::Queued;
    std::string reason; // why it was refused or failed, or on whose behalf it was cancelled; else empty
    std::int64_t pausedNs = 0;
    std::int32_t pauses = 0;
    std::int64_t hits = 0, misses = 0, missedBytes = 0;
    std::int64_t hostBytes = 0, deviceBytes = 0; // reserved while it is admitted
    double ttftBoundMs = 0, tbtBoundMs = 0;
};

/// A time in which a request was in one state. The spans of a request have no gaps between them from its arrival to its
/// end.
struct RequestSpan {
    std::int64_t request = 0;
    ServedState state = ServedState::Queued;
    std::int64_t startNs = 0, endNs = 0;
    // the iterations of that time that worked for it; -1: none did
    std::int32_t firstIteration = -1, lastIteration = -1;
};

/// What one iteration did for one request.
struct IterationMember {
    std::int64_t request = 0;
    std::int32_t row = 0;
    bool prefill = false;    // else a decode step
    std::int32_t tokens = 0; // of the prompt that were read, or 1
    // the layers [from, to) of the prompt, and layer `to` where it was begun
    std::int32_t layerFrom = 0, layerTo = 0;
    std::int64_t hits = 0, misses = 0, missedBytes = 0; // of its selections
    std::int64_t workingSetBytes = 0;                   // its estimated working set after the iteration
    std::int64_t tokenNs = -1;                          // when its token was there; -1: it made none
};

struct ServingIteration {
    std::int32_t iteration = 0; // from 0 on
    std::int64_t startNs = 0, durationNs = 0;
    std::int64_t decodeNs = 0, prefillNs = 0; // of the duration
    std::int64_t predictedNs = 0;
    // requests; waiting and paused are counted after the plan
    std::int32_t waiting = 0, paused = 0, admitted = 0, refused = 0;
    std::int64_t workingSetBytes = 0, availableBytes = 0;          // the sum of working sets, and M_avl
    std::int64_t hardBytes = 0;                                    // one layer's selections at once
    std::int64_t deviceBytes = 0, scratchBytes = 0, hostBytes = 0; // reserved
    std::int64_t surprises = 0; // with one pool for all rows: selected blocks outside of the working sets
    std::string limitedBy;      // what bound the plan; "none": nothing waits
    std::vector<IterationMember> members;
};

/// What happens to a request and its row. A pause gives back the device blocks of the request, not its row.
enum class RowEventKind : std::uint8_t { Admitted, Paused, Resumed, Released };
constexpr const char* nameOf(RowEventKind kind) {
    constexpr const char* names[] = {"admitted", "paused", "resumed", "released"};
    return names[int(kind)];
}

struct RowEvent {
    std::int32_t iteration = 0; // the first one that it holds for; behind the last iteration where none followed
    std::int32_t row = 0;
    std::int64_t request = 0;
    RowEventKind kind = RowEventKind::Admitted;
    std::int64_t ns = 0;
};

/// What the engine has to tell since the last record.
struct ServingRecord {
    std::vector<ServedRequest> requests;
    std::vector<RequestSpan> spans; // that have ended
    std::vector<ServingIteration> iterations;
    std::vector<RowEvent> events; // in their order
};

} // namespace kvscope
