// Records the kernels and copies of this process, and the CUDA calls that started them, through CUPTI, loaded at run
// time: the program starts and works without it. One tracer per process at most, started before the first CUDA call.
//
// Three threads take part. The engine's thread says where its launches stand and asks for what has finished. CUPTI's
// own threads fill buffers and hand them over; their callbacks only put a buffer, or the id of a graph's node, into a
// queue. The tracer's thread takes things out of the queue, reads the buffers and hands spans to a sink. No lock is
// held while a function of CUPTI runs.
#pragma once

#include "core/trace/trace_sink.h"

#include <cstdint>
#include <memory>
#include <string>

namespace kvscope {

struct CuptiCalls;

/// Hands over spans, and counts the records that it loses.
class GpuTracer {
public:
    virtual ~GpuTracer() = default;
    /// Sends what is read from now on to `sink`, with times relative to `originNs` of the steady clock. sink: null:
    /// nowhere. It must live until it is replaced or the tracer ends, and takes events on the tracer's thread.
    virtual void sendTo(TraceSink* sink, std::int64_t originNs) = 0;
    /// The calling thread's launches from here on, and nodes of a graph made from here on, belong to this layer and
    /// stage.
    virtual void atStage(int layer, StageId stage) = 0;
    /// The calling thread's launches from here on belong to this step.
    virtual void atStep(int step) = 0;
    /// Asks for what has finished. Does not wait until it is read.
    virtual void collect() = 0;
    /// Everything that was recorded is with the sink when this returns. Called with the GPU idle.
    virtual void drain() = 0;
    /// Records that were dropped for want of room, came without times, or came too late for their step. The number is
    /// complete after drain().
    virtual std::int64_t lostRecords() const = 0;
};

/// The result of starting a tracer: either `tracer`, or a sentence that says why there is none.
struct GpuTracing {
    std::unique_ptr<GpuTracer> tracer;
    std::string refusal; // e.g. "libcupti was not found"
};

/// Looks for libcupti at KVSCOPE_CUPTI_PATH, through the loader and in the CUDA toolkit's usual folders.
/// calls: the CUDA runtime's calls are kept as well, as spans of the threads that made them.
GpuTracing startGpuTracing(bool calls);
/// Starts a tracer with a table of functions in place of the library's, for tests.
GpuTracing startGpuTracing(bool calls, const CuptiCalls& cupti);

} // namespace kvscope
