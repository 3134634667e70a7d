#include "core/select/indexer_keys.h"

#include <algorithm>
#include <numeric>

namespace kvscope::select {

IndexerKeys::IndexerKeys(const SelectorContext& context, const IndexerHeads& heads,
                         const std::function<bool(LayerId)>& runsIn)
    : context_(context), heads_(heads), keysAt_(context.sequences(), context.shape.layers), keys_(keysAt_.size()) {
    int longest = 0;
    for (const RowId sequence : idsUpTo<RowId>(context.sequences()))
        longest = std::max(longest, context.maxTokensOf(sequence));
    products_.reserve(productsAt(longest).size());
    for (const RowId sequence : idsUpTo<RowId>(context.sequences())) {
        const Extents<int, int> keyAt(context.maxTokensOf(sequence), heads.dim);
        for (const LayerId layer : idsUpTo<LayerId>(context.shape.layers))
            if (runsIn(layer)) keys_[keysAt_.offset(sequence, layer)].reserve(keyAt.size());
    }
}

float* IndexerKeys::append(LayerId layer, RowId sequence, int first, int n, const WeightMatrix& weights,
                           const float* input) {
    std::vector<float>& keys = keys_[keysAt_.offset(sequence, layer)];
    const Extents<int, int> keyAt(first + n, heads_.dim);
    keys.resize(keyAt.size());
    float* const added = keys.data() + keyAt.first(first);
    const LinearTarget target{weights, nullptr, added, heads_.dim, false};
    context_.kernels.linear({input, n, context_.model.config().hidden, nullptr, 0.f, {&target, 1}});
    return added;
}

float* IndexerKeys::ask(LayerId layer, RowId sequence, int n) {
    layer_ = layer;
    sequence_ = sequence;
    queries_.resize(Extents<int, int, int>(n, heads_.count, heads_.dim).size());
    return queries_.data();
}

void IndexerKeys::rotate(float* x, RowId sequence, int first, int n, int heads) {
    rows_.resize(n);
    std::iota(rows_.begin(), rows_.end(), context_.rope.first(int(sequence)) + first);
    RopeArgs args;
    args.x = x;
    args.n = n;
    args.heads = heads;
    args.dim = heads_.dim;
    args.stride = heads * heads_.dim;
    args.positions = rows_.data();
    args.cos = context_.rope.cos();
    args.sin = context_.rope.sin();
    args.rotary = heads_.rotary;
    args.interleaved = heads_.interleaved;
    context_.kernels.rope(args);
}

void IndexerKeys::multiply(int i, int visible) {
    const std::vector<float>& keys = keys_[keysAt_.offset(sequence_, layer_)];
    const Extents<int, int> queryAt(i + 1, heads_.count * heads_.dim);
    visible_ = visible;
    if (products_.size() < productsAt(visible).size()) products_.resize(productsAt(visible).size());
    // The keys are the weights of a product, so that one pass over them serves all heads.
    const WeightMatrix matrix{keys.data(), DType::F32, visible, heads_.dim};
    const LinearTarget target{matrix, nullptr, products_.data(), visible, false};
    context_.kernels.linear({queries_.data() + queryAt.first(i), heads_.count, heads_.dim, nullptr, 0.f, {&target, 1}});
}

std::int64_t IndexerKeys::keyBytes(const IndexerHeads& heads, std::int64_t layers, std::int64_t tokens) {
    return layers * tokens * heads.dim * std::int64_t(sizeof(float));
}

std::int64_t IndexerKeys::scratchBytes(const IndexerHeads& heads, std::int64_t rows, std::int64_t tokens) {
    return (rows * (heads.count * heads.dim + 1) + heads.count * tokens) * std::int64_t(sizeof(float));
}

} // namespace kvscope::select
