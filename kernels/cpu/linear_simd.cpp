// Norms and linear layers. Decoding reads every weight for few inputs, so it is written for memory bandwidth; prefill
// multiplies many inputs with tiles of weights that are packed first and summed in registers.
#include "kernels/cpu/extent_check.h"
#include "kernels/cpu/quantised.h"
#include "kernels/cpu/simd.h"
#include "kernels/half.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/linear_simd.cpp"
#include <hwy/foreach_target.h> // must come before highway.h
#include <hwy/highway.h>

#include "kernels/cpu/half_simd.h"

#include <hwy/contrib/math/math-inl.h>

HWY_BEFORE_NAMESPACE();
namespace kvscope::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;
constexpr int kLanes = int(hn::MaxLanes(D()));
// Inputs of a prefill tile. Their sums fill most registers: 12 x 2 of 32 with AVX-512, 6 x 2 of 16 otherwise.
constexpr int kTileRows = kLanes == 16 ? 12 : 6;

void RmsNormRow(const float* HWY_RESTRICT x, const float* HWY_RESTRICT weight, float eps, int n,
                float* HWY_RESTRICT y) {
    const D d;
    V a = hn::Zero(d), b = hn::Zero(d);
    int i = 0;
    for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
        const V u = hn::LoadU(d, x + i), v = hn::LoadU(d, x + i + kLanes);
        a = hn::MulAdd(u, u, a);
        b = hn::MulAdd(v, v, b);
    }
    float sum = hn::GetLane(hn::SumOfLanes(d, hn::Add(a, b)));
    for (; i < n; ++i) sum += x[i] * x[i];
    const float scale = 1.f / std::sqrt(sum / float(n) + eps);
    const V s = hn::Set(d, scale);
    for (i = 0; i + kLanes <= n; i += kLanes)
        hn::StoreU(hn::Mul(hn::Mul(hn::LoadU(d, x + i), s), hn::LoadU(d, weight + i)), d, y + i);
    for (; i < n; ++i) y[i] = x[i] * scale * weight[i];
}

std::int64_t ArrangedStride(DType, int cols) { return (std::int64_t(cols) + 15) / 16 * 16; }

void ArrangeInput(DType type, const float* HWY_RESTRICT x, int cols, float* HWY_RESTRICT out) {
    const int whole = cols / (2 * kLanes) * (2 * kLanes);
    int i = 0;
    if (type == DType::BF16)
        for (; i < whole; i += 2 * kLanes)
            for (int lane = 0; lane < kLanes; ++lane)
                out[i + lane] = x[i + 2 * lane], out[i + kLanes + lane] = x[i + 2 * lane + 1];
    for (; i < cols; ++i) out[i] = x[i];
}

/// Loads two vectors of weights in the order that matches two vectors of arranged inputs.
template <DType kType> HWY_INLINE void LoadWeights(const char* HWY_RESTRICT at, V& first, V& second) {
    const D d;
    if constexpr (kType == DType::F32) {
        first = hn::LoadU(d, reinterpret_cast<const float*>(at));
        second = hn::LoadU(d, reinterpret_cast<const float*>(at) + kLanes);
    } else if constexpr (kType == DType::BF16) {
        const hn::RebindToUnsigned<D> du;
        const auto pairs = hn::LoadU(du, reinterpret_cast<const std::uint32_t*>(at));
        first = hn::BitCast(d, hn::ShiftLeft<16>(pairs));
        second = hn::BitCast(d, hn::And(pairs, hn::Set(du, 0xFFFF0000u)));
    } else {
        first = LoadHalves(d, at);
        second = LoadHalves(d, at + 2 * kLanes);
    }
}

HWY_INLINE void StoreOutput(const LinearTarget& target, std::int64_t row, int input, float value) {
    float& y = target.y[std::int64_t(input) * target.stride + row];
    if (target.bias) value += target.bias[row];
    y = target.accumulate ? y + value : value;
}

/// Rows computed together: as many as leave registers for rows x inputs sums, two vectors of weights and the inputs.
constexpr int RowsFor(int inputs) { return kLanes == 16 || inputs <= 3 ? 4 : 2; }

/// How far ahead weights are fetched into the second-level cache. Reading several rows side by side hides from the
/// hardware that memory is read in order, which halves the bandwidth for rows of 1 to 2 KiB. Fetching in the order of
/// addresses restores it.
constexpr std::int64_t kAheadBytes = 16 << 10;

template <DType kType, int kRows, int kInputs>
void RowsByInputs(const LinearTarget& target, const float* HWY_RESTRICT x, std::int64_t xStride, int firstInput,
                  std::int64_t row) {
    const D d;
    const int cols = target.weight.cols;
    constexpr int kSize = kType == DType::F32 ? 4 : 2;
    // With few sums, each is split in two, so that enough multiply-adds are under way at once to hide their latency.
    // Many sums need no split, and would not fit the registers with one.
    constexpr int kChains = kRows * kInputs <= 4 ? 2 : 1;
    constexpr int kStepBytes = kRows * 2 * kLanes * kSize;
    const std::int64_t rowBytes = std::int64_t(cols) * kSize;
    const char* base = static_cast<const char*>(target.weight.data) + row * rowBytes;
    const char* ahead = base + std::max(kAheadBytes, kRows * rowBytes);
    V sums[kRows][kInputs][kChains];
    for (int r = 0; r < kRows; ++r)
        for (int i = 0; i < kInputs; ++i)
            for (int chain = 0; chain < kChains; ++chain) sums[r][i][chain] = hn::Zero(d);
    int c = 0;
    for (; c + 2 * kLanes <= cols; c += 2 * kLanes) {
        for (int line = 0; line < kStepBytes; line += 64) __builtin_prefetch(ahead + line, 0, 2);
        ahead += kStepBytes;
        V first[kInputs], second[kInputs];
        for (int i = 0; i < kInputs; ++i) {
            first[i] = hn::LoadU(d, x + i * xStride + c);
            second[i] = hn::LoadU(d, x + i * xStride + c + kLanes);
        }
        for (int r = 0; r < kRows; ++r) {
            V a, b;
            LoadWeights<kType>(base + r * rowBytes + std::int64_t(c) * kSize, a, b);
            for (int i = 0; i < kInputs; ++i) {
                sums[r][i][0] = hn::MulAdd(a, first[i], sums[r][i][0]);
                sums[r][i][kChains - 1] = hn::MulAdd(b, second[i], sums[r][i][kChains - 1]);
            }
        }
    }
    for (int r = 0; r < kRows; ++r)
        for (int i = 0; i < kInputs; ++i) {
            const V total = kChains == 1 ? sums[r][i][0] : hn::Add(sums[r][i][0], sums[r][i][kChains - 1]);
            float sum = hn::GetLane(hn::SumOfLanes(d, total));
            for (int k = c; k < cols; ++k)
                sum += elementAt(target.weight.data, kType, (row + r) * cols + k) * x[i * xStride + k];
            StoreOutput(target, row + r, firstInput + i, sum);
        }
}

template <DType kType, int kRows>
void RowsByUpToFour(const LinearTarget& target, const float* x, std::int64_t stride, int input, int inputs,
                    std::int64_t row) {
    const float* from = x + input * stride;
    switch (inputs) {
    case 1:
        return RowsByInputs<kType, kRows, 1>(target, from, stride, input, row);
    case 2:
        return RowsByInputs<kType, kRows, 2>(target, from, stride, input, row);
    case 3:
        return RowsByInputs<kType, kRows, 3>(target, from, stride, input, row);
    default:
        return RowsByInputs<kType, kRows, 4>(target, from, stride, input, row);
    }
}

template <DType kType>
void SmallBatch(const LinearTarget& target, const float* x, int n, std::int64_t begin, std::int64_t end) {
    const std::int64_t stride = ArrangedStride(kType, target.weight.cols);
    // The outer loop goes over rows and the inner one over sets of inputs, so that the second set of four inputs finds
    // the weights in the cache.
    std::int64_t row = begin;
    for (const int rows = RowsFor(std::min(n, 4)); row + rows <= end; row += rows)
        for (int i = 0; i < n; i += 4) {
            if (rows == 4)
                RowsByUpToFour<kType, 4>(target, x, stride, i, std::min(4, n - i), row);
            else
                RowsByUpToFour<kType, 2>(target, x, stride, i, std::min(4, n - i), row);
        }
    for (; row < end; ++row)
        for (int i = 0; i < n; i += 4) RowsByUpToFour<kType, 1>(target, x, stride, i, std::min(4, n - i), row);
}

void SmallBatchRows(const LinearTarget& target, const float* x, int n, std::int64_t begin, std::int64_t end) {
    switch (target.weight.type) {
    case DType::F32:
        return SmallBatch<DType::F32>(target, x, n, begin, end);
    case DType::F16:
        return SmallBatch<DType::F16>(target, x, n, begin, end);
    case DType::BF16:
        return SmallBatch<DType::BF16>(target, x, n, begin, end);
    default:
        return; // quantised types are multiplied in quantised.h
    }
}

void WidenRow(DType type, const void* HWY_RESTRICT from, int n, float* HWY_RESTRICT out) {
    const D d;
    const auto* raw = static_cast<const char*>(from);
    int i = 0;
    if (n <= 0) return;
    if (type == DType::F32) {
        std::memcpy(out, from, std::size_t(n) * 4);
        i = n;
    } else if (type == DType::BF16) {
        const hn::Rebind<hwy::bfloat16_t, D> db;
        for (; i + kLanes <= n; i += kLanes)
            hn::StoreU(hn::PromoteTo(d, hn::LoadU(db, reinterpret_cast<const hwy::bfloat16_t*>(raw + 2 * i))), d,
                       out + i);
    } else {
        for (; i + kLanes <= n; i += kLanes) hn::StoreU(LoadHalves(d, raw + 2 * i), d, out + i);
    }
    for (; i < n; ++i) out[i] = elementAt(from, type, i);
}

int PanelRows() { return 2 * kLanes; }

#if HWY_TARGET != HWY_SCALAR // the scalar target has one lane, so there is nothing to transpose
/// Loads four consecutive floats of each of the rows 0, 4, 8, ... into one 128-bit block each.
template <class DV> HWY_INLINE hn::Vec<DV> EveryFourthRow(DV d, const float* from, std::int64_t stride) {
    if constexpr (hn::MaxLanes(DV()) <= 4) {
        return hn::LoadU(d, from);
    } else {
        const hn::Half<DV> half;
        constexpr int kHalf = int(hn::MaxLanes(DV())) / 2;
        return hn::Combine(d, EveryFourthRow(half, from + kHalf * stride, stride), EveryFourthRow(half, from, stride));
    }
}

/// to[k, 0..lanes) = column k of `from` for lanes rows, k < 4.
HWY_INLINE void TransposeFourColumns(const float* from, std::int64_t fromStride, float* HWY_RESTRICT to,
                                     std::int64_t toStride) {
    const D d;
    const hn::RepartitionToWide<D> wide;
    const V r0 = EveryFourthRow(d, from, fromStride), r1 = EveryFourthRow(d, from + fromStride, fromStride),
            r2 = EveryFourthRow(d, from + 2 * fromStride, fromStride),
            r3 = EveryFourthRow(d, from + 3 * fromStride, fromStride);
    const auto low01 = hn::BitCast(wide, hn::InterleaveLower(d, r0, r1)),
               high01 = hn::BitCast(wide, hn::InterleaveUpper(d, r0, r1)),
               low23 = hn::BitCast(wide, hn::InterleaveLower(d, r2, r3)),
               high23 = hn::BitCast(wide, hn::InterleaveUpper(d, r2, r3));
    hn::StoreU(hn::BitCast(d, hn::InterleaveLower(wide, low01, low23)), d, to);
    hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(wide, low01, low23)), d, to + toStride);
    hn::StoreU(hn::BitCast(d, hn::InterleaveLower(wide, high01, high23)), d, to + 2 * toStride);
    hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(wide, high01, high23)), d, to + 3 * toStride);
}
#endif

void PackPanel(const WeightMatrix& weight, int begin, int k0, int depth, float* HWY_RESTRICT panel) {
    constexpr int kPanel = 2 * kLanes, kColumns = 64;
    const int rows = std::min(kPanel, weight.rows - begin), size = bytesOf(weight.type);
    const auto bytes = std::int64_t(rowBytes(weight.type, weight.cols));
    const char* base = static_cast<const char*>(weight.data) + begin * bytes;
    // Rows are converted to float in a small buffer and transposed from there.
    HWY_ALIGN float stage[kPanel * kColumns];
    if (rows < kPanel) std::memset(stage, 0, sizeof(stage));
    for (int from = 0; from < depth; from += kColumns) {
        const int columns = std::min(kColumns, depth - from);
        for (int r = 0; r < rows; ++r) {
            if (isQuantised(weight.type)) {
                dequantise(weight.type, base + r * bytes, k0 + from, columns, stage + r * kColumns);
                continue;
            }
            const char* at = base + r * bytes + std::int64_t(k0 + from) * size;
            for (int line = 0; line < kColumns * size; line += 64)
                __builtin_prefetch(at + kColumns * size + line, 0, 2);
            WidenRow(weight.type, at, columns, stage + r * kColumns);
        }
        float* HWY_RESTRICT out = panel + std::size_t(from) * kPanel;
        int k = 0;
#if HWY_TARGET != HWY_SCALAR
        for (; k + 4 <= columns; k += 4)
            for (int half = 0; half < kPanel; half += kLanes)
                TransposeFourColumns(stage + half * kColumns + k, kColumns, out + std::size_t(k) * kPanel + half,
                                     kPanel);
#endif
        for (; k < columns; ++k)
            for (int r = 0; r < kPanel; ++r) out[std::size_t(k) * kPanel + std::size_t(r)] = stage[r * kColumns + k];
    }
}

template <int kRows>
void Tile(const float* HWY_RESTRICT x, std::int64_t xStride, const float* HWY_RESTRICT panel, int depth,
          float* HWY_RESTRICT y, std::int64_t yStride, int outputs, bool add) {
    const D d;
    V left[kRows], right[kRows];
    for (int r = 0; r < kRows; ++r) left[r] = right[r] = hn::Zero(d);
    for (int k = 0; k < depth; ++k) {
        const V a = hn::LoadU(d, panel + std::size_t(k) * 2 * kLanes),
                b = hn::LoadU(d, panel + std::size_t(k) * 2 * kLanes + kLanes);
        for (int r = 0; r < kRows; ++r) {
            const V value = hn::Set(d, x[r * xStride + k]);
            left[r] = hn::MulAdd(value, a, left[r]);
            right[r] = hn::MulAdd(value, b, right[r]);
        }
    }
    for (int r = 0; r < kRows; ++r) {
        float* out = y + r * yStride;
        if (outputs == 2 * kLanes) {
            if (add)
                left[r] = hn::Add(left[r], hn::LoadU(d, out)), right[r] = hn::Add(right[r], hn::LoadU(d, out + kLanes));
            hn::StoreU(left[r], d, out);
            hn::StoreU(right[r], d, out + kLanes);
        } else {
            HWY_ALIGN float both[2 * kLanes];
            hn::Store(left[r], d, both);
            hn::Store(right[r], d, both + kLanes);
            for (int i = 0; i < outputs; ++i) out[i] = add ? out[i] + both[i] : both[i];
        }
    }
}

template <int kRows = kTileRows>
HWY_INLINE void TileOf(int rows, const float* x, std::int64_t xStride, const float* panel, int depth, float* y,
                       std::int64_t yStride, int outputs, bool add) {
    if constexpr (kRows > 1) {
        if (rows < kRows) return TileOf<kRows - 1>(rows, x, xStride, panel, depth, y, yStride, outputs, add);
    }
    Tile<kRows>(x, xStride, panel, depth, y, yStride, outputs, add);
}

void PanelMultiply(const float* x, std::int64_t xStride, int n, const float* panel, int depth, float* y,
                   std::int64_t yStride, int outputs, bool add) {
    // All tiles have about the same height: a last tile of a single row would read the whole panel for little work.
    for (int row = 0, tiles = (n + kTileRows - 1) / kTileRows; tiles > 0; --tiles) {
        const int rows = (n - row) / tiles;
        TileOf(rows, x + row * xStride, xStride, panel, depth, y + row * yStride, yStride, outputs, add);
        row += rows;
    }
}

void SiluMultiply(const float* HWY_RESTRICT gate, const float* HWY_RESTRICT up, std::int64_t n,
                  float* HWY_RESTRICT out) {
    const D d;
    const V one = hn::Set(d, 1.f), most = hn::Set(d, 100.f); // exp(100) is infinite; hn::Exp is only valid up to 104
    std::int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) {
        const V g = hn::LoadU(d, gate + i);
        const V silu = hn::Div(g, hn::Add(one, hn::Exp(d, hn::Min(hn::Neg(g), most))));
        hn::StoreU(hn::Mul(silu, hn::LoadU(d, up + i)), d, out + i);
    }
    for (; i < n; ++i) out[i] = gate[i] / (1.f + std::exp(-gate[i])) * up[i];
}

void BoundedGate(const float* HWY_RESTRICT gate, const float* HWY_RESTRICT up, float slope, float limit, std::int64_t n,
                 float* HWY_RESTRICT out) {
    const D d;
    const V one = hn::Set(d, 1.f), bound = hn::Set(d, limit), lowest = hn::Set(d, -limit), by = hn::Set(d, -slope),
            most = hn::Set(d, 100.f); // as in SiluMultiply
    std::int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) {
        const V g = hn::Min(hn::LoadU(d, gate + i), bound);
        const V u = hn::Max(hn::Min(hn::LoadU(d, up + i), bound), lowest);
        const V part = hn::Div(g, hn::Add(one, hn::Exp(d, hn::Min(hn::Mul(by, g), most))));
        hn::StoreU(hn::Mul(part, hn::Add(u, one)), d, out + i);
    }
    for (; i < n; ++i) {
        const float g = std::min(gate[i], limit), u = std::clamp(up[i], -limit, limit);
        out[i] = g / (1.f + std::exp(-slope * g)) * (u + 1.f);
    }
}

const char* TargetName() { return hwy::TargetName(HWY_TARGET); }

} // namespace kvscope::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvscope::cpu {

HWY_EXPORT(RmsNormRow);
HWY_EXPORT(ArrangedStride);
HWY_EXPORT(ArrangeInput);
HWY_EXPORT(SmallBatchRows);
HWY_EXPORT(WidenRow);
HWY_EXPORT(PanelRows);
HWY_EXPORT(PackPanel);
HWY_EXPORT(PanelMultiply);
HWY_EXPORT(SiluMultiply);
HWY_EXPORT(BoundedGate);
HWY_EXPORT(TargetName);

std::string instructionSet() { return HWY_DYNAMIC_DISPATCH(TargetName)(); }
void rmsNormRow(const float* x, const float* weight, float eps, int n, float* y) {
    checkExtent(x, n);
    checkExtent(weight, n);
    checkExtent(y, n, true);
    HWY_DYNAMIC_DISPATCH(RmsNormRow)(x, weight, eps, n, y);
}
std::int64_t arrangedStride(DType type, int cols) { return HWY_DYNAMIC_DISPATCH(ArrangedStride)(type, cols); }
void arrangeInput(DType type, const float* x, int cols, float* arranged) {
    checkExtent(x, cols);
    checkExtent(arranged, cols, true);
    HWY_DYNAMIC_DISPATCH(ArrangeInput)(type, x, cols, arranged);
}
void smallBatchRows(const LinearTarget& target, const float* x, int n, std::int64_t begin, std::int64_t end) {
    const std::int64_t stride = arrangedStride(target.weight.type, target.weight.cols), rows = end - begin;
    const auto row = std::int64_t(rowBytes(target.weight.type, target.weight.cols));
    checkExtent(static_cast<const char*>(target.weight.data) + begin * row, rows * row);
    if (target.bias) checkExtent(target.bias + begin, rows);
    checkRows(x, n, stride, target.weight.cols);
    checkRows(target.y + begin, n, target.stride, rows, true);
    HWY_DYNAMIC_DISPATCH(SmallBatchRows)(target, x, n, begin, end);
}
void widenRow(DType type, const void* from, int n, float* out) {
    checkExtent(static_cast<const char*>(from), std::int64_t(n) * bytesOf(type));
    checkExtent(out, n, true);
    HWY_DYNAMIC_DISPATCH(WidenRow)(type, from, n, out);
}
int panelRows() { return HWY_DYNAMIC_DISPATCH(PanelRows)(); }
void packPanel(const WeightMatrix& weight, int begin, int k0, int depth, float* panel) {
    const auto row = std::int64_t(rowBytes(weight.type, weight.cols));
    checkExtent(static_cast<const char*>(weight.data) + begin * row, std::min(panelRows(), weight.rows - begin) * row);
    checkExtent(panel, std::int64_t(depth) * panelRows(), true);
    HWY_DYNAMIC_DISPATCH(PackPanel)(weight, begin, k0, depth, panel);
}
void panelMultiply(const float* x, std::int64_t xStride, int n, const float* panel, int depth, float* y,
                   std::int64_t yStride, int outputs, bool add) {
    checkExtent(panel, std::int64_t(depth) * panelRows());
    checkRows(x, n, xStride, depth);
    checkRows(y, n, yStride, outputs, true);
    HWY_DYNAMIC_DISPATCH(PanelMultiply)(x, xStride, n, panel, depth, y, yStride, outputs, add);
}
void siluMultiply(const float* gate, const float* up, std::int64_t n, float* out) {
    checkExtent(gate, n);
    checkExtent(up, n);
    checkExtent(out, n, true);
    HWY_DYNAMIC_DISPATCH(SiluMultiply)(gate, up, n, out);
}
void boundedGate(const float* gate, const float* up, float slope, float limit, std::int64_t n, float* out) {
    checkExtent(gate, n);
    checkExtent(up, n);
    checkExtent(out, n, true);
    HWY_DYNAMIC_DISPATCH(BoundedGate)(gate, up, slope, limit, n, out);
}

} // namespace kvscope::cpu
#endif
