// Says to which layer and stage the engine's launches belong, for KVScope's recorder and for tools that read NVTX.
#pragma once

#include "base/ids.h"
#include "core/session/stage_clock.h"
#include "core/trace/gpu_trace.h"

namespace kvscope {

class StageRanges {
public:
    /// trace: the recorder of kernels, or null.
    explicit StageRanges(GpuTrace* trace) : trace_(trace) {}

    /// What is launched or captured from now on belongs to this stage of a layer, or of the whole step.
    void at(LayerId layer, StageId stage) { enter(int(layer), stage); }
    void at(StepStage stage) { enter(-1, stage); }
    /// What is launched or captured from now on belongs to no stage.
    void leave() {
        if (inStage_) nvtxPop();
        inStage_ = false;
    }

private:
    void enter(int layer, StageId stage) {
        leave();
        nvtxPush(stage.name());
        inStage_ = true;
        if (trace_ != nullptr) trace_->atStage(layer, stage);
    }

    GpuTrace* const trace_;
    bool inStage_ = false;
};

} // namespace kvscope
