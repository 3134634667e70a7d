// Measures the stages of a step. Each mark ends one stage and starts the next, so that stages and gaps add up to the
// wall time. NVTX gets the same names if CMake found NVTX.
#pragma once

#include "base/clock.h"
#include "core/trace/stage.h"
#include "core/trace/trace_sink.h"

#include <cstdint>

namespace kvscope {

/// Begins and ends an NVTX range; does nothing in a build without NVTX.
void nvtxPush(std::string_view name);
void nvtxPop();
/// Begins a range that carries the number of a step: "prefill" or "decode", around everything that the host asks the
/// GPU to do for the step.
void nvtxPush(std::string_view name, int step);

class StageClock {
public:
    explicit StageClock(std::int64_t originNs = 0) : origin_(originNs) {}

    void beginStep() { last_ = steadyNowNs(), stepStart_ = last_; }
    std::int64_t stepStartNs() const { return stepStart_ - origin_; }
    /// Ends the step. @return its duration
    std::int64_t endStep() { return steadyNowNs() - stepStart_; }

    void beginLayer(LayerRecord& layer) { layer.startNs = last_ - origin_; }
    /// Runs `work` as a stage of `layer`. The stage gets all time since the last mark.
    template <class Work> void run(LayerRecord& layer, Stage stage, Work&& work) {
        nvtxPush(nameOf(stage));
        work();
        nvtxPop();
        mark(layer.stageNs[stage]);
    }
    template <class Work> void run(StepRecord& step, StepStage stage, Work&& work) {
        nvtxPush(nameOf(stage));
        work();
        nvtxPop();
        mark(step.stepStageNs[stage]);
    }
    /// Makes the time since the last mark count as "other".
    void skip() { last_ = steadyNowNs(); }

private:
    void mark(std::int64_t& total) {
        const std::int64_t now = steadyNowNs();
        total += now - last_;
        last_ = now;
    }
    std::int64_t origin_ = 0, last_ = 0, stepStart_ = 0;
};

} // namespace kvscope
