#include "kernels/cuda/linear.h"

#include "kernels/cuda/common.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/matrix_library.h"

#include <algorithm>

namespace kvscope::cuda {
namespace {

constexpr int kFewInputs = 16; // up to here a layer is bound by reading its weights
constexpr int kThreads = 256, kWarps = kThreads / kWarp;

__device__ inline float silu(float x) { return x / (1.f + __expf(-x)); }

// ---- One input ------------------------------------------------------------------------------------------------------

struct OneInput {
    const Bf16* w;
    int rows, cols; // rows: outputs, gate and up counted once each
    const float* x; // float input, or null
    const Bf16* xHalf;
    const float* normWeight;
    float normEps;
    float* y;
    bool accumulate;
    const float* bias;
    Bf16* hidden;
    std::uint64_t* mark;
};

/// Eight products of one 16-byte piece of a weight row.
__device__ inline float dot8(const uint4& w, const float4& a, const float4& b, float sum) {
    sum = fmaf(lowHalf(w.x), a.x, sum);
    sum = fmaf(highHalf(w.x), a.y, sum);
    sum = fmaf(lowHalf(w.y), a.z, sum);
    sum = fmaf(highHalf(w.y), a.w, sum);
    sum = fmaf(lowHalf(w.z), b.x, sum);
    sum = fmaf(highHalf(w.z), b.y, sum);
    sum = fmaf(lowHalf(w.w), b.z, sum);
    return fmaf(highHalf(w.w), b.w, sum);
}

/// One warp per output row (a gate row and its up row together). The input is kept in shared memory as two planes of
/// float4, so that lanes reading neighbouring 8-element pieces meet no bank conflict.
template <bool kGated> __global__ void __launch_bounds__(kThreads) oneInput(OneInput a) {
    extern __shared__ float4 planes[];
    __shared__ float partial[kWarps];
    constexpr int kDeep = kGated ? 4 : 8; // 16-byte loads in flight per row
    const int pieces = a.cols / 8, lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    const int outputs = kGated ? a.rows / 2 : a.rows;
    const int stride = gridDim.x * kWarps;
    int row = blockIdx.x * kWarps + warp;
    letNextKernelStart();

    uint4 first[kDeep * (kGated ? 2 : 1)];
    const auto rowStart = [&](int output, int up) {
        const int at = kGated ? output / 8 * 16 + output % 8 + up * 8 : output;
        return reinterpret_cast<const uint4*>(a.w + std::size_t(at) * a.cols);
    };
    const auto fetch = [&](int output, int from, uint4* into) {
#pragma unroll
        for (int up = 0; up < (kGated ? 2 : 1); ++up) {
            const uint4* source = rowStart(output, up);
#pragma unroll
            for (int i = 0; i < kDeep; ++i) {
                const int piece = from + i * kWarp + lane;
                into[up * kDeep + i] = piece < pieces ? loadStreaming(source + piece) : make_uint4(0, 0, 0, 0);
            }
        }
    };
    if (row < outputs) fetch(row, 0, first); // weights do not depend on earlier kernels

    waitForEarlierKernels();
    if (blockIdx.x == 0 && threadIdx.x == 0) stamp(a.mark);
    float4* low = planes;
    float4* high = planes + pieces;
    if (a.x != nullptr) {
        float squares = 0;
        const float4* x4 = reinterpret_cast<const float4*>(a.x);
        for (int i = threadIdx.x; i < pieces; i += kThreads) {
            const float4 p = x4[2 * i], q = x4[2 * i + 1];
            low[i] = p;
            high[i] = q;
            squares += p.x * p.x + p.y * p.y + p.z * p.z + p.w * p.w + q.x * q.x + q.y * q.y + q.z * q.z + q.w * q.w;
        }
        if (a.normWeight != nullptr) {
            squares = warpSum(squares);
            if (lane == 0) partial[warp] = squares;
            __syncthreads();
            float total = 0;
#pragma unroll
            for (int i = 0; i < kWarps; ++i) total += partial[i];
            const float scale = rsqrtf(total / float(a.cols) + a.normEps);
            const float4* n4 = reinterpret_cast<const float4*>(a.normWeight);
            for (int i = threadIdx.x; i < pieces; i += kThreads) {
                float4 p = low[i], q = high[i];
                const float4 u = n4[2 * i], v = n4[2 * i + 1];
                p.x *= u.x * scale, p.y *= u.y * scale, p.z *= u.z * scale, p.w *= u.w * scale;
                q.x *= v.x * scale, q.y *= v.y * scale, q.z *= v.z * scale, q.w *= v.w * scale;
                low[i] = p;
                high[i] = q;
            }
        }
    } else {
        const uint4* x4 = reinterpret_cast<const uint4*>(a.xHalf);
        for (int i = threadIdx.x; i < pieces; i += kThreads) {
            const uint4 p = x4[i];
            low[i] = make_float4(lowHalf(p.x), highHalf(p.x), lowHalf(p.y), highHalf(p.y));
            high[i] = make_float4(lowHalf(p.z), highHalf(p.z), lowHalf(p.w), highHalf(p.w));
        }
    }
    __syncthreads();

    for (; row < outputs; row += stride) {
        float sum = 0, upSum = 0;
        const int next = row + stride;
        for (int from = 0; from < pieces; from += kDeep * kWarp) {
            uint4 following[kDeep * (kGated ? 2 : 1)];
            const int further = from + kDeep * kWarp;
            if (further < pieces)
                fetch(row, further, following);
            else if (next < outputs)
                fetch(next, 0, following);
#pragma unroll
            for (int i = 0; i < kDeep; ++i) {
                const int piece = from + i * kWarp + lane;
                if (piece < pieces) {
                    const float4 p = low[piece], q = high[piece];
                    sum = dot8(first[i], p, q, sum);
                    if (kGated) upSum = dot8(first[kDeep + i], p, q, upSum);
                }
            }
#pragma unroll
            for (int i = 0; i < kDeep * (kGated ? 2 : 1); ++i) first[i] = following[i];
        }
        sum = warpSum(sum);
        if (kGated) upSum = warpSum(upSum);
        if (lane != 0) continue;
        if (kGated) {
            a.hidden[row] = __float2bfloat16(silu(sum) * upSum);
        } else {
            if (a.bias != nullptr) sum += a.bias[row];
            a.y[row] = a.accumulate ? a.y[row] + sum : sum;
        }
    }
}

// ---- A few inputs ---------------------------------------------------------------------------------------------------

struct FewInputs {
    const Bf16* w;
    int rows, cols;
    const Bf16* x; // [n, cols]
    int n;
    float* y;
    int stride;
    bool accumulate;
    const float* bias;
    Bf16* hidden;
    std::uint64_t* mark;
};

/// A block of warps shares kTiles tiles of 16 output rows and splits the columns. Weights go from memory to registers
/// as 16-byte pieces: the dot product may be summed in any order of columns, so a piece of 8 neighbouring columns
/// serves as the fragments of two instructions without passing through shared memory.
template <int kTiles, int kInputTiles> __global__ void __launch_bounds__(kThreads) fewInputs(FewInputs a) {
    __shared__ float sums[kWarps][kTiles][kInputTiles][kWarp][4];
    constexpr int kDeep = 8 / kTiles; // steps of 32 columns in flight
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, row8 = lane / 4, quad = lane % 4;
    const int firstRow = blockIdx.x * 16 * kTiles;
    const int steps = a.cols / 32;
    const int begin = steps * warp / kWarps, end = steps * (warp + 1) / kWarps;
    letNextKernelStart();

    const uint4* rows[kTiles][2];
#pragma unroll
    for (int t = 0; t < kTiles; ++t)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = min(firstRow + t * 16 + half * 8 + row8, a.rows - 1);
            rows[t][half] = reinterpret_cast<const uint4*>(a.w + std::size_t(row) * a.cols) + quad;
        }
    uint4 w[kDeep][kTiles][2];
    const auto fetch = [&](int step, uint4(&into)[kDeep][kTiles][2]) {
#pragma unroll
        for (int i = 0; i < kDeep; ++i)
#pragma unroll
            for (int t = 0; t < kTiles; ++t)
#pragma unroll
                for (int half = 0; half < 2; ++half)
                    into[i][t][half] =
                        step + i < end ? loadStreaming(rows[t][half] + (step + i) * 4) : make_uint4(0, 0, 0, 0);
    };
    fetch(begin, w);
    waitForEarlierKernels();
    if (blockIdx.x == 0 && threadIdx.x == 0) stamp(a.mark);

    float c[kTiles][kInputTiles][4] = {};
    for (int step = begin; step < end; step += kDeep) {
        uint4 following[kDeep][kTiles][2];
        if (step + kDeep < end) fetch(step + kDeep, following);
#pragma unroll
        for (int i = 0; i < kDeep; ++i) {
            if (step + i >= end) break;
#pragma unroll
            for (int j = 0; j < kInputTiles; ++j) {
                const int input = j * 8 + row8;
                uint4 x = make_uint4(0, 0, 0, 0);
                if (input < a.n)
                    x = reinterpret_cast<const uint4*>(a.x + std::size_t(input) * a.cols)[(step + i) * 4 + quad];
#pragma unroll
                for (int t = 0; t < kTiles; ++t) {
                    const uint4 p = w[i][t][0], q = w[i][t][1];
                    mma16816(c[t][j], p.x, q.x, p.y, q.y, x.x, x.y);
                    mma16816(c[t][j], p.z, q.z, p.w, q.w, x.z, x.w);
                }
            }
        }
#pragma unroll
        for (int i = 0; i < kDeep; ++i)
#pragma unroll
            for (int t = 0; t < kTiles; ++t) w[i][t][0] = following[i][t][0], w[i][t][1] = following[i][t][1];
    }
#pragma unroll
    for (int t = 0; t < kTiles; ++t)
#pragma unroll
        for (int j = 0; j < kInputTiles; ++j)
#pragma unroll
            for (int e = 0; e < 4; ++e) sums[warp][t][j][lane][e] = c[t][j][e];
    __syncthreads();
    // Lane l of a tile holds rows l/4 and l/4 + 8 at inputs 2(l%4), 2(l%4)+1.
    for (int item = threadIdx.x; item < kTiles * kInputTiles * kWarp; item += kThreads) {
        const int t = item / (kInputTiles * kWarp), j = item / kWarp % kInputTiles, l = item % kWarp;
        float total[4] = {};
#pragma unroll
        for (int u = 0; u < kWarps; ++u)
#pragma unroll
            for (int e = 0; e < 4; ++e) total[e] += sums[u][t][j][l][e];
        const int row = firstRow + t * 16 + l / 4;
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            const int input = j * 8 + l % 4 * 2 + e;
            if (input >= a.n || row >= a.rows) continue;
            if (a.hidden != nullptr) {
                const int output = row / 16 * 8 + row % 16;
                a.hidden[std::size_t(input) * (a.rows / 2) + output] = __float2bfloat16(silu(total[e]) * total[e + 2]);
                continue;
            }
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int at = row + half * 8;
                if (at >= a.rows) continue;
                const float value = total[e + half * 2] + (a.bias != nullptr ? a.bias[at] : 0.f);
                float* y = a.y + std::size_t(input) * a.stride + at;
                *y = a.accumulate ? *y + value : value;
            }
        }
    }
}

// ---- Many inputs, where the library is absent ----------------------------------------------------------------------

struct ManyInputs {
    const Bf16* w;
    int rows, cols;
    const Bf16* x;
    int n;
    float* y;
    int stride;
    bool accumulate;
    const float* bias;
    Bf16* half; // bf16 output [n, rows] instead of y
};

constexpr int kTileRows = 128, kTileInputs = 128, kTileDepth = 32, kStages = 3;

__device__ inline void copyAsync(void* shared, const void* global, bool valid) {
    const unsigned to = unsigned(__cvta_generic_to_shared(shared));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global), "r"(valid ? 16 : 0));
}

/// 128 x 128 outputs per block of 8 warps (2 x 4), 32 columns per stage. Pieces of 16 bytes are swizzled so that
/// neither the copies nor the fragment reads conflict.
__global__ void __launch_bounds__(kThreads) manyInputs(ManyInputs a) {
    extern __shared__ uint4 tiles[]; // [stage][w: 128 rows x 4 pieces][x: 128 x 4]
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    const int rowBase = blockIdx.x * kTileRows, inputBase = blockIdx.y * kTileInputs;
    constexpr int kStagePieces = (kTileRows + kTileInputs) * 4;
    letNextKernelStart();
    waitForEarlierKernels();
    const auto place = [](int row, int piece) { return row * 4 + (piece ^ (row >> 1 & 3)); };
    const int steps = a.cols / kTileDepth;
    const auto fetch = [&](int step) {
        uint4* stage = tiles + step % kStages * kStagePieces;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int at = threadIdx.x + i * kThreads, row = at / 4, piece = at % 4;
            const bool okW = rowBase + row < a.rows, okX = inputBase + row < a.n;
            copyAsync(stage + place(row, piece),
                      a.w + std::size_t(okW ? rowBase + row : 0) * a.cols + step * kTileDepth + piece * 8, okW);
            copyAsync(stage + kTileRows * 4 + place(row, piece),
                      a.x + std::size_t(okX ? inputBase + row : 0) * a.cols + step * kTileDepth + piece * 8, okX);
        }
    };
    for (int s = 0; s < kStages - 1; ++s) {
        if (s < steps) fetch(s);
        asm volatile("cp.async.commit_group;");
    }
    const int warpRow = warp / 4 * 64, warpInput = warp % 4 * 32;
    float c[4][4][4] = {};
    for (int step = 0; step < steps; ++step) {
        asm volatile("cp.async.wait_group %0;" ::"n"(kStages - 2));
        __syncthreads();
        if (step + kStages - 1 < steps) fetch(step + kStages - 1);
        asm volatile("cp.async.commit_group;");
        const uint4* stage = tiles + step % kStages * kStagePieces;
        // One 16-byte piece per (row, quad) is the fragments of both instructions; see fewInputs.
        uint4 x[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) x[j] = stage[kTileRows * 4 + place(warpInput + j * 8 + lane / 4, lane % 4)];
#pragma unroll
        for (int t = 0; t < 4; ++t) {
            const uint4 p = stage[place(warpRow + t * 16 + lane / 4, lane % 4)];
            const uint4 q = stage[place(warpRow + t * 16 + 8 + lane / 4, lane % 4)];
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                mma16816(c[t][j], p.x, q.x, p.y, q.y, x[j].x, x[j].y);
                mma16816(c[t][j], p.z, q.z, p.w, q.w, x[j].z, x[j].w);
            }
        }
    }
#pragma unroll
    for (int t = 0; t < 4; ++t)
#pragma unroll
        for (int j = 0; j < 4; ++j)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const int row = rowBase + warpRow + t * 16 + lane / 4 + e / 2 * 8;
                const int input = inputBase + warpInput + j * 8 + lane % 4 * 2 + e % 2;
                if (row >= a.rows || input >= a.n) continue;
                const float value = c[t][j][e] + (a.bias != nullptr ? a.bias[row] : 0.f);
                if (a.half != nullptr) {
                    a.half[std::size_t(input) * a.rows + row] = __float2bfloat16(value);
                } else {
                    float* y = a.y + std::size_t(input) * a.stride + row;
                    *y = a.accumulate ? *y + value : value;
                }
            }
}

// ---- Elementwise ----------------------------------------------------------------------------------------------------

__global__ void __launch_bounds__(kThreads)
    normalise(const float* x, int xStride, int cols, const float* weight, float eps, Bf16* out, std::uint64_t* mark) {
    __shared__ float partial[kWarps];
    letNextKernelStart();
    waitForEarlierKernels();
    if (blockIdx.x == 0 && threadIdx.x == 0) stamp(mark);
    const float4* row = reinterpret_cast<const float4*>(x + std::size_t(blockIdx.x) * xStride);
    float squares = 0;
    for (int i = threadIdx.x; i < cols / 4; i += kThreads) {
        const float4 p = row[i];
        squares += p.x * p.x + p.y * p.y + p.z * p.z + p.w * p.w;
    }
    squares = warpSum(squares);
    if (threadIdx.x % kWarp == 0) partial[threadIdx.x / kWarp] = squares;
    __syncthreads();
    float total = 0;
#pragma unroll
    for (int i = 0; i < kWarps; ++i) total += partial[i];
    const float scale = weight != nullptr ? rsqrtf(total / float(cols) + eps) : 1.f;
    uint2* to = reinterpret_cast<uint2*>(out + std::size_t(blockIdx.x) * cols);
    for (int i = threadIdx.x; i < cols / 4; i += kThreads) {
        const float4 p = row[i];
        const float4 u = weight != nullptr ? reinterpret_cast<const float4*>(weight)[i] : make_float4(1, 1, 1, 1);
        to[i] =
            make_uint2(packBf16(p.x * u.x * scale, p.y * u.y * scale), packBf16(p.z * u.z * scale, p.w * u.w * scale));
    }
}

/// gated [n, 2f] interleaved -> hidden [n, f]; a thread makes 8 outputs of a 16-row tile.
__global__ void __launch_bounds__(kThreads) siluMultiply(const Bf16* gated, std::size_t tiles, Bf16* hidden) {
    letNextKernelStart();
    waitForEarlierKernels();
    for (std::size_t tile = std::size_t(blockIdx.x) * kThreads + threadIdx.x; tile < tiles;
         tile += std::size_t(gridDim.x) * kThreads) {
        const uint4 g = reinterpret_cast<const uint4*>(gated)[tile * 2],
                    u = reinterpret_cast<const uint4*>(gated)[tile * 2 + 1];
        uint4 out;
        const auto both = [](std::uint32_t gate, std::uint32_t up) {
            return packBf16(silu(lowHalf(gate)) * lowHalf(up), silu(highHalf(gate)) * highHalf(up));
        };
        out.x = both(g.x, u.x), out.y = both(g.y, u.y), out.z = both(g.z, u.z), out.w = both(g.w, u.w);
        reinterpret_cast<uint4*>(hidden)[tile] = out;
    }
}

__global__ void stampOnly(std::uint64_t* mark) {
    letNextKernelStart();
    waitForEarlierKernels();
    stamp(mark);
}

template <int kTiles> void launchFew(const Launch& how, const FewInputs& a) {
    const Grid grid{dim3(unsigned((a.rows + 16 * kTiles - 1) / (16 * kTiles))), dim3(kThreads)};
    if (a.n <= 8)
        launch(how, grid, fewInputs<kTiles, 1>, "multiplying a few inputs", a);
    else
        launch(how, grid, fewInputs<kTiles, 2>, "multiplying a few inputs", a);
}

} // namespace

void stampNow(const Launch& how, std::uint64_t* mark) {
    launch(how, {dim3(1), dim3(1)}, stampOnly, "reading the clock", mark);
}

Linear::Linear(const Launch& how, int maxInputs, int maxCols, bool useLibrary) : launch_(how) {
    check(cudaMalloc(&normed_, std::size_t(maxInputs) * std::size_t(maxCols) * sizeof(Bf16)),
          "allocating the inputs of the linear layers");
    if (useLibrary) library_ = MatrixLibrary::load();
    constexpr std::size_t kShared = 200 << 10;
    allowShared(oneInput<false>, kShared, "preparing the linear layers");
    allowShared(oneInput<true>, kShared, "preparing the linear layers");
}

Linear::~Linear() {
    cudaFree(normed_);
    cudaFree(gated_);
}

const char* Linear::description() const { return library_ ? library_->description() : "own kernels"; }

void Linear::prepare(const DeviceMatrix& w, int n, const LinearOutput& out) {
    if (n <= kFewInputs || out.hidden == nullptr) return;
    const std::size_t size = std::size_t(n) * std::size_t(w.rows);
    if (size <= gatedSize_) return;
    cudaFree(gated_);
    gated_ = nullptr;
    check(cudaMalloc(&gated_, size * sizeof(Bf16)), "allocating the feed-forward's hidden values");
    gatedSize_ = size;
}

void Linear::run(const DeviceMatrix& w, const float* x, int xStride, int n, const Norm& norm, const LinearOutput& out,
                 std::uint64_t* mark) {
    if (n == 0 || w.rows == 0) return;
    if (n == 1) {
        const OneInput a{w.data,   w.rows, w.cols,         x,        nullptr,    norm.weight,
                         norm.eps, out.y,  out.accumulate, out.bias, out.hidden, mark};
        const int outputs = out.hidden != nullptr ? w.rows / 2 : w.rows;
        const Grid grid{dim3(unsigned(std::min((outputs + kWarps - 1) / kWarps, launch_.multiprocessors * 3))),
                        dim3(kThreads), std::size_t(w.cols) * sizeof(float)};
        if (out.hidden != nullptr)
            launch(launch_, grid, oneInput<true>, "multiplying one input", a);
        else
            launch(launch_, grid, oneInput<false>, "multiplying one input", a);
        return;
    }
    launch(launch_, {dim3(unsigned(n)), dim3(kThreads)}, normalise, "normalising", x, xStride, w.cols, norm.weight,
           norm.eps, normed_, mark);
    run(w, normed_, n, out, nullptr);
}

void Linear::run(const DeviceMatrix& w, const Bf16* x, int n, const LinearOutput& out, std::uint64_t* mark) {
    if (n == 0 || w.rows == 0) return;
    if (n == 1) {
        const OneInput a{w.data, w.rows, w.cols,         nullptr,  x,          nullptr,
                         0.f,    out.y,  out.accumulate, out.bias, out.hidden, mark};
        const int outputs = out.hidden != nullptr ? w.rows / 2 : w.rows;
        const Grid grid{dim3(unsigned(std::min((outputs + kWarps - 1) / kWarps, launch_.multiprocessors * 3))),
                        dim3(kThreads), std::size_t(w.cols) * sizeof(float)};
        if (out.hidden != nullptr)
            launch(launch_, grid, oneInput<true>, "multiplying one input", a);
        else
            launch(launch_, grid, oneInput<false>, "multiplying one input", a);
        return;
    }
    if (n > kFewInputs) return many(w, x, n, out, mark);
    const FewInputs a{w.data, w.rows, w.cols, x, n, out.y, out.stride, out.accumulate, out.bias, out.hidden, mark};
    if (w.rows / 32 >= launch_.multiprocessors)
        launchFew<2>(launch_, a);
    else
        launchFew<1>(launch_, a);
}

void Linear::many(const DeviceMatrix& w, const Bf16* x, int n, const LinearOutput& out, std::uint64_t* mark) {
    if (mark != nullptr) stampNow(launch_, mark);
    if (out.hidden != nullptr) prepare(w, n, out);
    Bf16* half = out.hidden != nullptr ? gated_ : nullptr;
    if (library_ && out.bias == nullptr) {
        library_->multiply(launch_.stream, w, x, n, out, half);
    } else {
        const ManyInputs a{w.data, w.rows, w.cols, x, n, out.y, out.stride, out.accumulate, out.bias, half};
        const std::size_t shared = std::size_t(kStages) * (kTileRows + kTileInputs) * 4 * sizeof(uint4);
        launch(launch_,
               {dim3(unsigned((w.rows + kTileRows - 1) / kTileRows), unsigned((n + kTileInputs - 1) / kTileInputs)),
                dim3(kThreads), shared},
               manyInputs, "multiplying many inputs", a);
    }
    if (half != nullptr) {
        const std::size_t tiles = std::size_t(n) * std::size_t(w.rows) / 16;
        const auto blocks = unsigned(
            std::min<std::size_t>((tiles + kThreads - 1) / kThreads, std::size_t(launch_.multiprocessors) * 16));
        launch(launch_, {dim3(blocks), dim3(kThreads)}, siluMultiply, "gating", half, tiles, out.hidden);
    }
}

} // namespace kvscope::cuda
