#include "core/engine/cpu/cpu_layer_passes.h"

#include <algorithm>
#include <numeric>

namespace kvscope {

CpuLayerPasses::CpuLayerPasses(Kernels& kernels, const Model& model, std::size_t rows, const Abilities& needs,
                               StageClock& clock)
    : kernels_(kernels), model_(model), clock_(clock), projections_(kernels, model, rows, needs),
      feedForward_(kernels, model, rows), pairAt_(int(rows), model.config().rope.dim / 2), cos_(pairAt_.size()),
      sin_(pairAt_.size()), rowIds_(rows) {
    std::iota(rowIds_.begin(), rowIds_.end(), 0);
}

void CpuLayerPasses::rotateAs(int row, const RopeTables& tables, int at) {
    const std::size_t pairs = pairAt_.under(0), from = std::size_t(at) * pairs, to = pairAt_.first(row);
    std::copy_n(tables.cos() + from, pairs, cos_.data() + to);
    std::copy_n(tables.sin() + from, pairs, sin_.data() + to);
}

void CpuLayerPasses::embed(std::span<const std::int32_t> tokens, float* x) {
    kernels_.embed(model_.embedding(), tokens, x);
    const float scale = model_.config().streamEmbeddingScale();
    if (scale == 1.f) return;
    const Extents<int, int> streamAt(int(tokens.size()), model_.config().hidden);
    kernels_.forEach(int(tokens.size()), [&](int row) {
        float* to = x + streamAt.first(row);
        for (std::size_t c = 0; c < streamAt.under(0); ++c) to[c] *= scale;
    });
}

void CpuLayerPasses::project(LayerId layerId, const float* x, int n, LayerRecord& layer) {
    clock_.run(layer, Stage::QkvLinear, [&] { projections_.project(layerId, x, n); });
    clock_.run(layer, Stage::Rope, [&] { projections_.rotate(layerId, n, rowIds_, cos_.data(), sin_.data()); });
}

void CpuLayerPasses::finish(LayerId layerId, float* x, int n, LayerRecord& layer) {
    clock_.run(layer, Stage::OLinear, [&] { projections_.finish(layerId, x, n); });
    clock_.run(layer, Stage::Ffn, [&] { feedForward_.run(layerId, x, n); });
}

void CpuLayerPasses::projectValues(LayerId layerId, const float* x, int n, LayerRecord& layer) {
    clock_.run(layer, Stage::QkvLinear, [&] { projections_.projectValues(layerId, x, n); });
}

void CpuLayerPasses::outputOf(LayerId layerId, int n, float* out, LayerRecord& layer) {
    clock_.run(layer, Stage::OLinear, [&] { projections_.output(layerId, out, n); });
}

void CpuLayerPasses::feedForwardOf(LayerId layerId, const float* x, int n, float* out, LayerRecord& layer) {
    clock_.run(layer, Stage::Ffn, [&] { feedForward_.output(layerId, x, n, out); });
}

void CpuLayerPasses::head(const float* x, int n, float* logits) {
    const ModelConfig& config = model_.config();
    const LinearTarget target{model_.lmHead(), nullptr, logits, config.vocab, false};
    LinearArgs args;
    args.x = x;
    args.n = n;
    args.xStride = config.hidden;
    args.normWeight = model_.finalNorm().data();
    args.normEps = config.streamNormEps();
    args.targets = {&target, 1};
    kernels_.linear(args);
}

} // namespace kvscope
