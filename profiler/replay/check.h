// Checks predictions of a replay: runs the recorded model, prompt, method and settings with another cache and link, and
// compares the result with the prediction.
#pragma once

#include "core/session/decode_session.h"
#include "profiler/replay/replay.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace kvscope {

/// A cache that the engine can have, and a link.
struct EngineCache {
    std::string policy;
    int cacheBlocks = 0;
    Link link;
};

/// `count` configurations that differ from the recorded one: more slots, both policies, and another link where the link
/// is modelled.
std::vector<EngineCache> otherCaches(const SelectionTrace& trace, int count);

/// The results of the run, in the units of ReplayConfig.
struct RunOutcome {
    std::int64_t hits = 0, misses = 0, h2dBytes = 0, exposedNs = 0;
    double computeNs = 0, tokensPerSecond = 0;
    bool sameTokens = true; // whether it has generated the recorded tokens
};

struct CheckedConfig {
    ReplayConfig predicted;
    RunOutcome run;
    bool exact() const {
        return predicted.hits == run.hits && predicted.misses == run.misses && predicted.h2dBytes == run.h2dBytes;
    }
};

/// Checks by their fingerprint that a model's weight files are those of a run. Traces from before there were
/// fingerprints pass. @throws Error(BadInput) naming both fingerprints
void requireSameWeights(const RunRow& run, const Model& model);

/// Relative error of a prediction in percent; 0 where both are 0, infinite where only the truth is.
double errorPercent(double predicted, double truth);

/// @throws Error(BadInput) naming what does not fit: shared or merged pools, a trace without its prompt or with dropped
/// steps, another model's shape, a configuration the engine does not have; Error(Cancelled); what a session throws
std::vector<CheckedConfig> checkReplay(const TraceReader& reader, const SelectionTrace& trace,
                                       std::shared_ptr<const Model> model, const std::vector<EngineCache>& configs,
                                       int threads = 0, const Progress& progress = {},
                                       const std::stop_token& stop = {});

} // namespace kvscope
