#include "kernels/cuda/linear/linear_tiles.h"

#include "kernels/cuda/device/common.cuh"
#include "kernels/cuda/device/copy_async.cuh"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/shared_room.cuh"
#include "kernels/cuda/linear/gate.cuh"

#include <algorithm>

namespace kvscope::cuda {
namespace {

// A thread block takes a contiguous run of outputs. A pass takes a few tiles of eight weight rows, whose columns the
// warps split. A lane loads 16-byte pieces of weights into registers. A dot product may be summed in any order of
// columns, so that a piece of 8 neighbouring columns is the fragments of two instructions as it comes. A warp asks for
// its next weights when it has used the last ones, also across the end of a pass, so that memory is kept busy while
// the warps' sums are added up.

constexpr int kStepCols = 32; // columns of a step: a row's pieces of four lanes
constexpr int kPieceCols = 8; // columns of one piece
constexpr int kInputTile = 8, kInputTiles = 2, kInputs = kInputTile * kInputTiles;
constexpr int kWarps = 16, kThreads = kWarps * kWarp;
constexpr int kRowTiles = 4;   // tiles of eight rows in a pass
constexpr int kStepsAhead = 2; // steps whose loads are in flight: 64 KiB on a multiprocessor. More is slower: loads go
                               // through the cache, and the attention's shared memory takes room from the cache
constexpr int kSumFloats = kWarps * kRowTiles * kInputs * 8; // of a pass
constexpr std::size_t kSharedBytes =
    2 * kSumFloats * sizeof(float) + std::size_t(kThreads) * kStepsAhead * kInputTiles * sizeof(uint4);

/// A thread block's outputs, in passes of about equal size, and a warp's columns.
template <bool kGated> struct TileShare {
    int begin, end, passes, each; // `each`: outputs of a pass
    int steps, slice;             // steps of a row, and how many of them a warp takes
    __device__ explicit TileShare(const FewInputs& a) {
        constexpr int kMost = kRowTiles * (kGated ? 4 : 8);
        const std::int64_t outputs = kGated ? a.w.rows / 2 : a.w.rows;
        begin = int(outputs * blockIdx.x / gridDim.x);
        end = int(outputs * (blockIdx.x + 1) / gridDim.x);
        passes = (end - begin + kMost - 1) / kMost;
        each = (end - begin + passes - 1) / passes;
        steps = a.w.cols / kStepCols;
        slice = (steps + kWarps - 1) / kWarps;
    }
    __device__ int firstOf(int pass) const { return begin + pass * each; }
    __device__ int endOf(int pass) const { return min(begin + (pass + 1) * each, end); }
    /// The number, in its row, of this warp's step `step`.
    __device__ int stepOf(int step) const { return int(threadIdx.x) / kWarp * slice + step; }
    __device__ bool has(int step) const { return step < slice && stepOf(step) < steps; }
};

/// Reads 16 bytes that are read only once. Where they are not wanted, `to` stays as it is.
__device__ inline void loadWanted(uint4& to, const uint4* from, bool wanted) {
    asm volatile("{ .reg .pred p; setp.ne.s32 p, %5, 0;\n"
                 "@p ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4]; }"
                 : "+r"(to.x), "+r"(to.y), "+r"(to.z), "+r"(to.w)
                 : "l"(from), "r"(int(wanted)));
}

/// Loads a warp's weights in the order in which they are used: pass by pass, kStepsAhead steps at a time.
template <bool kGated> class TileWeights {
public:
    __device__ TileWeights(const FewInputs& a, const TileShare<kGated>& share)
        : a_(a), share_(share), step_(share.slice) {
#pragma unroll
        for (int u = 0; u < kStepsAhead; ++u)
#pragma unroll
            for (int t = 0; t < kRowTiles; ++t) piece[u][t] = make_uint4(0, 0, 0, 0);
        next();
#pragma unroll
        for (int u = 0; u < kStepsAhead; ++u) fetch(u);
    }
    /// Moves on by kStepsAhead steps.
    __device__ void next() {
        step_ += kStepsAhead;
        if (step_ < share_.slice) return;
        step_ = 0;
        ++pass_;
        const int lane = threadIdx.x % kWarp, output = share_.firstOf(pass_) + lane / 4;
        left_ = pass_ < share_.passes ? share_.endOf(pass_) - output : 0;
        const int row = kGated ? output / 8 * 16 + output % 8 : output; // see interleavedRow
        from_ = reinterpret_cast<const uint4*>(a_.w.data) + std::size_t(row) * (a_.w.cols / kPieceCols) + lane % 4;
    }
    __device__ void fetch(int u) {
        const bool here = share_.has(step_ + u);
        const uint4* at = from_ + share_.stepOf(step_ + u) * 4;
#pragma unroll
        for (int t = 0; t < kRowTiles; ++t) // the next tile is eight rows on, which is `cols` pieces of 8 columns
            loadWanted(piece[u][t], at + std::size_t(t) * a_.w.cols, here && left_ > (kGated ? t / 2 * 8 : t * 8));
    }
    __device__ int step() const { return step_; }
    __device__ bool done() const { return pass_ >= share_.passes; }

    uint4 piece[kStepsAhead][kRowTiles];

private:
    const FewInputs& a_;
    const TileShare<kGated>& share_;
    const uint4* from_ = nullptr;
    int left_ = 0, pass_ = -1, step_;
};

/// bf16 inputs, copied to shared memory as many steps ahead as the weights are loaded. A lane reads only pieces that it
/// has copied itself, so that no barrier is needed.
template <bool kGated> class StreamedInputs {
public:
    __device__ StreamedInputs(const FewInputs& a, const TileShare<kGated>& share, uint4* room) : a_(a), share_(share) {
        const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
        ring_ = room + warp * kStepsAhead * kInputTiles * kWarp + lane;
        input_ = lane / 4;
        from_ = reinterpret_cast<const uint4*>(a.xHalf) + std::size_t(input_) * (a.w.cols / kPieceCols) + lane % 4;
    }
    __device__ void start() {
#pragma unroll
        for (int u = 0; u < kStepsAhead; ++u) fetch(u, u, false);
    }
    __device__ void fetch(int step, int u, bool done) {
        if (share_.has(step) && !done)
#pragma unroll
            for (int h = 0; h < kInputTiles; ++h) // the next tile is eight inputs on, which is `cols` pieces
                if (h * kInputTile + input_ < a_.n)
                    copyToShared(ring_ + (u * kInputTiles + h) * kWarp,
                                 from_ + std::size_t(h) * a_.w.cols + share_.stepOf(step) * 4);
        closeCopies();
    }
    __device__ void await() { waitForCopies<kStepsAhead - 1>(); }
    __device__ uint4 read(int u, int h) const {
        return h * kInputTile + input_ < a_.n ? ring_[(u * kInputTiles + h) * kWarp] : make_uint4(0, 0, 0, 0);
    }

private:
    const FewInputs& a_;
    const TileShare<kGated>& share_;
    uint4* ring_;
    const uint4* from_;
    int input_;
};

/// Adds up the warps' products and writes the results of a pass. Lane l holds in `c` the products of the inputs l/4 and
/// l/4 + 8 with the rows 2(l%4) and 2(l%4) + 1. sums: [warp][tile][input][row]
template <bool kGated>
__device__ inline void finishPass(const FewInputs& a, const TileShare<kGated>& share, int pass, float* sums,
                                  float (&c)[kRowTiles][4]) {
    static_assert(kRowTiles * kInputs * 8 <= kThreads, "a thread for every result");
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
        for (int h = 0; h < kInputTiles; ++h) {
            float* to = sums + ((warp * kRowTiles + t) * kInputs + h * kInputTile + lane / 4) * 8 + lane % 4 * 2;
            *reinterpret_cast<float2*>(to) = make_float2(c[t][h * 2], c[t][h * 2 + 1]);
        }
#pragma unroll
        for (int e = 0; e < 4; ++e) c[t][e] = 0;
    }
    const int row = threadIdx.x % 8, input = threadIdx.x / 8 % kInputs, eight = threadIdx.x / (8 * kInputs);
    const int tile = kGated ? eight * 2 : eight, output = share.firstOf(pass) + eight * 8 + row;
    const bool wanted = tile < kRowTiles && input < a.n && output < share.endOf(pass);
    float* const y = kGated ? nullptr : a.out.y + std::size_t(input) * a.out.stride + output;
    float before = 0;
    if (!kGated && wanted) { // these loads are on their way while the barrier is waited for
        if (a.out.accumulate) before = *y;
        if (a.out.bias != nullptr) before += a.out.bias[output];
    }
    __syncthreads();
    if (!wanted) return;
    float value = 0, up = 0;
#pragma unroll
    for (int u = 0; u < kWarps; ++u) {
        const float* part = sums + ((u * kRowTiles + tile) * kInputs + input) * 8 + row;
        value += part[0];
        if (kGated) up += part[kInputs * 8];
    }
    if constexpr (kGated)
        a.out.hidden[std::size_t(input) * (a.w.rows / 2) + output] = __float2bfloat16(gated(value, up, a.out.gate));
    else
        *y = before + value;
}

template <bool kGated> __global__ void __launch_bounds__(kThreads, 1) tiles(FewInputs a) {
    extern __shared__ uint4 room[]; // two passes' sums, the inputs
    const TileShare<kGated> share(a);
    letNextKernelStart();
    TileWeights<kGated> weights(a, share); // before the wait: no kernel writes weights
    StreamedInputs<kGated> inputs(a, share, room + 2 * kSumFloats / 4);
    waitForEarlierKernels();
    if (blockIdx.x == 0 && threadIdx.x == 0) stamp(a.mark);
    inputs.start();

    float c[kRowTiles][4] = {};
    for (int pass = 0; pass < share.passes; ++pass) {
        for (int step = 0; step < share.slice; step += kStepsAhead) {
            weights.next();
#pragma unroll
            for (int u = 0; u < kStepsAhead; ++u) {
                inputs.await();
                uint4 x[kInputTiles] = {};
                if (share.has(step + u))
#pragma unroll
                    for (int h = 0; h < kInputTiles; ++h) x[h] = inputs.read(u, h);
#pragma unroll
                for (int t = 0; t < kRowTiles; ++t) {
                    const uint4& w = weights.piece[u][t];
                    mma16816(c[t], x[0].x, x[1].x, x[0].y, x[1].y, w.x, w.y);
                    mma16816(c[t], x[0].z, x[1].z, x[0].w, x[1].w, w.z, w.w);
                }
                weights.fetch(u);
                inputs.fetch(weights.step() + u, u, weights.done());
            }
        }
        finishPass(a, share, pass, reinterpret_cast<float*>(room) + pass % 2 * kSumFloats, c);
    }
}

template <bool kGated> void start(const Launch& how, const FewInputs& a) {
    constexpr const char* kName = "multiplying up to 16 inputs";
    if (kSharedBytes > how.blockShared)
        throw Error(ErrorKind::Unsupported, "the GPU has too little shared memory to multiply up to 16 inputs",
                    "use --backend cpu, or a GPU with 99 KiB of it for a thread block");
    raiseShared(tiles<kGated>, kSharedBytes, kName);
    const int outputs = kGated ? a.w.rows / 2 : a.w.rows, blocks = std::min(how.multiprocessors, (outputs + 7) / 8);
    launch(how, {dim3(unsigned(blocks)), dim3(kThreads), kSharedBytes}, tiles<kGated>, kName, a);
}

} // namespace

void multiplyTiles(const Launch& how, const FewInputs& args) {
    args.out.hidden != nullptr ? start<true>(how, args) : start<false>(how, args);
}

} // namespace kvscope::cuda
