// Records the kernels and copies of this process, and the CUDA calls that started them, through CUPTI, loaded at run
// time: the program starts and works without it. One tracer per process at most, started before the first CUDA call.
#pragma once

#include "profiler/format/launched_span.h"

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace kvscope {

/// As GpuTrace, with what ties a call to what it started; counts what it loses.
class GpuTracer {
public:
    virtual ~GpuTracer() = default;
    virtual void atStage(int layer, std::string_view stage) = 0;
    virtual void atStep(int step) = 0;
    virtual std::vector<LaunchedSpan> collect(std::int64_t originNs, bool all) = 0;
    /// Records that were dropped for want of room, or came without times.
    virtual std::int64_t lostRecords() const = 0;
};

/// What became of starting a tracer: either `tracer`, or a sentence why not.
struct GpuTracing {
    std::unique_ptr<GpuTracer> tracer;
    std::string refusal; // e.g. "libcupti was not found"
};

/// Looks for libcupti at KVSCOPE_CUPTI_PATH, through the loader and in the CUDA toolkit's usual folders.
/// calls: the CUDA runtime's calls are kept as well, as spans of the threads that made them.
GpuTracing startGpuTracing(bool calls);

} // namespace kvscope
