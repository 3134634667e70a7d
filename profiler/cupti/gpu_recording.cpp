#include "profiler/cupti/gpu_recording.h"

#include "base/clock.h"
#include "base/error.h"
#include "core/session/gpu_bus_id.h"
#include "profiler/cupti/pm_sampling.h"
#include "profiler/nvml/pcie_sampler.h"
#include "profiler/record/recorder.h"

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

void addNote(std::vector<SpanRecord>& spans, const std::string& sentence) {
    if (sentence.empty()) return;
    SpanRecord& note = spans.emplace_back();
    note.track = "recorder";
    note.name = sentence;
}

void explain(std::vector<SpanRecord>& spans, bool& explained, const std::string& sentence) {
    if (explained || sentence.empty()) return;
    explained = true;
    addNote(spans, sentence);
}

} // namespace

GpuRecording::GpuRecording(bool calls, PcieCounting pcie) : cupti_(startGpuTracing(calls)), pcieCounting_(pcie) {}
GpuRecording::~GpuRecording() = default;

void GpuRecording::countPcie(PcieCounting counting) {
    if (counting == pcieCounting_) return;
    pcieCounting_ = counting;
    counters_.reset();
    pcieRemark_.clear();
    countersAsked_ = countersExplained_ = false;
}

void GpuRecording::atStage(int layer, std::string_view stage) {
    if (cupti_.tracer) cupti_.tracer->atStage(layer, stage);
}

void GpuRecording::atStep(int step) {
    if (!countersAsked_) { // now there is a GPU in use
        countersAsked_ = true;
        const auto openPm = [this](std::string& refusal) -> std::unique_ptr<GpuCounters> {
            if (cupti_.tracer) return PmSampling::open(refusal);
            refusal = cupti_.refusal; // its clock would be another one
            return nullptr;
        };
        ChosenCounters chosen = chooseCounters(pcieCounting_, openPm, openNvml);
        counters_ = std::move(chosen.counters);
        pcieRemark_ = std::move(chosen.remark);
    }
    if (cupti_.tracer) cupti_.tracer->atStep(step);
    if (counters_) counters_->atStep(step);
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
    if (counters_) {
        samples = counters_->take(originNs, all);
        addNote(spans, counters_->remark());
    }
    if (all && cupti_.tracer)
        samples.push_back({kLostGpuRecords, 0, steadyNowNs() - originNs, cupti_.tracer->lostRecords()});
    if (recorder_ != nullptr) recorder_->addCounters(std::move(samples));
    if (!cupti_.refusal.empty()) explain(spans, kernelsExplained_, "kernels are not recorded: " + cupti_.refusal);
    explain(spans, countersExplained_, pcieRemark_);
    return spans;
}

} // namespace kvscope
