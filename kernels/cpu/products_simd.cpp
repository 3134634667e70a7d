// The products of attention: of queries with keys, and of weights with values. Both factors are float32.
#include "kernels/cpu/extent_check.h"
#include "kernels/cpu/simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/products_simd.cpp"
#include <hwy/foreach_target.h> // must come before highway.h
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace kvscope::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;
constexpr int kLanes = int(hn::MaxLanes(D()));
// Rows of a product computed at a time. Their sums fill most registers: 6 x 4 of 32 with AVX-512, 6 x 2 of 16
// otherwise.
constexpr int kRowsAtOnce = 6;
constexpr int kVectorsAtOnce = kLanes == 16 ? 4 : 2;

/// out[r, 0..kVectors*lanes) = sum over c of left[r, c] * right[c, ...]. Numbers of `left` are broadcast to all lanes;
/// vectors of `right` are read once, in the order of memory.
template <int kRows, int kVectors, bool kAdd>
HWY_INLINE void RowsTimesTile(const float* HWY_RESTRICT left, std::int64_t leftStride, const float* HWY_RESTRICT right,
                              std::int64_t rightStride, int depth, float* HWY_RESTRICT out, std::int64_t outStride) {
    const D d;
    V sum[kRows][kVectors];
    for (int r = 0; r < kRows; ++r)
        for (int v = 0; v < kVectors; ++v)
            sum[r][v] = kAdd ? hn::LoadU(d, out + r * outStride + v * kLanes) : hn::Zero(d);
    for (int c = 0; c < depth; ++c) {
        V column[kVectors];
        for (int v = 0; v < kVectors; ++v) column[v] = hn::LoadU(d, right + c * rightStride + v * kLanes);
        for (int r = 0; r < kRows; ++r) {
            const V value = hn::Set(d, left[r * leftStride + c]);
            for (int v = 0; v < kVectors; ++v) sum[r][v] = hn::MulAdd(value, column[v], sum[r][v]);
        }
    }
    for (int r = 0; r < kRows; ++r)
        for (int v = 0; v < kVectors; ++v) hn::StoreU(sum[r][v], d, out + r * outStride + v * kLanes);
}

template <int kVectors, bool kAdd, int kRows = kRowsAtOnce>
HWY_INLINE void UpToRowsAtOnce(int rows, const float* left, std::int64_t leftStride, const float* right,
                               std::int64_t rightStride, int depth, float* out, std::int64_t outStride) {
    if constexpr (kRows > 1) {
        if (rows < kRows)
            return UpToRowsAtOnce<kVectors, kAdd, kRows - 1>(rows, left, leftStride, right, rightStride, depth, out,
                                                             outStride);
    }
    RowsTimesTile<kRows, kVectors, kAdd>(left, leftStride, right, rightStride, depth, out, outStride);
}

template <int kVectors, bool kAdd>
void AllRows(const float* left, std::int64_t leftStride, int rows, const float* right, std::int64_t rightStride,
             int depth, float* out, std::int64_t outStride) {
    // Passes of equal height: a last pass of one row would read all of `right` for a sixth of the work.
    for (int r = 0, passes = (rows + kRowsAtOnce - 1) / kRowsAtOnce; passes > 0; --passes) {
        const int now = (rows - r) / passes;
        UpToRowsAtOnce<kVectors, kAdd>(now, left + r * leftStride, leftStride, right, rightStride, depth,
                                       out + r * outStride, outStride);
        r += now;
    }
}

/// The last columns of a product, which do not fill a vector, because the head's width is no multiple of the vector's.
template <bool kAdd>
void RemainingColumns(const float* left, std::int64_t leftStride, int rows, const float* right,
                      std::int64_t rightStride, int depth, int width, float* out, std::int64_t outStride) {
    for (int r = 0; r < rows; ++r)
        for (int w = 0; w < width; ++w) {
            float sum = kAdd ? out[r * outStride + w] : 0.f;
            for (int c = 0; c < depth; ++c) sum += left[r * leftStride + c] * right[c * rightStride + w];
            out[r * outStride + w] = sum;
        }
}

/// out[rows, width] (+)= left[rows, depth] right[depth, width].
template <bool kAdd>
void Multiply(const float* left, std::int64_t leftStride, int rows, const float* right, std::int64_t rightStride,
              int depth, int width, float* out, std::int64_t outStride) {
    int at = 0;
    for (; at + kVectorsAtOnce * kLanes <= width; at += kVectorsAtOnce * kLanes)
        AllRows<kVectorsAtOnce, kAdd>(left, leftStride, rows, right + at, rightStride, depth, out + at, outStride);
    for (; at + kLanes <= width; at += kLanes)
        AllRows<1, kAdd>(left, leftStride, rows, right + at, rightStride, depth, out + at, outStride);
    if (at < width)
        RemainingColumns<kAdd>(left, leftStride, rows, right + at, rightStride, depth, width - at, out + at, outStride);
}

void MultiplyRows(const float* left, std::int64_t leftStride, int rows, const float* right, std::int64_t rightStride,
                  int depth, int width, float* out, std::int64_t outStride) {
    Multiply<false>(left, leftStride, rows, right, rightStride, depth, width, out, outStride);
}

void AddMultipliedRows(const float* left, std::int64_t leftStride, int rows, const float* right,
                       std::int64_t rightStride, int depth, int width, float* out, std::int64_t outStride) {
    Multiply<true>(left, leftStride, rows, right, rightStride, depth, width, out, outStride);
}

} // namespace kvscope::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvscope::cpu {

HWY_EXPORT(MultiplyRows);
HWY_EXPORT(AddMultipliedRows);

namespace {

/// Checks the extents that a product reads and writes.
void checkProduct(const float* left, std::int64_t leftStride, int rows, const float* right, std::int64_t rightStride,
                  int depth, int width, const float* out, std::int64_t outStride) {
    checkRows(left, rows, leftStride, depth);
    checkRows(right, depth, rightStride, width);
    checkRows(out, rows, outStride, width, true);
}

} // namespace

void multiplyRows(const float* left, std::int64_t leftStride, int rows, const float* right, std::int64_t rightStride,
                  int depth, int width, float* out, std::int64_t outStride) {
    checkProduct(left, leftStride, rows, right, rightStride, depth, width, out, outStride);
    HWY_DYNAMIC_DISPATCH(MultiplyRows)(left, leftStride, rows, right, rightStride, depth, width, out, outStride);
}
void addMultipliedRows(const float* left, std::int64_t leftStride, int rows, const float* right,
                       std::int64_t rightStride, int depth, int width, float* out, std::int64_t outStride) {
    checkProduct(left, leftStride, rows, right, rightStride, depth, width, out, outStride);
    HWY_DYNAMIC_DISPATCH(AddMultipliedRows)(left, leftStride, rows, right, rightStride, depth, width, out, outStride);
}

} // namespace kvscope::cpu
#endif
