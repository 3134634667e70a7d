#include "core/trace/trace_sink.h"

namespace kvscope {

void StepRecord::clear() {
    step = tokens = 0;
    phase = Phase::Decode;
    opensBlock = false;
    startNs = durationNs = 0;
    stepStageNs.fill(0);
    layers.clear();
    selections.clear();
    blocks.clear();
    origins.clear();
    hit.clear();
    scores.clear();
    generated.clear();
    denoise.clear();
}

std::unique_ptr<StepRecord> NullSink::acquire() {
    if (!spare_) return std::make_unique<StepRecord>();
    spare_->clear();
    return std::move(spare_);
}

} // namespace kvscope
