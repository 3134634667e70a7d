#include "kernels/cuda/methods/orthonormal.h"

#include "kernels/cuda/device/common.cuh"
#include "kernels/cuda/device/shared_room.cuh"

#include <algorithm>

namespace kvscope::cuda {
namespace {

constexpr int kThreads = 256;

__device__ inline float drawn(unsigned i) {
    std::uint32_t x = i * 0x9E3779B1u + 0x85EBCA77u;
    x = (x ^ x >> 15) * 0x2C1B3C6Du;
    x = (x ^ x >> 12) * 0x297A2D39u;
    return float(int(x ^ x >> 15)) * 0x1p-31f;
}

__global__ void __launch_bounds__(kThreads) drawKernel(float* to, int count) {
    letNextKernelStart();
    waitForEarlierKernels();
    const int i = int(blockIdx.x) * kThreads + int(threadIdx.x);
    if (i < count) to[i] = drawn(unsigned(i));
}

constexpr int kTile = 16, kDeep = 64; // a thread block makes kTile x kTile products, kDeep channels at a time

/// products[i, j] = x_i x_j for j <= i. Grid (j tiles, i tiles), a thread per product.
__global__ void __launch_bounds__(kTile* kTile) productsKernel(const float* x, int count, int width, double* products) {
    __shared__ float left[kTile][kDeep + 1], right[kTile][kDeep + 1];
    letNextKernelStart();
    waitForEarlierKernels();
    if (blockIdx.x > blockIdx.y) return;
    const int i = int(threadIdx.x) / kTile, j = int(threadIdx.x) % kTile;
    const int firstI = int(blockIdx.y) * kTile, firstJ = int(blockIdx.x) * kTile;
    double sums[4] = {};
    for (int first = 0; first < width; first += kDeep) {
        for (int at = threadIdx.x; at < kTile * kDeep; at += kTile * kTile) {
            const int row = at / kDeep, c = at % kDeep;
            const bool inside = first + c < width;
            left[row][c] = inside && firstI + row < count ? x[std::size_t(firstI + row) * width + first + c] : 0.f;
            right[row][c] = inside && firstJ + row < count ? x[std::size_t(firstJ + row) * width + first + c] : 0.f;
        }
        __syncthreads();
#pragma unroll
        for (int c = 0; c < kDeep; ++c) sums[c % 4] = fma(double(left[i][c]), double(right[j][c]), sums[c % 4]);
        __syncthreads();
    }
    if (firstI + i < count && firstJ + j <= firstI + i)
        products[std::size_t(firstI + i) * count + firstJ + j] = sums[0] + sums[1] + (sums[2] + sums[3]);
}

constexpr int kFactorThreads = 1024, kFactorWarps = kFactorThreads / kWarp;
/// A row counts as lost when less than this share of its square is left after the rows before it have been subtracted:
/// float32 rows are not more exact.
constexpr double kLeastLeft = 1e-13;

__host__ __device__ constexpr std::size_t triangle(int rows) { return std::size_t(rows) * (rows + 1) / 2; }

/// Replaces the lower triangle of `products` by L with L L^T = products. The diagonal gets 1 / L[i, i], or 0 for a lost
/// row. One thread block. Shared memory has the rows' squares and, with kInShared, the triangle.
template <bool kInShared> __global__ void __launch_bounds__(kFactorThreads) factorKernel(double* products, int count) {
    extern __shared__ double squares[];
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
    letNextKernelStart();
    waitForEarlierKernels();
    const auto at = [&](int i, int j) -> double& {
        return kInShared ? squares[count + triangle(i) + j] : products[std::size_t(i) * count + j];
    };
    for (int i = warp; i < count; i += kFactorWarps) {
        if constexpr (kInShared)
            for (int j = lane; j <= i; j += kWarp) at(i, j) = products[std::size_t(i) * count + j];
        if (lane == 0) squares[i] = products[std::size_t(i) * count + i];
    }
    __syncthreads();
    for (int k = 0; k < count; ++k) {
        const double left = at(k, k), inverse = left > kLeastLeft * squares[k] ? rsqrt(left) : 0.0;
        __syncthreads();
        for (int i = k + int(threadIdx.x); i < count; i += kFactorThreads)
            at(i, k) = i == k ? inverse : at(i, k) * inverse;
        __syncthreads();
        for (int i = k + 1 + warp; i < count; i += kFactorWarps) {
            const double mine = at(i, k);
            for (int j = k + 1 + lane; j <= i; j += kWarp) at(i, j) = fma(-mine, at(j, k), at(i, j));
        }
        __syncthreads();
    }
    if constexpr (kInShared)
        for (int i = warp; i < count; i += kFactorWarps)
            for (int j = lane; j <= i; j += kWarp) products[std::size_t(i) * count + j] = at(i, j);
}

constexpr int kPanel = 32, kDivideWarps = 8;

/// Replaces x by L^-1 x. Grid (32 columns). A thread block goes through the rows panel by panel: all warps subtract
/// what the panels before contribute, and one warp solves the panel.
__global__ void __launch_bounds__(kDivideWarps* kWarp)
    divideKernel(float* x, int count, int width, const double* factor, Lost lost) {
    __shared__ double rest[kPanel][kWarp];
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, c = int(blockIdx.x) * kWarp + lane;
    letNextKernelStart();
    waitForEarlierKernels();
    for (int first = 0; first < count; first += kPanel) {
        const int rows = min(kPanel, count - first);
        for (int r = warp; r < rows; r += kDivideWarps) {
            const double* along = factor + std::size_t(first + r) * count;
            double sums[2] = {};
#pragma unroll 4
            for (int j = 0; j < first; j += 2) // a multiple of kPanel
#pragma unroll
                for (int half = 0; half < 2; ++half)
                    if (c < width)
                        sums[half] = fma(along[j + half], double(x[std::size_t(j + half) * width + c]), sums[half]);
            rest[r][lane] = (c < width ? double(x[std::size_t(first + r) * width + c]) : 0.0) - (sums[0] + sums[1]);
        }
        __syncthreads();
        for (int r = 0; warp == 0 && r < rows; ++r) {
            const double* along = factor + std::size_t(first + r) * count + first;
            double value = rest[r][lane];
            for (int j = 0; j < r; ++j) value = fma(-along[j], rest[j][lane], value);
            const double inverse = along[r];
            const float redrawn = lost == Lost::Redrawn ? drawn(unsigned((first + r) * width + c)) : 0.f;
            rest[r][lane] = value * inverse;
            if (c < width) x[std::size_t(first + r) * width + c] = inverse > 0 ? float(value * inverse) : redrawn;
        }
        __syncthreads();
    }
}

} // namespace

void drawRows(const Launch& how, float* x, int count, int width) {
    launch(how, {dim3(unsigned((count * width + kThreads - 1) / kThreads)), dim3(kThreads)}, drawKernel,
           "drawing directions", x, count * width);
}

void orthonormalRows(const Launch& how, float* x, int count, int width, double* products, Lost lost) {
    const unsigned tiles = unsigned((count + kTile - 1) / kTile);
    launch(how, {dim3(tiles, tiles), dim3(kTile * kTile)}, productsKernel, "multiplying directions",
           static_cast<const float*>(x), count, width, products);
    const std::size_t squares = std::size_t(count) * sizeof(double), all = squares + triangle(count) * sizeof(double);
    const bool inShared = all <= sharedRoom(how, factorKernel<true>);
    const auto factor = inShared ? factorKernel<true> : factorKernel<false>;
    allowShared(factor, inShared ? all : squares, "preparing directions");
    launch(how, {dim3(1), dim3(kFactorThreads), inShared ? all : squares}, factor, "separating directions", products,
           count);
    launch(how, {dim3(unsigned((width + kWarp - 1) / kWarp)), dim3(kDivideWarps * kWarp)}, divideKernel,
           "separating directions", x, count, width, static_cast<const double*>(products), lost);
}

} // namespace kvscope::cuda
