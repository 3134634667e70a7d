// A request as the scheduler sees it: what it needs, how far it is, and how the scheduler has treated it so far.
#pragma once

#include "core/serve/ledger.h"

#include <cstdint>

namespace kvscope::serve {

/// Queued: it waits for admission. Prefilling: its prompt is read. Decoding: it makes tokens. Paused: it keeps what it
/// has reserved and takes part in no step.
enum class RequestState : std::uint8_t { Queued, Prefilling, Decoding, Paused };
constexpr const char* nameOf(RequestState state) {
    constexpr const char* names[] = {"queued", "prefilling", "decoding", "paused"};
    return names[int(state)];
}

/// Where the next part of a prompt begins. Layer-segmented: all layers below `layer` are read, and the tokens below
/// `token` of `layer`. In chunks: `layer` is 0, and all layers have read the tokens below `token`.
struct PromptPosition {
    int layer = 0, token = 0;
    bool operator==(const PromptPosition&) const = default;
};

/// What a request takes, in bytes; MemoryShape::needsOf computes it.
struct RequestNeeds {
    std::int64_t hostBytes = 0;    // every block of n + max_tokens, in whole host runs
    std::int64_t deviceBytes = 0;  // while the request is admitted, also while it is paused: index and newest blocks
    std::int64_t scratchBytes = 0; // while the prompt is read: one layer's keys and values, and activations
    std::int64_t stepBytes = 0;    // the selection of one step, all layers
    // one layer's selection, which must be on the device at once; with cache=partition the whole partition
    std::int64_t hardBytes = 0;
    std::int64_t chunkTokenBytes = 0; // per prompt token on the device while it is read in chunks; 0: layer by layer
};

struct ServeRequest {
    RequestId id = 0;
    std::int64_t queuedNs = 0;    // when it entered the queue, on the clock of Snapshot::nowNs
    int promptTokens = 1;         // at least 1
    int maxTokens = 1;            // at least 1
    std::int64_t ttftBoundNs = 0; // the bound on the request's time to the first token; 0: the scheduler's
    RequestNeeds needs;
    std::int64_t workingSetBytes = 0; // the estimate that holds now (SparseServe)

    RequestState state = RequestState::Queued;
    PromptPosition position;
    int generated = 0;         // tokens made
    int skips = 0;             // iterations in which a later request was admitted and this one was not
    int pauses = 0;            // how often it was paused
    int tokensSinceResume = 0; // counted from its last pause on
    // when the last segment of its prompt ended; before the first segment: when it was admitted
    std::int64_t lastSegmentNs = -1;
    bool checked = false; // whether a plan has tested that the request can fit at all
    bool cold = false;    // its next decode step finds none of its blocks on the device

    /// What the request takes at admission and gives back at its end.
    Amounts fixed() const { return {1, needs.hostBytes, needs.deviceBytes, 0, 0, 0}; }
    /// What the request takes besides while it runs, and gives back when it is paused.
    Amounts elastic() const { return {0, 0, 0, 0, needs.hardBytes, workingSetBytes}; }
    /// What the request takes besides until its prompt is read.
    Amounts scratch() const { return {0, 0, 0, needs.scratchBytes, 0, 0}; }
    /// All that the request takes at admission.
    Amounts atAdmission() const { return fixed() + elastic() + scratch(); }
    /// The most device memory that must be there at once for the request to go on while no other one runs.
    std::int64_t aloneBytes(bool partitioned) const;
};

} // namespace kvscope::serve
