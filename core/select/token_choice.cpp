#include "core/select/token_choice.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace kvscope::select {

void bestTokens(std::span<const TokenRange> ranges, std::span<const float> scores, int count,
                std::vector<std::int32_t>& order, std::vector<std::int32_t>& tokens) {
    const auto kept = std::min(scores.size(), std::size_t(std::max(0, count)));
    order.resize(scores.size());
    std::iota(order.begin(), order.end(), 0);
    if (kept < order.size()) {
        const auto value = [&](std::int32_t i) {
            const float score = scores[std::size_t(i)];
            return std::isnan(score) ? -std::numeric_limits<float>::infinity() : score;
        };
        std::nth_element(order.begin(), order.begin() + std::ptrdiff_t(kept), order.end(),
                         [&](std::int32_t a, std::int32_t b) {
                             const float left = value(a), right = value(b);
                             return left != right ? left > right : a < b;
                         });
        std::sort(order.begin(), order.begin() + std::ptrdiff_t(kept));
    }
    tokens.clear();
    auto range = ranges.begin();
    int before = 0; // positions of the ranges that were passed
    for (std::size_t i = 0; i < kept; ++i) {
        while (order[i] >= before + range->end - range->begin) before += range->end - range->begin, ++range;
        tokens.push_back(range->begin + order[i] - before);
    }
}

void softmax(std::span<float> x) {
    float largest = -std::numeric_limits<float>::infinity();
    for (const float value : x) largest = std::max(largest, value);
    if (largest == -std::numeric_limits<float>::infinity()) {
        std::fill(x.begin(), x.end(), 0.f);
        return;
    }
    double sum = 0;
    for (float& value : x) sum += value = std::exp(value - largest);
    const float share = float(1 / sum);
    for (float& value : x) value *= share;
}

std::size_t attentionLogits(std::span<const KvBlockView> views, const float* q, int dim, int blockSize, float scale,
                            float biasScale, float* logits) {
    const Extents<int, int> keyAt(dim, blockSize);
    std::size_t count = 0;
    float sums[256]; // the largest block
    for (const KvBlockView& view : views) {
        std::fill_n(sums, blockSize, 0.f);
        for (int c = 0; c < dim; ++c) {
            const float* channel = view.keys + keyAt.first(c);
            const float value = q[c];
            for (int row = 0; row < blockSize; ++row) sums[row] += value * channel[row];
        }
        for (int row = view.begin; row < view.tokens; ++row)
            logits[count++] = scale * sums[row] + (view.bias ? biasScale * view.bias[row] : 0.f);
    }
    return count;
}

void weightedValues(std::span<const KvBlockView> views, const float* weights, int valueDim, int blockSize, float* out) {
    std::fill_n(out, valueDim, 0.f);
    const Extents<int, int> valueAt(blockSize, valueDim);
    std::size_t i = 0;
    for (const KvBlockView& view : views)
        for (int row = view.begin; row < view.tokens; ++row, ++i) {
            const float weight = weights[i];
            if (view.values != nullptr) {
                const float* value = view.values + valueAt.first(row);
                for (int c = 0; c < valueDim; ++c) out[c] += weight * value[c];
            } else { // the beginning of the key
                for (int c = 0; c < valueDim; ++c) out[c] += weight * view.keys[c * blockSize + row];
            }
        }
}

void chooseTokens(HeadStep& item, std::span<const float> scores, Origin origin, std::int32_t firstRecent) {
    item.byToken = true;
    item.selected.clear();
    for (std::size_t i = 0; i < item.tokens.size(); ++i)
        item.selected.push_back({item.tokens[i], item.tokens[i] >= firstRecent ? Origin::Window : origin, scores[i]});
    item.wanted.assign(item.tokens.begin(), item.tokens.end());
}

void storeViews(const SelectorContext& context, LayerId layer, RowId sequence, KvHeadId kvHead, TokenRange range,
                std::vector<KvBlockView>& views) {
    const BlockLayout& layout = context.cache.layout();
    const KvHead& head = context.cache.head(sequence, layer, kvHead);
    views.clear();
    for (int b = range.begin / layout.blockSize; b * layout.blockSize < range.end; ++b) {
        const int first = b * layout.blockSize;
        views.push_back(layout.view(context.cache.promptBlock(head, BlockId{b}),
                                    std::min(layout.blockSize, range.end - first), std::max(0, range.begin - first)));
    }
}

void packStored(const SelectorContext& context, LayerId layer, RowId sequence, KvHeadId kvHead,
                std::span<const std::int32_t> tokens, AlignedBuffer<float>& packed, std::vector<KvBlockView>& views) {
    const BlockLayout& layout = context.cache.layout();
    const int size = layout.blockSize, count = int(tokens.size());
    const Elements floats((count + size - 1) / size, layout.floats());
    if (packed.size() < floats) packed = AlignedBuffer<float>(floats);
    const KvHead& head = context.cache.head(sequence, layer, kvHead);
    views.clear();
    const RowsOf blocks(packed.data(), layout.floats());
    for (int i = 0; const std::int32_t token : tokens) {
        float* block = blocks[i / size];
        layout.copyToken(context.cache.storeBlock(head, layout.blockOf(token)), layout.rowOf(token), block, i % size);
        if (i % size == 0) views.push_back(layout.view(block, std::min(size, count - i)));
        ++i;
    }
}

std::int64_t tokenBytes(const BlockLayout& layout) { return layout.bytes() / layout.blockSize; }

void setTokenBudget(SelectionSpec& spec, int tokens) {
    spec.ownDeviceTier = true;
    spec.traceUnit = 1;
    spec.traceBudget = tokens;
    spec.budget = {0, 0, false, (tokens + spec.blockSize - 1) / spec.blockSize, 0}; // for estimates of memory and time
}

} // namespace kvscope::select
