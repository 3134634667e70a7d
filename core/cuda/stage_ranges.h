// Which layer and stage an engine's launches belong to, for our recorder and for tools that read NVTX.
#pragma once

#include "core/session/stage_clock.h"
#include "core/trace/gpu_trace.h"

namespace kvscope {

class StageRanges {
public:
    /// trace: null where nobody records kernels.
    explicit StageRanges(GpuTrace* trace) : trace_(trace) {}

    /// What is launched or captured from here on belongs to this stage. layer: -1: none.
    void at(int layer, StageId stage) {
        leave();
        nvtxPush(stage.name());
        inStage_ = true;
        if (trace_ != nullptr) trace_->atStage(layer, stage);
    }
    void at(StepStage stage) { at(-1, stage); }
    /// And to none from here on.
    void leave() {
        if (inStage_) nvtxPop();
        inStage_ = false;
    }

private:
    GpuTrace* const trace_;
    bool inStage_ = false;
};

} // namespace kvscope
