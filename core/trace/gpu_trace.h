// What an engine on a GPU asks of whoever records its kernels. Implemented by profiler/cupti; null where nobody does.
#pragma once

#include "core/trace/trace_sink.h"

#include <cstdint>
#include <string_view>
#include <vector>

namespace kvscope {

class GpuTrace {
public:
    virtual ~GpuTrace() = default;
    /// The kernels launched from here on, or captured into a graph, belong to this layer (-1: none) and stage.
    virtual void atStage(int layer, std::string_view stage) = 0;
    /// What is launched from here on belongs to this step; a captured graph that is launched belongs to it as a whole.
    virtual void atStep(int step) = 0;
    /// Spans of everything that finished since the last call; times are relative to `originNs` of the steady clock.
    /// all: waits for what is still buffered. Called with the GPU idle then.
    virtual std::vector<SpanRecord> collect(std::int64_t originNs, bool all) = 0;
};

} // namespace kvscope
