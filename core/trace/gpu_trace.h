// What an engine on a GPU tells a recorder of its kernels. Implemented by profiler/cupti; null where no kernels are
// recorded.
#pragma once

#include "core/trace/trace_sink.h"

#include <cstdint>

namespace kvscope {

/// Called by the engine's thread: timesBeginAt, beginRun, then stages and steps, each step followed by stepDone, then
/// endRun. What was recorded reaches the sink on a thread of the recorder's own.
class GpuTrace {
public:
    virtual ~GpuTrace() = default;
    /// Times are to be relative to `originNs` of the steady clock.
    virtual void timesBeginAt(std::int64_t originNs) = 0;
    /// From now until endRun, everything that is recorded goes to `sink`, which has begun a run.
    virtual void beginRun(TraceSink& sink) = 0;
    /// The kernels launched from here on, or captured into a graph, belong to this layer (-1: none) and stage.
    virtual void atStage(int layer, StageId stage) = 0;
    /// Launches from now on belong to this step. A captured graph that is launched belongs to the step as a whole.
    virtual void atStep(int step) = 0;
    /// The engine has handed a step to the sink. Once in some steps the recorder hands over the kernels that have
    /// finished since.
    virtual void stepDone() = 0;
    /// Everything that is recorded is with the run's sink when this returns; later records go nowhere. Without a run:
    /// what was recorded so far is dropped. Called with the GPU idle.
    virtual void endRun() = 0;
};

} // namespace kvscope
