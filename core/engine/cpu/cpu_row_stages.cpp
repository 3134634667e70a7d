#include "core/engine/cpu/cpu_row_stages.h"

namespace kvscope {

CpuRowStages::CpuRowStages(CpuLayerPasses& passes, StageClock& clock, int layers, float* x, float* logits)
    : passes_(passes), clock_(clock), x_(x), logits_(logits) {
    shared_.layers.resize(std::size_t(layers));
}

void CpuRowStages::begin(std::span<const Row> rows) {
    rows_ = rows;
    tokens_.clear();
    for (const Row& row : rows) {
        const int position = row.token.position;
        passes_.rotateAs(int(tokens_.size()), *row.rope, row.rope->first(0) + position);
        tokens_.push_back(row.token.id);
        row.attention->begin(position, *row.record);
    }
}

void CpuRowStages::embed() {
    clock_.run(shared_, StepStage::Embed, [&] { passes_.embed(tokens_, x_); });
}

void CpuRowStages::project(LayerId layer) {
    passes_.project(layer, x_, count(), shared_.layers[index(layer)]);
    int at = 0;
    for (const Row& row : rows_) {
        clock_.beginLayer(row.record->layers[index(layer)]);
        row.attention->beginLayer(layer, passes_.rows(), at++);
    }
}

void CpuRowStages::append(LayerId layer) {
    each([&](CpuRowAttention& row) { row.append(layer); });
}
void CpuRowStages::choose(LayerId layer) {
    each([&](CpuRowAttention& row) { row.choose(layer); });
}
void CpuRowStages::lookAhead(LayerId layer) {
    each([&](CpuRowAttention& row) { row.lookAhead(layer); });
}
void CpuRowStages::load(LayerId layer) {
    each([&](CpuRowAttention& row) { row.load(layer); });
}
void CpuRowStages::attend(LayerId layer) {
    each([&](CpuRowAttention& row) { row.attend(layer); });
}
void CpuRowStages::after(LayerId layer) {
    each([&](CpuRowAttention& row) { row.after(layer); });
}
void CpuRowStages::measure(LayerId layer) {
    each([&](CpuRowAttention& row) { row.measure(layer); });
}

void CpuRowStages::finish(LayerId layer) { passes_.finish(layer, x_, count(), shared_.layers[index(layer)]); }

void CpuRowStages::head() {
    clock_.run(shared_, StepStage::LmHead, [&] { passes_.head(x_, count(), logits_); });
}

} // namespace kvscope
