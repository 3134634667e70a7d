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
    scores.clear();
    generated.clear();
    fed.clear();
    pieces.clear();
    spans.clear();
    denoise.clear();
}

std::unique_ptr<StepRecord> NullSink::acquire() {
    if (!spare_) return std::make_unique<StepRecord>();
    spare_->clear();
    return std::move(spare_);
}

void CollectingSink::take(RunEvent event) noexcept {
    const auto keep = [](auto& kept, auto& more) {
        kept.insert(kept.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
    };
    if (auto* step = std::get_if<std::unique_ptr<StepRecord>>(&event)) {
        keep(spans, (*step)->spans);
        (*step)->spans.clear();
        steps.push_back(std::move(**step));
    } else if (auto* more = std::get_if<std::vector<SpanRecord>>(&event)) {
        keep(spans, *more);
    } else if (auto* samples = std::get_if<std::vector<CounterSample>>(&event)) {
        keep(counts, *samples);
    } else if (auto* serving = std::get_if<std::unique_ptr<ServingRecord>>(&event)) {
        served.push_back(std::move(**serving));
    } else {
        remarks.push_back(std::move(std::get<Remark>(event).sentence));
    }
}

} // namespace kvscope
