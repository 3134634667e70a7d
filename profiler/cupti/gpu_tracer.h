// Records the kernels and copies of this process through CUPTI, loaded at run time: the program starts and works
// without it. One tracer per process at most, started before the first CUDA call.
#pragma once

#include "core/trace/gpu_trace.h"

#include <memory>
#include <string>

namespace kvscope {

/// A GpuTrace that counts what it loses.
class GpuTracer : public GpuTrace {
public:
    /// Records that were dropped for want of room, or came without times.
    virtual std::int64_t lostRecords() const = 0;
};

/// What became of starting a tracer: either `tracer`, or a sentence why not.
struct GpuTracing {
    std::unique_ptr<GpuTracer> tracer;
    std::string refusal; // e.g. "libcupti was not found"
};

/// Looks for libcupti at KVSCOPE_CUPTI_PATH, through the loader and in the CUDA toolkit's usual folders.
GpuTracing startGpuTracing();

} // namespace kvscope
