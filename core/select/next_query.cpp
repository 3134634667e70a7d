#include "core/select/next_query.h"

#include <algorithm>

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

void nextQueries(const SelectorContext& context, LayerId target, const float* input, int n,
                 std::span<const std::int32_t> ropeRows, float* out) {
    const ModelConfig& config = context.model.config();
    const LayerWeights& weights = context.model.layer(int(target));
    const int width = config.queryHeads * config.headDim;
    const LinearTarget to{weights.q, weights.qBias.empty() ? nullptr : weights.qBias.data(), out, width, false};
    context.kernels.linear({input, n, config.hidden, nullptr, 0.f, {&to, 1}});
    if (config.queryKeyNorm)
        context.kernels.norm(
            {out, n, config.queryHeads, config.headDim, width, weights.queryNorm.data(), config.rmsNormEps});
    rotateRows(context, out, n, config.queryHeads, ropeRows);
}

void ropeRowsOf(const SelectorContext& context, std::span<const HeadStep> heads, std::vector<std::int32_t>& rows) {
    const auto kvHeads = std::size_t(context.shape.kvHeads);
    rows.resize(heads.size() / kvHeads);
    for (std::size_t row = 0; row < rows.size(); ++row) {
        const HeadStep& item = heads[row * kvHeads];
        rows[row] = context.rope.first(int(item.sequence)) + item.position;
    }
}

void nextQueries(const SelectorContext& context, LayerId target, std::span<const HeadStep> heads,
                 std::vector<float>& out) {
    std::vector<std::int32_t> rows;
    ropeRowsOf(context, heads, rows);
    out.resize(context.queries(int(rows.size())).size());
    nextQueries(context, target, heads[0].rows.input, int(rows.size()), rows, out.data());
}

void placeAhead(const SelectorContext& context, LayerId target, const HeadStep& now, HeadStep& item) {
    item.head = &context.cache.head(now.sequence, target, now.kvHead);
    item.layer = target;
    item.sequence = now.sequence;
    item.kvHead = now.kvHead;
    item.position = now.position;
    item.firstToken = context.rules.firstTokenOf(target, item.position);
    item.firstBlock = item.firstToken / context.spec.blockSize;
    item.dense = item.position + 1 < context.spec.denseBelowTokens;
}

} // namespace kvscope::select
