#include "core/select/next_query.h"

namespace kvscope::select {

void rotateRows(const SelectorContext& context, float* x, int n, int heads, std::span<const std::int32_t> ropeRows) {
    const RopeConfig& rope = context.model.config().rope;
    RopeArgs args;
    args.x = x;
    args.n = n;
    args.heads = heads;
    args.dim = context.shape.dim;
    args.stride = heads * context.shape.dim;
    args.positions = ropeRows.data();
    args.cos = context.rope.cos();
    args.sin = context.rope.sin();
    args.rotary = rope.dim;
    args.interleaved = rope.interleaved;
    context.kernels.rope(args);
}

void nextQueries(const SelectorContext& context, int target, const float* input, int n,
                 std::span<const std::int32_t> ropeRows, float* out) {
    const ModelConfig& config = context.model.config();
    const LayerWeights& weights = context.model.layer(target);
    const int width = config.queryHeads * config.headDim;
    const LinearTarget to{weights.q, weights.qBias.empty() ? nullptr : weights.qBias.data(), out, width, false};
    context.kernels.linear({input, n, config.hidden, nullptr, 0.f, {&to, 1}});
    if (config.queryKeyNorm)
        context.kernels.norm(
            {out, n, config.queryHeads, config.headDim, width, weights.queryNorm.data(), config.rmsNormEps});
    rotateRows(context, out, n, config.queryHeads, ropeRows);
}

} // namespace kvscope::select
