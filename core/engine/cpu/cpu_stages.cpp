#include "core/engine/cpu/cpu_stages.h"

namespace kvscope {

CpuStages::CpuStages(const SelectorContext& context, Selector& selector, CpuTransfers& transfers,
                     CpuLayerPasses& passes, StageClock& clock, std::optional<Oracle> oracle, Rows rows)
    : CpuAttention(context, selector, transfers, clock, oracle), rope_(context.rope), passes_(passes), rows_(rows) {}

void CpuStages::begin(std::span<const ActiveSequence> active, std::span<const std::int32_t> tokens,
                      StepRecord& record) {
    beginStep(active, record);
    tokens_ = tokens;
    for (std::size_t row = 0; row < active.size(); ++row)
        passes_.rotateAs(int(row), rope_, rope_.first(int(active[row].sequence)) + active[row].position);
}

void CpuStages::embed() {
    clock().run(record(), StepStage::Embed, [&] { passes_.embed(tokens_, rows_.x); });
}

void CpuStages::project(LayerId layer) {
    clock().beginLayer(recordOf(layer));
    passes_.project(layer, rows_.x, rowCount(), recordOf(layer));
    beginLayer(layer, passes_.rows());
}

void CpuStages::finish(LayerId layer) { passes_.finish(layer, rows_.x, rowCount(), recordOf(layer)); }

void CpuStages::head() {
    clock().run(record(), StepStage::LmHead, [&] { passes_.head(rows_.x, rowCount(), rows_.logits); });
}

} // namespace kvscope
