// The product of a bf16 matrix with one input. The kernel is the same whatever is done with the outputs.
//
// A `Finish` says what is done with the outputs. It goes to the kernel as an argument and has
//   kPairs    whether an output is made of two rows of weights
//   kOnce     whether a thread block of this kernel has at most kOutputsTogether outputs: finish() then runs once for a
//             thread, after all loads of weights, and may use the registers of those
//   row       the row of an output
//   apart     how many rows later the second one is
//   Ready     what finish() needs from memory: prepare() reads what no earlier kernel writes, before the wait for
//             earlier kernels, and await() the rest, after the wait
//   finish    takes the one or two products of an output; one thread calls it for each output
// prepare(), await() and finish() are told the number of the input, which few_rows.cuh needs; here it is always 0.
#pragma once

#include "kernels/cuda/device/common.cuh"
#include "kernels/cuda/device/launch.cuh"

#include <algorithm>

namespace kvscope::cuda {

struct OneInput {
    const Bf16* w;
    int outputs, cols;
    const float* x; // float input, or null
    const Bf16* xHalf;
    const float* normWeight; // null: x as it is
    float normEps;
    std::uint64_t* mark;
};

constexpr int kWidestOneInput = 16384;

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

/// Adds up each of kRows values over the lanes of a warp. In every turn two lanes exchange values: each keeps the sums
/// of one half of its values and gives the other half away. @return the sum of value number lane / (kWarp / kRows)
template <int kRows> __device__ inline float sumOverLanes(float (&value)[kRows], int lane) {
    int bit = kWarp / 2;
#pragma unroll
    for (int half = kRows / 2; half > 0; half /= 2, bit /= 2) {
        const bool upper = (lane & bit) != 0;
#pragma unroll
        for (int i = 0; i < half; ++i) {
            const float given = upper ? value[i] : value[i + half];
            value[i] = (upper ? value[i + half] : value[i]) + __shfl_xor_sync(0xffffffffu, given, bit);
        }
    }
    float sum = value[0];
#pragma unroll
    for (; bit > 0; bit /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, bit);
    return sum;
}

constexpr int kOutputsTogether = 32; // so many outputs are summed over the warps between two barriers

/// How many thread blocks with so many warps a multiprocessor holds.
constexpr int oneInputBlocks(int pieces, int warps) { return warps == 8 ? 3 : warps <= 12 && pieces <= 2 ? 2 : 1; }

/// The warps of a thread block split the columns. Each keeps its share of the input in registers and multiplies it with
/// weights that it loads straight into registers. Thread blocks take contiguous runs of outputs, equally long. kPieces:
/// how many 16-byte pieces of a row a lane takes; cols <= 256 * kBlockWarps * kPieces.
template <class Finish, bool kHalfInput, int kPieces, int kBlockWarps>
__global__ void __launch_bounds__(kBlockWarps* kWarp, oneInputBlocks(kPieces, kBlockWarps))
    oneInput(OneInput a, const __grid_constant__ Finish finish) {
    constexpr int kRowsEach = Finish::kPairs ? 2 : 1;
    __shared__ float partial[2][kBlockWarps][kOutputsTogether * kRowsEach];
    __shared__ float squares[kBlockWarps];
    // Each is used by one thread only. In registers it would cost every thread as many, also those without an output.
    __shared__ typename Finish::Ready ready[kOutputsTogether];
    constexpr int kRows = kPieces == 1 ? 8 : 4; // weight rows in one batch of loads
    constexpr int kOutputs = kRows / kRowsEach; // outputs of one batch
    static_assert(kOutputsTogether % kOutputs == 0 && kOutputsTogether <= kBlockWarps * kWarp);
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    const int pieces = a.cols / 8, slice = (pieces + kBlockWarps - 1) / kBlockWarps, first = warp * slice;
    const int mine = min(slice, pieces - first); // pieces of this warp; 0 or less: it has none
    const int begin = int(std::int64_t(a.outputs) * blockIdx.x / gridDim.x);
    const int end = int(std::int64_t(a.outputs) * (blockIdx.x + 1) / gridDim.x);
    letNextKernelStart();

    uint4 w[kRows][kPieces];
    const auto fetch = [&](int output) {
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
            const int index = min(output + r / kRowsEach, end - 1);
            const int row = finish.row(index) + (r % kRowsEach != 0 ? finish.apart(index) : 0);
            const uint4* from = reinterpret_cast<const uint4*>(a.w + std::size_t(row) * a.cols) + first;
#pragma unroll
            for (int i = 0; i < kPieces; ++i) {
                const int piece = i * kWarp + lane;
                w[r][i] = piece < mine ? loadStreaming(from + piece) : make_uint4(0, 0, 0, 0);
            }
        }
    };
    const auto finishes = [&](int chunk) { return int(threadIdx.x) < min(kOutputsTogether, end - chunk); };
    if (begin < end) fetch(begin); // before the wait: no kernel writes weights
    if (finishes(begin)) finish.prepare(ready[threadIdx.x], begin + int(threadIdx.x), 0);
    waitForEarlierKernels();
    if (blockIdx.x == 0 && threadIdx.x == 0) stamp(a.mark);

    float4 low[kHalfInput ? 1 : kPieces], high[kHalfInput ? 1 : kPieces];
    uint4 packed[kHalfInput ? kPieces : 1];
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
        const int piece = i * kWarp + lane;
        if constexpr (kHalfInput) {
            packed[i] = piece < mine ? reinterpret_cast<const uint4*>(a.xHalf)[first + piece] : make_uint4(0, 0, 0, 0);
        } else {
            low[i] = high[i] = make_float4(0, 0, 0, 0);
            if (piece < mine) {
                low[i] = reinterpret_cast<const float4*>(a.x)[(first + piece) * 2];
                high[i] = reinterpret_cast<const float4*>(a.x)[(first + piece) * 2 + 1];
            }
            if (a.normWeight != nullptr) {
                float4 &p = low[i], &q = high[i];
                sum += p.x * p.x + p.y * p.y + p.z * p.z + p.w * p.w + q.x * q.x + q.y * q.y + q.z * q.z + q.w * q.w;
                if (piece < mine) {
                    const float4 u = reinterpret_cast<const float4*>(a.normWeight)[(first + piece) * 2];
                    const float4 v = reinterpret_cast<const float4*>(a.normWeight)[(first + piece) * 2 + 1];
                    p.x *= u.x, p.y *= u.y, p.z *= u.z, p.w *= u.w;
                    q.x *= v.x, q.y *= v.y, q.z *= v.z, q.w *= v.w;
                }
            }
        }
    }
    if (a.normWeight != nullptr) { // 1 / the root of the mean square multiplies the results at the end
        sum = warpSum(sum);
        if (lane == 0) squares[warp] = sum;
    }
    if (finishes(begin)) finish.await(ready[threadIdx.x], begin + int(threadIdx.x), 0);
    int turn = 0;
    for (int chunk = begin; chunk < end; chunk += kOutputsTogether, turn ^= 1) {
        const int chunkEnd = min(chunk + kOutputsTogether, end);
        for (int output = chunk; output < chunkEnd; output += kOutputs) {
            float dot[kRows] = {};
#pragma unroll
            for (int i = 0; i < kPieces; ++i) {
                float4 p, q;
                if constexpr (kHalfInput) {
                    uint4 x = packed[i];
                    // Hides x from the compiler, which would else widen it once for all rows and run out of registers.
                    asm volatile("" : "+r"(x.x), "+r"(x.y), "+r"(x.z), "+r"(x.w));
                    p = make_float4(lowHalf(x.x), highHalf(x.x), lowHalf(x.y), highHalf(x.y));
                    q = make_float4(lowHalf(x.z), highHalf(x.z), lowHalf(x.w), highHalf(x.w));
                } else {
                    p = low[i], q = high[i];
                }
#pragma unroll
                for (int r = 0; r < kRows; ++r) dot[r] = dot8(w[r][i], p, q, dot[r]);
            }
            if (output + kOutputs < end) fetch(output + kOutputs);
            const float total = sumOverLanes(dot, lane);
            if (lane % (kWarp / kRows) == 0)
                partial[turn][warp][(output - chunk) * kRowsEach + lane / (kWarp / kRows)] = total;
        }
        __syncthreads();
        if (!finishes(chunk)) {
            if constexpr (Finish::kOnce) return;
            continue;
        }
        const int output = chunk + int(threadIdx.x);
        if (chunk != begin) {
            finish.prepare(ready[threadIdx.x], output, 0);
            finish.await(ready[threadIdx.x], output, 0);
        }
        float scale = 1;
        if (a.normWeight != nullptr) {
            float total = 0;
#pragma unroll
            for (int u = 0; u < kBlockWarps; ++u) total += squares[u];
            scale = rsqrtf(total / float(a.cols) + a.normEps);
        }
        float value = 0, second = 0;
#pragma unroll
        for (int u = 0; u < kBlockWarps; ++u) {
            value += partial[turn][u][threadIdx.x * kRowsEach];
            if constexpr (Finish::kPairs) second += partial[turn][u][threadIdx.x * 2 + 1];
        }
        finish.finish(ready[threadIdx.x], output, 0, value * scale, second * scale);
        if constexpr (Finish::kOnce) return;
    }
}

/// cols <= kWidestOneInput.
template <bool kHalfInput, class Finish> void launchOne(const Launch& how, const OneInput& a, const Finish& finish) {
    constexpr const char* kName = "multiplying one input";
    const auto start = [&]<int kPieces, int kBlockWarps>() {
        int blocks = std::min(a.outputs, how.multiprocessors * oneInputBlocks(kPieces, kBlockWarps));
        // Where each thread block has at most three batches of loads, there are only as many thread blocks as give each
        // the same number of whole batches. Being fewer, they find room beside the kernel before and read their weights
        // while it ends.
        constexpr int kBatch = (kPieces == 1 ? 8 : 4) / (Finish::kPairs ? 2 : 1);
        const int batches = (a.outputs + kBatch - 1) / kBatch, turns = (batches + blocks - 1) / blocks;
        if (turns <= 3) blocks = (batches + turns - 1) / turns;
        if (Finish::kOnce) blocks = std::max(blocks, (a.outputs + kOutputsTogether - 1) / kOutputsTogether);
        launch(how, {dim3(unsigned(blocks)), dim3(unsigned(kBlockWarps * kWarp))},
               oneInput<Finish, kHalfInput, kPieces, kBlockWarps>, kName, a, finish);
    };
    // The form with the fewest warps and pieces that holds the columns, because a lane without a piece loads nothing.
    // The forms for more than 8,192 columns are made for bf16 inputs only, except the widest: float inputs are as wide
    // as the model, and few models are that wide.
    if (a.cols <= 2048) return start.template operator()<1, 8>();
    if (a.cols <= 2560) return start.template operator()<1, 10>();
    if (a.cols <= 3072) return start.template operator()<1, 12>();
    if (a.cols <= 4096) return start.template operator()<2, 8>();
    if (a.cols <= 5120) return start.template operator()<2, 10>();
    if (a.cols <= 6144) return start.template operator()<2, 12>();
    if (a.cols <= 8192) return start.template operator()<2, 16>();
    if constexpr (kHalfInput) {
        if (a.cols <= 10240) return start.template operator()<4, 10>();
        if (a.cols <= 12288) return start.template operator()<4, 12>();
        if (a.cols <= 14336) return start.template operator()<4, 14>();
    }
    start.template operator()<4, 16>();
}

} // namespace kvscope::cuda
