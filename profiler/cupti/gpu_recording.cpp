#include "profiler/cupti/gpu_recording.h"

#include "core/session/gpu_bus_id.h"
#include "core/session/stage_clock.h"
#include "kernels/base/error.h"
#include "profiler/record/recorder.h"

namespace kvscope {

GpuRecording::GpuRecording() : cupti_(startGpuTracing()) {}
GpuRecording::~GpuRecording() = default;

void GpuRecording::atStage(int layer, std::string_view stage) {
    if (cupti_.tracer) cupti_.tracer->atStage(layer, stage);
}

void GpuRecording::atStep(int step) {
    if (cupti_.tracer) cupti_.tracer->atStep(step);
    if (!pcieAsked_) { // now there is a GPU in use
        pcieAsked_ = true;
        try {
            std::string refusal;
            pcie_ = PcieSampler::start(gpuBusId(), refusal);
        } catch (const Error&) {
            // No counters, then.
        }
    }
    // Reading them takes longer than a short step: only the border between prompt and decoding is sharp.
    if (pcie_ && step <= 1) pcie_->cut();
}

std::vector<SpanRecord> GpuRecording::collect(std::int64_t originNs, bool all) {
    std::vector<SpanRecord> spans;
    if (cupti_.tracer) spans = cupti_.tracer->collect(originNs, all);
    std::vector<CounterSample> samples;
    if (pcie_) {
        if (all) pcie_->cut();
        samples = pcie_->take(originNs);
    }
    if (all && cupti_.tracer)
        samples.push_back({kLostGpuRecords, 0, steadyNowNs() - originNs, cupti_.tracer->lostRecords()});
    if (recorder_ != nullptr) recorder_->addCounters(std::move(samples));
    if (!cupti_.refusal.empty() && !explained_) {
        SpanRecord note;
        note.track = "recorder";
        note.name = "kernels are not recorded: " + cupti_.refusal;
        spans.push_back(note);
        explained_ = true;
    }
    return spans;
}

} // namespace kvscope
