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

/// The next part of a prompt to be read. Layer-segmented: every layer below `layer` is done, and of `layer` the tokens
/// below `token`. In chunks: `layer` is 0, and the tokens below `token` are done in all layers.
struct PromptPosition {
    int layer = 0, token = 0;
    bool operator==(const PromptPosition&) const = default;
};

/// What a request takes, in bytes; MemoryShape::needsOf computes it.
struct RequestNeeds {
    std::int64_t hostBytes = 0;       // every block of n + max_tokens, in whole host runs
    std::int64_t deviceBytes = 0;     // while it is admitted, also while it is paused: index, newest blocks
    std::int64_t scratchBytes = 0;    // while its prompt is read: one layer's keys and values, activations
    std::int64_t stepBytes = 0;       // the selection of one step, all layers
    std::int64_t hardBytes = 0;       // one layer's selection, which must be there at once; of a partition all of it
    std::int64_t chunkTokenBytes = 0; // per prompt token on the device while it is read in chunks; 0: layer by layer
};

struct ServeRequest {
    RequestId id = 0;
    std::int64_t queuedNs = 0;    // when it entered the queue, on the clock of Snapshot::nowNs
    int promptTokens = 1;         // at least 1
    int maxTokens = 1;            // at least 1
    std::int64_t ttftBoundNs = 0; // its bound on the time to the first token; 0: the scheduler's
    RequestNeeds needs;
    std::int64_t workingSetBytes = 0; // the present estimate (SparseServe)

    RequestState state = RequestState::Queued;
    PromptPosition position;
    int generated = 0;               // tokens made
    int skips = 0;                   // iterations in which a later request was admitted and this one was not
    int pauses = 0;                  // how often it was paused
    int tokensSinceResume = 0;       // counts once it has been paused
    std::int64_t lastSegmentNs = -1; // when its last segment ended; before the first: when it was admitted
    bool checked = false;            // whether a plan has looked at whether it can ever fit
    bool cold = false;               // its next decode step finds none of its blocks on the device

    /// What is taken at admission and given back at the end.
    Amounts fixed() const { return {1, needs.hostBytes, needs.deviceBytes, 0, 0, 0}; }
    /// What is taken besides while it runs, and given back by a pause.
    Amounts elastic() const { return {0, 0, 0, 0, needs.hardBytes, workingSetBytes}; }
    /// What is taken besides until its prompt is read.
    Amounts scratch() const { return {0, 0, 0, needs.scratchBytes, 0, 0}; }
    /// All that it takes at admission.
    Amounts atAdmission() const { return fixed() + elastic() + scratch(); }
    /// The most device memory that must be there at once for it to go on when nothing else runs.
    std::int64_t aloneBytes(bool partitioned) const;
};

} // namespace kvscope::serve
