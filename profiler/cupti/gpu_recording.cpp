#include "profiler/cupti/gpu_recording.h"

#include "core/session/gpu_bus_id.h"
#include "core/session/stage_clock.h"
#include "kernels/base/error.h"
#include "profiler/record/recorder.h"

namespace kvscope {

GpuRecording::GpuRecording(bool calls) : cupti_(startGpuTracing(calls)) {}
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
    std::vector<SpanRecord> spans; // for the engine's sink
    if (cupti_.tracer) {
        std::vector<LaunchedSpan> launched = cupti_.tracer->collect(originNs, all);
        if (recorder_ != nullptr)
            recorder_->addLaunched(std::move(launched)); // a sink takes spans one by one, without what ties them
        else
            for (LaunchedSpan& each : launched) spans.push_back(std::move(each.span));
    }
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
