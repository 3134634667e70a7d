#include "core/engine/cpu/cpu_layer_passes.h"

#include <algorithm>
#include <numeric>

namespace kvscope {

CpuLayerPasses::CpuLayerPasses(Kernels& kernels, const Model& model, std::size_t rows, const Abilities& needs,
                               StageClock& clock)
    : kernels_(kernels), model_(model), clock_(clock), projections_(kernels, model, rows, needs),
      feedForward_(kernels, model, rows), cos_(rows * std::size_t(model.config().rope.dim / 2)), sin_(cos_.size()),
      rowIds_(rows) {
    std::iota(rowIds_.begin(), rowIds_.end(), 0);
}

void CpuLayerPasses::rotateAs(std::size_t row, const RopeTables& tables, int at) {
    const std::size_t pairs = std::size_t(model_.config().rope.dim / 2);
    std::copy_n(tables.cos() + std::size_t(at) * pairs, pairs, cos_.data() + row * pairs);
    std::copy_n(tables.sin() + std::size_t(at) * pairs, pairs, sin_.data() + row * pairs);
}

void CpuLayerPasses::embed(std::span<const std::int32_t> tokens, float* x) {
    kernels_.embed(model_.embedding(), tokens, x);
    const float scale = model_.config().streamEmbeddingScale();
    if (scale == 1.f) return;
    const auto hidden = std::size_t(model_.config().hidden);
    kernels_.forEach(int(tokens.size()), [&](int row) {
        float* to = x + std::size_t(row) * hidden;
        for (std::size_t c = 0; c < hidden; ++c) to[c] *= scale;
    });
}

void CpuLayerPasses::project(int layerIndex, const float* x, int n, LayerRecord& layer) {
    clock_.run(layer, Stage::QkvLinear, [&] { projections_.project(layerIndex, x, n); });
    clock_.run(layer, Stage::Rope, [&] { projections_.rotate(layerIndex, n, rowIds_, cos_.data(), sin_.data()); });
}

void CpuLayerPasses::finish(int layerIndex, float* x, int n, LayerRecord& layer) {
    clock_.run(layer, Stage::OLinear, [&] { projections_.finish(layerIndex, x, n); });
    clock_.run(layer, Stage::Ffn, [&] { feedForward_.run(layerIndex, x, n); });
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
