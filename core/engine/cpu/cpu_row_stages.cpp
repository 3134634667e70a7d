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
        passes_.rotateAs(tokens_.size(), *row.rope, row.rope->first(0) + position);
        tokens_.push_back(row.token.id);
        row.attention->begin(position, *row.record);
    }
}

void CpuRowStages::embed() {
    clock_.run(shared_, StepStage::Embed, [&] { passes_.embed(tokens_, x_); });
}

void CpuRowStages::project(int layer) {
    passes_.project(layer, x_, count(), shared_.layers[std::size_t(layer)]);
    for (std::size_t i = 0; i < rows_.size(); ++i) {
        clock_.beginLayer(rows_[i].record->layers[std::size_t(layer)]);
        rows_[i].attention->beginLayer(layer, passes_.rows(), i);
    }
}

void CpuRowStages::append(int layer) {
    each([&](CpuRowAttention& row) { row.append(layer); });
}
void CpuRowStages::choose(int layer) {
    each([&](CpuRowAttention& row) { row.choose(layer); });
}
void CpuRowStages::lookAhead(int layer) {
    each([&](CpuRowAttention& row) { row.lookAhead(layer); });
}
void CpuRowStages::load(int layer) {
    each([&](CpuRowAttention& row) { row.load(layer); });
}
void CpuRowStages::attend(int layer) {
    each([&](CpuRowAttention& row) { row.attend(layer); });
}
void CpuRowStages::after(int layer) {
    each([&](CpuRowAttention& row) { row.after(layer); });
}
void CpuRowStages::measure(int layer) {
    each([&](CpuRowAttention& row) { row.measure(layer); });
}

void CpuRowStages::finish(int layer) { passes_.finish(layer, x_, count(), shared_.layers[std::size_t(layer)]); }

void CpuRowStages::head() {
    clock_.run(shared_, StepStage::LmHead, [&] { passes_.head(x_, count(), logits_); });
}

} // namespace kvscope
