// The engine's own timeline, step by step: what v_span and v_transfer compute from the stage times, as a stream.
#pragma once

#include "core/trace/stage.h"
#include "core/trace/trace_sink.h"
#include "profiler/read/link_clock.h"
#include "profiler/read/prompt_steps.h"
#include "profiler/sqlite/sqlite.h"

#include <cstdint>
#include <string>
#include <vector>

namespace kvscope {

struct StageSlice {
    std::string name; // "prefill", "decode", "mixed", "layer 3", a stage
    std::int64_t startNs = 0, durationNs = 0;
    std::int32_t layer = -1;      // -1: outside the layers
    std::int32_t layerIndex = -1; // of StepSlices::transfers
    bool attention = false;       // where the layer's transferred blocks are used
};

struct LayerTransfer {
    std::int64_t startNs = 0; // transferStart()
    std::int64_t h2dBlocks = 0, d2hBlocks = 0, h2dBytes = 0, d2hBytes = 0, h2dNs = 0, d2hNs = 0;
};

struct StepSlices {
    std::int32_t step = 0;
    Phase phase = Phase::Decode;
    // tokens: without those of prompts where the step decodes
    std::int64_t startNs = 0, durationNs = 0, tokens = 0, hits = 0, misses = 0, h2dBytes = 0, d2hBytes = 0,
                 exposedNs = 0;
    std::vector<StageSlice> slices; // by start, outer ones first
    std::vector<LayerTransfer> transfers;
};

class StepSliceReader {
public:
    /// `connection` outlives it.
    StepSliceReader(Connection& connection, int runId, const LinkClock& clock);
    std::int32_t lastStep() const { return lastStep_; } // -1: none
    /// Refills `step`. @return false: no more. @throws Error(BadInput | Cancelled)
    bool next(StepSlices& step);

private:
    void addLayer(StepSlices& step);

    const LinkClock clock_;
    const PromptSteps prompts_;
    Statement steps_, layers_;
    bool layerWaits_ = false; // the current row of layers_ belongs to a later step
    std::int32_t lastStep_ = -1;
};

} // namespace kvscope
