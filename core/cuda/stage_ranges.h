// Says to which layer and stage the engine's launches belong, for KVScope's recorder and for tools that read NVTX.
#pragma once

#include "core/session/stage_clock.h"
#include "core/trace/gpu_trace.h"

namespace kvscope {

class StageRanges {
public:
    /// trace: the recorder of kernels, or null.
    explicit StageRanges(GpuTrace* trace) : trace_(trace) {}

    /// What is launched or captured from now on belongs to this stage. layer: -1 for a stage of the whole step.
    void at(int layer, StageId stage) {
        leave();
        nvtxPush(stage.name());
        inStage_ = true;
        if (trace_ != nullptr) trace_->atStage(layer, stage);
    }
    void at(StepStage stage) { at(-1, stage); }
    /// What is launched or captured from now on belongs to no stage.
    void leave() {
        if (inStage_) nvtxPop();
        inStage_ = false;
    }

private:
    GpuTrace* const trace_;
    bool inStage_ = false;
};

} // namespace kvscope
