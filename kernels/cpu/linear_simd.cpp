// Norms and linear layers: bandwidth-bound rows for decode, a packed register tile for prefill.
#include "kernels/base/half.h"
#include "kernels/cpu/simd.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/linear_simd.cpp"
// Arrays of vectors need a fixed vector length.
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#include <hwy/foreach_target.h> // must come before highway.h
#include <hwy/highway.h>

#include <hwy/contrib/math/math-inl.h>

HWY_BEFORE_NAMESPACE();
namespace kvscope::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;
constexpr int kLanes = int(hn::MaxLanes(D()));
// Accumulators fill the register file: 12 x 2 of 32 registers with AVX-512, 6 x 2 of 16 otherwise.
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

/// Two vectors of weights that match two vectors of arranged input.
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
        const hn::Rebind<hwy::float16_t, D> dh;
        first = hn::PromoteTo(d, hn::LoadU(dh, reinterpret_cast<const hwy::float16_t*>(at)));
        second = hn::PromoteTo(d, hn::LoadU(dh, reinterpret_cast<const hwy::float16_t*>(at) + kLanes));
    }
}

HWY_INLINE void StoreOutput(const LinearTarget& target, std::int64_t row, int input, float value) {
    float& y = target.y[std::int64_t(input) * target.stride + row];
    if (target.bias) value += target.bias[row];
    y = target.accumulate ? y + value : value;
}

template <DType kType, int kRows, int kInputs>
void RowsByInputs(const LinearTarget& target, const float* HWY_RESTRICT x, std::int64_t xStride, int firstInput,
                  std::int64_t row) {
    const D d;
    const int cols = target.weight.cols;
    constexpr int kSize = kType == DType::F32 ? 4 : 2;
    const std::int64_t rowBytes = std::int64_t(cols) * kSize;
    const char* base = static_cast<const char*>(target.weight.data) + row * rowBytes;
    V first[kRows][kInputs], second[kRows][kInputs];
    for (int r = 0; r < kRows; ++r)
        for (int i = 0; i < kInputs; ++i) first[r][i] = second[r][i] = hn::Zero(d);
    int c = 0;
    for (; c + 2 * kLanes <= cols; c += 2 * kLanes) {
        V even[kInputs], odd[kInputs];
        for (int i = 0; i < kInputs; ++i) {
            even[i] = hn::LoadU(d, x + i * xStride + c);
            odd[i] = hn::LoadU(d, x + i * xStride + c + kLanes);
        }
        for (int r = 0; r < kRows; ++r) {
            V a, b;
            LoadWeights<kType>(base + r * rowBytes + std::int64_t(c) * kSize, a, b);
            for (int i = 0; i < kInputs; ++i) {
                first[r][i] = hn::MulAdd(a, even[i], first[r][i]);
                second[r][i] = hn::MulAdd(b, odd[i], second[r][i]);
            }
        }
    }
    for (int r = 0; r < kRows; ++r)
        for (int i = 0; i < kInputs; ++i) {
            float sum = hn::GetLane(hn::SumOfLanes(d, hn::Add(first[r][i], second[r][i])));
            for (int k = c; k < cols; ++k)
                sum += elementAt(target.weight.data, kType, (row + r) * cols + k) * x[i * xStride + k];
            StoreOutput(target, row + r, firstInput + i, sum);
        }
}

template <DType kType>
void SmallBatch(const LinearTarget& target, const float* x, int n, std::int64_t begin, std::int64_t end) {
    const std::int64_t stride = ArrangedStride(kType, target.weight.cols);
    std::int64_t row = begin;
    if (n == 1) {
        for (; row + 4 <= end; row += 4) RowsByInputs<kType, 4, 1>(target, x, stride, 0, row);
        for (; row < end; ++row) RowsByInputs<kType, 1, 1>(target, x, stride, 0, row);
        return;
    }
    for (; row < end; row += 2) {
        const bool pair = row + 2 <= end;
        int i = 0;
        for (; i + 4 <= n; i += 4) {
            if (pair)
                RowsByInputs<kType, 2, 4>(target, x + i * stride, stride, i, row);
            else
                RowsByInputs<kType, 1, 4>(target, x + i * stride, stride, i, row);
        }
        for (; i < n; ++i) {
            if (pair)
                RowsByInputs<kType, 2, 1>(target, x + i * stride, stride, i, row);
            else
                RowsByInputs<kType, 1, 1>(target, x + i * stride, stride, i, row);
        }
    }
}

void SmallBatchRows(const LinearTarget& target, const float* x, int n, std::int64_t begin, std::int64_t end) {
    switch (target.weight.type) {
    case DType::F32:
        return SmallBatch<DType::F32>(target, x, n, begin, end);
    case DType::F16:
        return SmallBatch<DType::F16>(target, x, n, begin, end);
    case DType::BF16:
        return SmallBatch<DType::BF16>(target, x, n, begin, end);
    }
}

int PanelRows() { return 2 * kLanes; }

void PackPanel(const WeightMatrix& weight, int begin, int k0, int depth, float* HWY_RESTRICT panel) {
    constexpr int kPanel = 2 * kLanes;
    const int rows = std::min(kPanel, weight.rows - begin);
    if (rows < kPanel) std::fill_n(panel, std::size_t(depth) * kPanel, 0.f);
    // Blocks of 16 columns keep the strided writes of one block in the first-level cache.
    for (int from = 0; from < depth; from += 16) {
        const int to = std::min(depth, from + 16);
        for (int r = 0; r < rows; ++r) {
            const std::int64_t at = std::int64_t(begin + r) * weight.cols + k0;
            for (int k = from; k < to; ++k)
                panel[std::size_t(k) * kPanel + std::size_t(r)] = elementAt(weight.data, weight.type, at + k);
        }
    }
}

template <int kRows>
HWY_INLINE void Tile(const float* HWY_RESTRICT x, std::int64_t xStride, const float* HWY_RESTRICT panel, int depth,
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

void PanelMultiply(const float* x, std::int64_t xStride, int n, const float* panel, int depth, float* y,
                   std::int64_t yStride, int outputs, bool add) {
    int row = 0;
    for (; row + kTileRows <= n; row += kTileRows)
        Tile<kTileRows>(x + row * xStride, xStride, panel, depth, y + row * yStride, yStride, outputs, add);
    for (; row + 4 <= n; row += 4)
        Tile<4>(x + row * xStride, xStride, panel, depth, y + row * yStride, yStride, outputs, add);
    for (; row < n; ++row) Tile<1>(x + row * xStride, xStride, panel, depth, y + row * yStride, yStride, outputs, add);
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

const char* TargetName() { return hwy::TargetName(HWY_TARGET); }

} // namespace kvscope::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvscope::cpu {

HWY_EXPORT(RmsNormRow);
HWY_EXPORT(ArrangedStride);
HWY_EXPORT(ArrangeInput);
HWY_EXPORT(SmallBatchRows);
HWY_EXPORT(PanelRows);
HWY_EXPORT(PackPanel);
HWY_EXPORT(PanelMultiply);
HWY_EXPORT(SiluMultiply);
HWY_EXPORT(TargetName);

std::string instructionSet() { return HWY_DYNAMIC_DISPATCH(TargetName)(); }
void rmsNormRow(const float* x, const float* weight, float eps, int n, float* y) {
    HWY_DYNAMIC_DISPATCH(RmsNormRow)(x, weight, eps, n, y);
}
std::int64_t arrangedStride(DType type, int cols) { return HWY_DYNAMIC_DISPATCH(ArrangedStride)(type, cols); }
void arrangeInput(DType type, const float* x, int cols, float* arranged) {
    HWY_DYNAMIC_DISPATCH(ArrangeInput)(type, x, cols, arranged);
}
void smallBatchRows(const LinearTarget& target, const float* x, int n, std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(SmallBatchRows)(target, x, n, begin, end);
}
int panelRows() { return HWY_DYNAMIC_DISPATCH(PanelRows)(); }
void packPanel(const WeightMatrix& weight, int begin, int k0, int depth, float* panel) {
    HWY_DYNAMIC_DISPATCH(PackPanel)(weight, begin, k0, depth, panel);
}
void panelMultiply(const float* x, std::int64_t xStride, int n, const float* panel, int depth, float* y,
                   std::int64_t yStride, int outputs, bool add) {
    HWY_DYNAMIC_DISPATCH(PanelMultiply)(x, xStride, n, panel, depth, y, yStride, outputs, add);
}
void siluMultiply(const float* gate, const float* up, std::int64_t n, float* out) {
    HWY_DYNAMIC_DISPATCH(SiluMultiply)(gate, up, n, out);
}

} // namespace kvscope::cpu
#endif
