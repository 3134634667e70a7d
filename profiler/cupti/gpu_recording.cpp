#include "profiler/cupti/gpu_recording.h"

#include "base/clock.h"
#include "base/error.h"
#include "core/session/gpu_bus_id.h"
#include "profiler/cupti/pm_sampling.h"
#include "profiler/format/counter_sample.h"
#include "profiler/nvml/pcie_sampler.h"

#include <utility>

namespace kvscope {
namespace {

std::unique_ptr<GpuCounters> openNvml(std::string& refusal) {
    try {
        return PcieSampler::start(gpuBusId(), refusal);
    } catch (const Error& error) {
        refusal = oneLine(error);
        return nullptr;
    }
}

constexpr std::int64_t kStepsPerCollection = 16; // a step makes many kernel records, and nobody needs them at once

} // namespace

GpuRecording::GpuRecording(bool calls, PcieCounting pcie) : GpuRecording(startGpuTracing(calls), pcie) {}
GpuRecording::GpuRecording(GpuTracing tracing, PcieCounting pcie) : cupti_(std::move(tracing)), pcieCounting_(pcie) {}
GpuRecording::~GpuRecording() = default;

void GpuRecording::countPcie(PcieCounting counting) {
    if (counting == pcieCounting_) return;
    pcieCounting_ = counting;
    counters_.reset();
    pcieRemark_.clear();
    countersAsked_ = false;
}

void GpuRecording::beginRun(TraceSink& sink) {
    sink_ = &sink;
    stepsDone_ = 0;
    pcieExplained_ = false;
    if (cupti_.tracer) cupti_.tracer->sendTo(&sink, originNs_);
    if (!cupti_.refusal.empty()) remark("kernels are not recorded: " + cupti_.refusal);
}

void GpuRecording::atStage(int layer, StageId stage) {
    if (cupti_.tracer) cupti_.tracer->atStage(layer, stage);
}

void GpuRecording::atStep(int step) {
    if (!countersAsked_) { // now there is a GPU in use
        countersAsked_ = true;
        const auto openPm = [this](std::string& refusal) -> std::unique_ptr<GpuCounters> {
            if (cupti_.tracer) return PmSampling::open(refusal);
            refusal = cupti_.refusal; // without the tracer PM sampling would have another clock
            return nullptr;
        };
        ChosenCounters chosen = chooseCounters(pcieCounting_, openPm, openNvml);
        counters_ = std::move(chosen.counters);
        pcieRemark_ = std::move(chosen.remark);
    }
    if (cupti_.tracer) cupti_.tracer->atStep(step);
    if (counters_) counters_->atStep(step);
}

void GpuRecording::stepDone() {
    if (++stepsDone_ % kStepsPerCollection != 0) return;
    if (cupti_.tracer) cupti_.tracer->collect();
    takeCounts(false);
}

void GpuRecording::endRun() {
    if (cupti_.tracer) cupti_.tracer->drain();
    takeCounts(true);
    if (cupti_.tracer) cupti_.tracer->sendTo(nullptr, 0);
    sink_ = nullptr;
}

/// Hands the samples of the GPU's counters to the sink. all: the run is over, so that the sink gets its last samples
/// and the number of lost GPU records.
void GpuRecording::takeCounts(bool all) {
    std::vector<CounterSample> samples;
    if (counters_) {
        samples = counters_->take(originNs_, all);
        remark(counters_->remark());
    }
    if (all && cupti_.tracer)
        samples.push_back({kLostGpuRecords, 0, steadyNowNs() - originNs_, cupti_.tracer->lostRecords()});
    if (sink_ != nullptr && !samples.empty()) sink_->take(std::move(samples));
    if (pcieExplained_ || pcieRemark_.empty()) return;
    pcieExplained_ = true;
    remark(pcieRemark_);
}

void GpuRecording::remark(const std::string& sentence) {
    if (sink_ != nullptr && !sentence.empty()) sink_->take(Remark{sentence});
}

} // namespace kvscope
