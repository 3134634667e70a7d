// The numbers a person asks first about a run: for reports, `info` and comparisons.
#pragma once

#include "profiler/read/trace_reader.h"

#include <cstdint>
#include <string>
#include <vector>

namespace kvscope {

struct ComponentShare {
    std::string phase, component;
    std::int64_t totalNs = 0; // all layers
    double share = 0;         // of the phase's wall time, 0..1
};

struct RunSummary {
    int runId = 0;
    std::int64_t promptTokens = 0;
    std::int64_t decodeSteps = 0;       // recorded
    std::int64_t decodedTokens = 0;     // fed by them, all sequences
    std::int64_t droppedSteps = 0;      // not in the trace, so in none of these numbers
    double prefillMs = 0, decodeMs = 0; // measured wall time
    double tokensPerSecond = 0;         // decodedTokens / decodeMs; 0 without a decode step

    // Over (layer, sequence, KV head, step) of decode steps; NaN when localityCount is 0.
    double localityMean = 0, localityMin = 0;
    std::int64_t localityCount = 0;     // selections averaged
    std::int64_t localityUndefined = 0; // left out: the first selection of a sequence has nothing to compare with
    std::int64_t localityOpening = 0;   // left out: a new KV block moved the window, whatever the method did

    std::int64_t selected = 0, hits = 0, misses = 0;
    double hitRate = 0; // hits / (hits + misses); NaN without selections
    std::int64_t h2dBytes = 0, d2hBytes = 0;
    std::string timing;    // of the next two: "measured" or "modelled"
    double transferMs = 0; // link busy
    double exposedMs = 0;  // of that, on the critical path

    std::vector<ComponentShare> components; // by phase, prefill first, in pipeline order, `other` last
};

/// Reads all selection rows of the run once. @throws Error(BadInput) if there is no such run, Error(Cancelled)
RunSummary summarize(const TraceReader& reader, int runId);

} // namespace kvscope
