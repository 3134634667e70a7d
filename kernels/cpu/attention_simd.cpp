// Attention and block scores. Keys lie transposed (KvBlockView), so that one register holds one channel of many keys.
// The scores of these keys are the sum, over the channels, of the query's channel times that register; no sum across
// the lanes of a register is needed.
#include "kernels/cpu/simd.h"
#include "kernels/quantised_kv.h"

#include <algorithm>
#include <cmath>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention_simd.cpp"
#include <hwy/foreach_target.h> // must come before highway.h
#include <hwy/highway.h>

#include <hwy/contrib/math/math-inl.h>

HWY_BEFORE_NAMESPACE();
namespace kvscope::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;
constexpr int kLanes = int(hn::MaxLanes(D()));
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

HWY_INLINE float MaxOf(const float* x, int n) {
    const D d;
    V best = hn::Set(d, kMinusInfinity);
    int i = 0;
    for (; i + kLanes <= n; i += kLanes) best = hn::Max(best, hn::LoadU(d, x + i));
    float result = hn::GetLane(hn::MaxOfLanes(d, best));
    for (; i < n; ++i) result = std::max(result, x[i]);
    return result;
}

/// x = exp(x - shift), -inf becomes 0. @return the sum
HWY_INLINE float ExpSum(float* x, int n, float shift) {
    const D d;
    if (shift == kMinusInfinity) shift = 0.f; // no key is visible: the results are 0, not NaN
    const V s = hn::Set(d, shift);
    V total = hn::Zero(d);
    int i = 0;
    for (; i + kLanes <= n; i += kLanes) {
        const V e = hn::Exp(d, hn::Sub(hn::LoadU(d, x + i), s));
        hn::StoreU(e, d, x + i);
        total = hn::Add(total, e);
    }
    float sum = hn::GetLane(hn::SumOfLanes(d, total));
    for (; i < n; ++i) sum += x[i] = std::exp(x[i] - shift);
    return sum;
}

/// scores[0..width) = scale * scores + biasScale * bias; columns from `tokens` on become -inf. @return the maximum
HWY_INLINE float ScaleBiasMask(float* scores, int width, float scale, const float* bias, float biasScale, int tokens) {
    const D d;
    const V s = hn::Set(d, scale), b = hn::Set(d, biasScale);
    V best = hn::Set(d, kMinusInfinity);
    const int whole = tokens / kLanes * kLanes;
    int i = 0;
    for (; i < whole; i += kLanes) {
        V value = hn::Mul(hn::LoadU(d, scores + i), s);
        if (bias) value = hn::MulAdd(hn::LoadU(d, bias + i), b, value);
        best = hn::Max(best, value);
        hn::StoreU(value, d, scores + i);
    }
    if (i < tokens) {
        V value = hn::Mul(hn::LoadU(d, scores + i), s);
        if (bias) value = hn::MulAdd(hn::LoadU(d, bias + i), b, value);
        value = hn::IfThenElse(hn::FirstN(d, std::size_t(tokens - i)), value, hn::Set(d, kMinusInfinity));
        best = hn::Max(best, value);
        hn::StoreU(value, d, scores + i);
        i += kLanes;
    }
    std::fill(scores + i, scores + width, kMinusInfinity);
    return hn::GetLane(hn::MaxOfLanes(d, best));
}

HWY_INLINE void ScaleRow(float* row, int n, float factor) {
    const D d;
    const V f = hn::Set(d, factor);
    int c = 0;
    for (; c + kLanes <= n; c += kLanes) hn::StoreU(hn::Mul(hn::LoadU(d, row + c), f), d, row + c);
    for (; c < n; ++c) row[c] *= factor;
}

/// The values of a block, [tokens, valueDim]. If a key's first channels are its value (latent attention), they are
/// transposed into `scratch`, which is little work beside the group's products with them.
const float* ValuesOf(const KvBlockView& block, int tokens, int valueDim, int width, std::vector<float>& scratch) {
    if (block.values != nullptr) return block.values;
    if (scratch.size() < std::size_t(width) * std::size_t(valueDim))
        scratch.resize(std::size_t(width) * std::size_t(valueDim));
    constexpr int kTogether = 16; // tokens transposed together, so that whole cache lines are read and written
    for (int first = block.begin / kTogether * kTogether; first < tokens; first += kTogether)
        for (int c = 0; c < valueDim; ++c) {
            const float* from = block.keys + std::int64_t(c) * width + first;
            for (int t = 0; t < kTogether; ++t) scratch[std::size_t((first + t) * valueDim + c)] = from[t];
        }
    return scratch.data();
}

/// Hides the tokens before `begin`: ScaleBiasMask keeps minus infinity.
HWY_INLINE void HideBefore(int begin, float* scores) { std::fill_n(scores, std::max(0, begin), kMinusInfinity); }

/// Takes a candidate for the maximum of a row's logits. If it is larger than the old maximum, it scales down the sum
/// and the output that the row has so far.
HWY_INLINE void RaiseMaximum(float candidate, float& maximum, float& sum, float* out, int dim) {
    if (!(candidate > maximum)) return;
    const float factor = std::exp(maximum - candidate); // 0 the first time
    maximum = candidate;
    sum *= factor;
    ScaleRow(out, dim, factor);
}

float* RoomFor(std::size_t floats, std::vector<float>& room) {
    if (room.size() < floats) room.resize(floats);
    return room.data();
}

/// The keys of a block, [dim, width]; those of a quantised block are read into `room`.
const float* KeysOf(const AttentionArgs& args, const KvBlockView& block, std::vector<float>& room) {
    if (block.quantised == nullptr) return block.keys;
    float* keys = RoomFor(std::size_t(args.dim) * std::size_t(args.blockSize), room);
    readKeys(args.format, block.quantised, keys);
    return keys;
}

/// The values of a block's valid tokens, [tokens, valueDim], of quantised blocks too.
const float* ValuesOf(const AttentionArgs& args, const KvBlockView& block, int valueDim, AttentionScratch& scratch) {
    KvBlockView readable = block;
    if (block.quantised != nullptr && args.format.valueDim == 0) {
        readable.keys = KeysOf(args, block, scratch.readKeys);
    } else if (block.quantised != nullptr) {
        float* values = RoomFor(std::size_t(valueDim) * std::size_t(args.blockSize), scratch.readValues);
        readValues(args.format, block.quantised, block.tokens, values);
        readable.values = values;
    }
    return ValuesOf(readable, block.tokens, valueDim, args.blockSize, scratch.values);
}

void AttendBlocks(const AttentionArgs& args, const AttentionItem& item, int first, int last, float* out,
                  std::int64_t outStride, float* maxima, float* sums, AttentionScratch& scratch) {
    const int group = args.group, dim = args.dim, width = args.blockSize;
    const int valueDim = args.valueDim == 0 ? dim : args.valueDim;
    // Takes as many blocks at a time as the first-level cache, or nearly, can hold the scores of for the whole group.
    constexpr int kScoreFloats = 16 << 10;
    const int most = std::max(1, kScoreFloats / (group * width)), together = std::min(most, last - first);
    const std::int64_t columns = std::int64_t(together) * width;
    if (scratch.scores.size() < std::size_t(group * columns)) scratch.scores.resize(std::size_t(group * columns));
    float* scores = scratch.scores.data();
    for (int h = 0; h < group; ++h) {
        maxima[h] = kMinusInfinity;
        sums[h] = 0.f;
        std::fill_n(out + h * outStride, valueDim, 0.f);
    }
    for (int from = first; from < last; from += together) {
        const int to = std::min(last, from + together), used = (to - from) * width;
        float best[kMostGroup];
        std::fill_n(best, group, kMinusInfinity);
        for (int b = from; b < to; ++b) {
            const KvBlockView& block = item.blocks[b];
            float* at = scores + std::int64_t(b - from) * width;
            multiplyRows(item.q, args.qStride, group, KeysOf(args, block, scratch.readKeys), width, dim, width, at,
                         columns);
            if (block.begin > 0)
                for (int h = 0; h < group; ++h) HideBefore(block.begin, at + h * columns);
            for (int h = 0; h < group; ++h)
                best[h] = std::max(best[h], ScaleBiasMask(at + h * columns, width, args.scale,
                                                          args.biasScale != 0.f ? block.bias : nullptr, args.biasScale,
                                                          block.tokens));
        }
        for (int h = 0; h < group; ++h) {
            RaiseMaximum(best[h], maxima[h], sums[h], out + h * outStride, valueDim);
            sums[h] += ExpSum(scores + h * columns, used, maxima[h]);
        }
        // Only a block's valid tokens count; the values behind them are not part of the sequence.
        for (int b = from; b < to; ++b) {
            const KvBlockView& block = item.blocks[b];
            addMultipliedRows(scores + std::int64_t(b - from) * width, columns, group,
                              ValuesOf(args, block, valueDim, scratch), valueDim, block.tokens, valueDim, out,
                              outStride);
        }
    }
}

void PrefillTile(const PrefillAttentionArgs& args, int kvHead, int begin, int end, AttentionScratch& scratch) {
    const int group = args.group, dim = args.dim, width = args.blockSize, rows = (end - begin) * group;
    const int valueDim = args.valueDim == 0 ? dim : args.valueDim;
    const auto need = [](std::vector<float>& buffer, std::size_t n) {
        if (buffer.size() < n) buffer.resize(n);
        return buffer.data();
    };
    float* q = need(scratch.rows, std::size_t(rows * dim));
    float* scores = need(scratch.scores, std::size_t(rows * width));
    float* out = need(scratch.out, std::size_t(rows * valueDim));
    float* sums = need(scratch.sums, std::size_t(2 * rows));
    float* maxima = sums + rows;
    for (int row = 0; row < rows; ++row) { // row = token * group + head
        const int token = begin + row / group, head = kvHead * group + row % group;
        std::copy_n(args.q + std::int64_t(token) * args.qStride + std::int64_t(head) * dim, dim,
                    q + std::int64_t(row) * dim);
        maxima[row] = kMinusInfinity;
        sums[row] = 0.f;
    }
    std::fill_n(out, std::size_t(rows * valueDim), 0.f);
    const int blocks = (args.firstPosition + end - 1) / width + 1;
    const int oldest = args.window > 0 ? std::max(0, args.firstPosition + begin - args.window + 1) : 0;
    for (int b = oldest / width; b < blocks; ++b) {
        const KvBlockView& block = args.blocks[kvHead][b];
        // Rows whose position lies before the block do not see it, so the products begin with the first row that does.
        const int firstToken = std::max(begin, b * width - args.firstPosition), firstRow = (firstToken - begin) * group;
        multiplyRows(q + std::int64_t(firstRow) * dim, dim, rows - firstRow, block.keys, width, dim, width,
                     scores + std::int64_t(firstRow) * width, width);
        for (int row = firstRow; row < rows; ++row) {
            float* s = scores + std::int64_t(row) * width;
            const int position = args.firstPosition + begin + row / group;
            const int visible = std::min(width, position - b * width + 1);
            if (args.window > 0) HideBefore(std::min(width, position - args.window + 1 - b * width), s);
            const float blockMax = ScaleBiasMask(s, width, args.scale, args.biasScale != 0.f ? block.bias : nullptr,
                                                 args.biasScale, visible);
            RaiseMaximum(blockMax, maxima[row], sums[row], out + std::int64_t(row) * valueDim, valueDim);
            sums[row] += ExpSum(s, width, maxima[row]);
        }
        const int depth = std::min(width, args.firstPosition + end - b * width); // weights past a row's position are 0
        addMultipliedRows(scores + std::int64_t(firstRow) * width, width, rows - firstRow,
                          ValuesOf(block, depth, valueDim, width, scratch.values), valueDim, depth, valueDim,
                          out + std::int64_t(firstRow) * valueDim, valueDim);
    }
    for (int row = 0; row < rows; ++row) {
        const int token = begin + row / group, head = kvHead * group + row % group;
        const float factor = 1.f / sums[row];
        if (args.maxima != nullptr) {
            const std::int64_t at = std::int64_t(token) * args.kvHeads * group + head;
            args.maxima[at] = maxima[row];
            args.sums[at] = sums[row];
        }
        float* to = args.out + std::int64_t(token) * args.outStride + std::int64_t(head) * valueDim;
        for (int c = 0; c < valueDim; ++c) to[c] = out[std::int64_t(row) * valueDim + c] * factor;
    }
}

void ReceivedByBlock(const PrefillAttentionArgs& args, int kvHead, int block, double* const* received,
                     AttentionScratch& scratch) {
    constexpr int kTogether = 64; // queries in one product with the keys
    const int group = args.group, dim = args.dim, width = args.blockSize, firstKey = block * width;
    const KvBlockView& view = args.blocks[kvHead][block];
    if (scratch.scores.size() < std::size_t(kTogether * width)) scratch.scores.resize(std::size_t(kTogether * width));
    float* scores = scratch.scores.data();
    // Queries before the block do not see it. Queries whose window begins behind it do not see it either.
    const int first = std::max(0, firstKey - args.firstPosition);
    const int last =
        args.window > 0 ? std::min(args.n, firstKey + width - 1 + args.window - args.firstPosition) : args.n;
    for (int h = 0; h < group; ++h) {
        const int head = kvHead * group + h;
        double* sums = received[head] + firstKey;
        for (int begin = first; begin < last; begin += kTogether) {
            const int end = std::min(last, begin + kTogether);
            multiplyRows(args.q + std::int64_t(begin) * args.qStride + std::int64_t(head) * dim, args.qStride,
                         end - begin, view.keys, width, dim, width, scores, width);
            for (int token = begin; token < end; ++token) {
                float* s = scores + std::int64_t(token - begin) * width;
                const int position = args.firstPosition + token, visible = std::min(width, position - firstKey + 1);
                if (args.window > 0) HideBefore(std::min(width, position - args.window + 1 - firstKey), s);
                ScaleBiasMask(s, width, args.scale, args.biasScale != 0.f ? view.bias : nullptr, args.biasScale,
                              visible);
                const std::int64_t at = std::int64_t(token) * args.kvHeads * group + head;
                ExpSum(s, width, args.maxima[at]);
                const float factor = 1.f / args.sums[at];
                for (int key = 0; key < visible; ++key) sums[key] += double(s[key] * factor);
            }
        }
    }
}

void GroupScoreItemImpl(const GroupScoreArgs& args, const GroupScoreItem& item, AttentionScratch& scratch) {
    const int tile = args.tileSize, tiles = (item.windows + tile - 1) / tile;
    const std::int64_t columns = std::int64_t(tiles) * tile;
    if (scratch.scores.size() < std::size_t(args.group * columns))
        scratch.scores.resize(std::size_t(args.group * columns));
    float* scores = scratch.scores.data();
    for (int t = item.first / tile; t < tiles; ++t)
        multiplyRows(item.q, args.qStride, args.group, item.tiles[t], tile, args.dim, tile,
                     scores + std::int64_t(t) * tile, columns);
    std::fill_n(item.scores, item.windows, 0.f);
    for (int h = 0; h < args.group; ++h) {
        float* s = scores + h * columns + item.first;
        const int visible = item.windows - item.first;
        for (int c = 0; c < visible; ++c) s[c] *= args.scale;
        const float sum = ExpSum(s, visible, MaxOf(s, visible));
        const float factor = 1.f / sum;
        for (int c = 0; c < visible; ++c) item.scores[item.first + c] += s[c] * factor;
    }
}

void RangeBoundItemImpl(const RangeBoundArgs& args, const RangeBoundItem& item) {
    const D d;
    for (int b = 0; b < item.blocks; ++b) {
        const float* low = item.ranges + std::int64_t(b) * 2 * args.dim;
        const float* high = low + args.dim;
        float result = args.reduce == GroupReduce::Max ? kMinusInfinity : 0.f;
        for (int h = 0; h < args.group; ++h) {
            const float* q = item.q + std::int64_t(h) * args.qStride;
            V sum = hn::Zero(d);
            int c = 0;
            for (; c + kLanes <= args.dim; c += kLanes) {
                const V value = hn::LoadU(d, q + c);
                sum = hn::Add(sum,
                              hn::Max(hn::Mul(value, hn::LoadU(d, low + c)), hn::Mul(value, hn::LoadU(d, high + c))));
            }
            float bound = hn::GetLane(hn::SumOfLanes(d, sum));
            for (; c < args.dim; ++c) bound += std::max(q[c] * low[c], q[c] * high[c]);
            result = args.reduce == GroupReduce::Max ? std::max(result, bound) : result + bound;
        }
        item.scores[b] = result;
    }
}

} // namespace kvscope::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvscope::cpu {

HWY_EXPORT(AttendBlocks);
HWY_EXPORT(PrefillTile);
HWY_EXPORT(ReceivedByBlock);
HWY_EXPORT(GroupScoreItemImpl);
HWY_EXPORT(RangeBoundItemImpl);

void attendBlocks(const AttentionArgs& args, const AttentionItem& item, int first, int last, float* out,
                  std::int64_t outStride, float* maxima, float* sums, AttentionScratch& scratch) {
    HWY_DYNAMIC_DISPATCH(AttendBlocks)(args, item, first, last, out, outStride, maxima, sums, scratch);
}
void prefillTile(const PrefillAttentionArgs& args, int kvHead, int begin, int end, AttentionScratch& scratch) {
    HWY_DYNAMIC_DISPATCH(PrefillTile)(args, kvHead, begin, end, scratch);
}
void receivedByBlock(const PrefillAttentionArgs& args, int kvHead, int block, double* const* received,
                     AttentionScratch& scratch) {
    HWY_DYNAMIC_DISPATCH(ReceivedByBlock)(args, kvHead, block, received, scratch);
}
void groupScoreItem(const GroupScoreArgs& args, const GroupScoreItem& item, AttentionScratch& scratch) {
    HWY_DYNAMIC_DISPATCH(GroupScoreItemImpl)(args, item, scratch);
}
void rangeBoundItem(const RangeBoundArgs& args, const RangeBoundItem& item) {
    HWY_DYNAMIC_DISPATCH(RangeBoundItemImpl)(args, item);
}

} // namespace kvscope::cpu
#endif
