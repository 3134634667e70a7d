#include "kernels/cuda/linear_few.h"

#include "kernels/cuda/common.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/shared_room.cuh"

#include <algorithm>

namespace kvscope::cuda {
namespace {

// A thread block takes a contiguous run of outputs, a few tiles of eight weight rows at a time; its warps split the
// columns. Weights go from memory to registers as 16-byte pieces: a dot product may be summed in any order of columns,
// so a piece of 8 neighbouring columns serves as the fragments of two instructions. Each warp asks for its next weights
// as it uses up the last, across passes over the rows, so that the memory need not wait for the sums over the warps.

constexpr int kStepCols = 32; // of a row, in pieces of four lanes
constexpr int kPieceCols = 8; // of one lane
constexpr int kInputTile = 8;

/// Warps of a thread block, tiles of rows in a pass, steps of columns in flight. More in flight than 64 KiB of a
/// processor is slower: the cache through which loads go shares its room with the attention's shared memory.
template <int kBlockWarps, int kRowTiles, int kStepsAhead> struct Form {
    static constexpr int kWarps = kBlockWarps, kThreads = kWarps * kWarp, kBlocks = 16 / kWarps; // of a processor
    static constexpr int kTiles = kRowTiles, kDeep = kStepsAhead;
    static constexpr int kSquares = kWarps * kInputTile;
    static constexpr int sumFloats(int inputTiles) { return kWarps * kTiles * inputTiles * kInputTile * 8; }
    /// Of two passes. The squares, which a launch need not ask for, count towards a thread block's most as well.
    static constexpr std::size_t sumBytes(int inputTiles) { return 2 * sumFloats(inputTiles) * sizeof(float); }
    static constexpr std::size_t allBytes(int inputTiles, std::size_t inputBytes) {
        return sumBytes(inputTiles) + kSquares * sizeof(float) + inputBytes;
    }
    /// Steps of a warp.
    static constexpr __host__ __device__ int sliceOf(int cols) { return (cols / kStepCols + kWarps - 1) / kWarps; }
};

/// A thread block's outputs, in passes of about equal size, and a warp's columns.
template <class F, bool kGated> struct FewShare {
    int begin, end, passes, each; // outputs
    int steps, slice;
    __device__ explicit FewShare(const FewInputs& a) {
        constexpr int kMost = F::kTiles * (kGated ? 4 : 8);
        const std::int64_t outputs = kGated ? a.w.rows / 2 : a.w.rows;
        begin = int(outputs * blockIdx.x / gridDim.x);
        end = int(outputs * (blockIdx.x + 1) / gridDim.x);
        passes = (end - begin + kMost - 1) / kMost;
        each = (end - begin + passes - 1) / passes;
        steps = a.w.cols / kStepCols;
        slice = F::sliceOf(a.w.cols);
    }
    __device__ int firstOf(int pass) const { return begin + pass * each; }
    __device__ int endOf(int pass) const { return min(begin + (pass + 1) * each, end); }
    /// Which step of a row a warp's step is.
    __device__ int stepOf(int step) const { return int(threadIdx.x) / kWarp * slice + step; }
    __device__ bool has(int step) const { return step < slice && stepOf(step) < steps; }
};

/// 16 bytes that are read once; untouched where not wanted.
__device__ inline void loadWanted(uint4& to, const uint4* from, bool wanted) {
    asm volatile("{ .reg .pred p; setp.ne.s32 p, %5, 0;\n"
                 "@p ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4]; }"
                 : "+r"(to.x), "+r"(to.y), "+r"(to.z), "+r"(to.w)
                 : "l"(from), "r"(int(wanted)));
}

/// A warp's weights in the order of their use: pass by pass, kDeep steps at a time.
template <class F, bool kGated> class FewWeights {
public:
    __device__ FewWeights(const FewInputs& a, const FewShare<F, kGated>& share)
        : a_(a), share_(share), step_(share.slice) {
#pragma unroll
        for (int u = 0; u < F::kDeep; ++u)
#pragma unroll
            for (int t = 0; t < F::kTiles; ++t) piece[u][t] = make_uint4(0, 0, 0, 0);
        next();
#pragma unroll
        for (int u = 0; u < F::kDeep; ++u) fetch(u);
    }
    /// Moves on by kDeep steps.
    __device__ void next() {
        step_ += F::kDeep;
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
        for (int t = 0; t < F::kTiles; ++t) // eight rows on: as many pieces as a row has columns
            loadWanted(piece[u][t], at + std::size_t(t) * a_.w.cols, here && left_ > (kGated ? t / 2 * 8 : t * 8));
    }
    __device__ int step() const { return step_; }
    __device__ bool done() const { return pass_ >= share_.passes; }

    uint4 piece[F::kDeep][F::kTiles];

private:
    const FewInputs& a_;
    const FewShare<F, kGated>& share_;
    const uint4* from_ = nullptr;
    int left_ = 0, pass_ = -1, step_;
};

__device__ inline void copyToShared(void* to, const void* from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" ::"r"(unsigned(__cvta_generic_to_shared(to))), "l"(from)
                 : "memory");
}
__device__ inline void closeCopies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kOpen> __device__ inline void waitForCopies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(kOpen) : "memory");
}

/// bf16 inputs, copied as far ahead as the weights: a lane reads what it copied itself.
template <class F, int kInputTiles, bool kGated> class StreamedInputs {
public:
    static std::size_t bytes(const FewInputs&) {
        return std::size_t(F::kThreads) * F::kDeep * kInputTiles * sizeof(uint4);
    }
    __device__ StreamedInputs(const FewInputs& a, const FewShare<F, kGated>& share, uint4* room)
        : a_(a), share_(share) {
        const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
        ring_ = room + warp * F::kDeep * kInputTiles * kWarp + lane;
        input_ = lane / 4;
        from_ = reinterpret_cast<const uint4*>(a.xHalf) + std::size_t(input_) * (a.w.cols / kPieceCols) + lane % 4;
    }
    __device__ void start(float*) {
#pragma unroll
        for (int u = 0; u < F::kDeep; ++u) fetch(u, u, false);
    }
    __device__ void fetch(int step, int u, bool done) {
        if (share_.has(step) && !done)
#pragma unroll
            for (int h = 0; h < kInputTiles; ++h) // eight inputs on, likewise
                if (h * kInputTile + input_ < a_.n)
                    copyToShared(ring_ + (u * kInputTiles + h) * kWarp,
                                 from_ + std::size_t(h) * a_.w.cols + share_.stepOf(step) * 4);
        closeCopies();
    }
    __device__ void await() { waitForCopies<F::kDeep - 1>(); }
    __device__ uint4 read(int, int u, int h) const {
        return h * kInputTile + input_ < a_.n ? ring_[(u * kInputTiles + h) * kWarp] : make_uint4(0, 0, 0, 0);
    }

private:
    const FewInputs& a_;
    const FewShare<F, kGated>& share_;
    uint4* ring_;
    const uint4* from_;
    int input_;
};

/// Float inputs, multiplied by the norm's weights, kept as bf16; the norm's scale is applied to the results.
template <class F, bool kGated> class HeldInputs {
public:
    static std::size_t bytes(int n, int cols) {
        const std::size_t steps = std::size_t(F::kWarps) * std::size_t(F::sliceOf(cols));
        return steps * kStepCols * sizeof(float) * std::size_t(n + 1); // and the norm's weights
    }
    static std::size_t bytes(const FewInputs& a) { return bytes(a.n, a.w.cols); }
    __device__ HeldInputs(const FewInputs& a, const FewShare<F, kGated>& share, uint4* room) : a_(a), share_(share) {
        const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
        lanes_ = a.n * 4;
        mine_ = lane < lanes_;
        held_ = room + (warp * share.slice * lanes_ + lane) * 2;
        norm_ = room + F::kWarps * share.slice * lanes_ * 2 + warp * share.slice * 8;
        if (a.norm.weight == nullptr) return;
        for (int at = lane; at < share.slice * 8; at += kWarp)
            if (share.has(at / 8))
                copyToShared(norm_ + at, a.norm.weight + share.stepOf(at / 8) * kStepCols + at % 8 * 4);
    }
    /// squares: [warp][input]
    __device__ void start(float* squares) {
        const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
        const float* x = a_.x + std::size_t(lane / 4) * a_.xStride + lane % 4 * kPieceCols;
        for (int s = 0; s < share_.slice && mine_; ++s)
            if (share_.has(s)) {
                copyToShared(held_ + s * lanes_ * 2, x + share_.stepOf(s) * kStepCols);
                copyToShared(held_ + s * lanes_ * 2 + 1, x + share_.stepOf(s) * kStepCols + 4);
            }
        closeCopies();
        waitForCopies<0>();
        __syncwarp();
        float sum = 0;
        for (int s = 0; s < share_.slice && mine_; ++s)
            if (share_.has(s)) sum += round(s);
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        if (lane % 4 == 0) squares[warp * kInputTile + lane / 4] = sum;
    }
    __device__ void fetch(int, int, bool) {}
    __device__ void await() {}
    __device__ uint4 read(int step, int, int) const {
        return mine_ ? held_[step * lanes_ * 2] : make_uint4(0, 0, 0, 0);
    }

private:
    /// @return the squares' sum of a step's eight columns
    __device__ float round(int step) {
        uint4* const at = held_ + step * lanes_ * 2;
        float4 p = reinterpret_cast<const float4*>(at)[0], q = reinterpret_cast<const float4*>(at)[1];
        const float sum = p.x * p.x + p.y * p.y + p.z * p.z + p.w * p.w + q.x * q.x + q.y * q.y + q.z * q.z + q.w * q.w;
        if (a_.norm.weight != nullptr) {
            const float4* by = reinterpret_cast<const float4*>(norm_ + step * 8 + threadIdx.x % 4 * 2);
            const float4 u = by[0], v = by[1];
            p.x *= u.x, p.y *= u.y, p.z *= u.z, p.w *= u.w;
            q.x *= v.x, q.y *= v.y, q.z *= v.z, q.w *= v.w;
        }
        *at = make_uint4(packBf16(p.x, p.y), packBf16(p.z, p.w), packBf16(q.x, q.y), packBf16(q.z, q.w));
        return sum;
    }
    const FewInputs& a_;
    const FewShare<F, kGated>& share_;
    uint4 *held_, *norm_; // [step][lane with an input] of 32 bytes; [step][8]
    int lanes_;
    bool mine_;
};

/// Adds up the warps' products and writes a pass's results. A lane's c are of the inputs l/4 and l/4 + 8, of the rows
/// 2(l%4) and the next. sums: [warp][tile][input][row]; squares: of the normed inputs, [warp][input], or null.
template <class F, int kInputTiles, bool kGated>
__device__ inline void finishPass(const FewInputs& a, const FewShare<F, kGated>& share, int pass, float* sums,
                                  const float* squares, float (&c)[F::kTiles][4]) {
    constexpr int kInputs = kInputTiles * kInputTile;
    static_assert(F::kTiles * kInputs * 8 <= F::kThreads, "a thread for every result");
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
#pragma unroll
    for (int t = 0; t < F::kTiles; ++t) {
#pragma unroll
        for (int h = 0; h < kInputTiles; ++h) {
            float* to = sums + ((warp * F::kTiles + t) * kInputs + h * kInputTile + lane / 4) * 8 + lane % 4 * 2;
            *reinterpret_cast<float2*>(to) = make_float2(c[t][h * 2], c[t][h * 2 + 1]);
        }
#pragma unroll
        for (int e = 0; e < 4; ++e) c[t][e] = 0;
    }
    const int row = threadIdx.x % 8, input = threadIdx.x / 8 % kInputs, eight = threadIdx.x / (8 * kInputs);
    const int tile = kGated ? eight * 2 : eight, output = share.firstOf(pass) + eight * 8 + row;
    const bool wanted = tile < F::kTiles && input < a.n && output < share.endOf(pass);
    float* const y = kGated ? nullptr : a.out.y + std::size_t(input) * a.out.stride + output;
    float before = 0;
    if (!kGated && wanted) { // asked for before the barrier
        if (a.out.accumulate) before = *y;
        if (a.out.bias != nullptr) before += a.out.bias[output];
    }
    __syncthreads();
    if (!wanted) return;
    float value = 0, up = 0, square = 0;
#pragma unroll
    for (int u = 0; u < F::kWarps; ++u) {
        const float* part = sums + ((u * F::kTiles + tile) * kInputs + input) * 8 + row;
        value += part[0];
        if (kGated) up += part[kInputs * 8];
        if (squares != nullptr) square += squares[u * kInputTile + input];
    }
    const float scale = squares != nullptr ? rsqrtf(square / float(a.w.cols) + a.norm.eps) : 1.f;
    if constexpr (kGated)
        a.out.hidden[std::size_t(input) * (a.w.rows / 2) + output] = __float2bfloat16(silu(value * scale) * up * scale);
    else
        *y = before + value * scale;
}

template <class F, int kInputTiles, bool kGated, class Inputs>
__global__ void __launch_bounds__(F::kThreads, F::kBlocks) fewInputs(FewInputs a) {
    extern __shared__ uint4 room[]; // two passes' sums, the inputs
    __shared__ float squares[F::kSquares];
    constexpr int kSums = F::sumFloats(kInputTiles);
    const FewShare<F, kGated> share(a);
    letNextKernelStart();
    FewWeights<F, kGated> weights(a, share); // they do not depend on earlier kernels
    Inputs inputs(a, share, room + 2 * kSums / 4);
    waitForEarlierKernels();
    if (blockIdx.x == 0 && threadIdx.x == 0) stamp(a.mark);
    inputs.start(squares);

    float c[F::kTiles][4] = {};
    for (int pass = 0; pass < share.passes; ++pass) {
        for (int step = 0; step < share.slice; step += F::kDeep) {
            weights.next();
#pragma unroll
            for (int u = 0; u < F::kDeep; ++u) {
                inputs.await();
                uint4 x[2] = {}; // inputs 0..7 and 8..15
                if (share.has(step + u))
#pragma unroll
                    for (int h = 0; h < kInputTiles; ++h) x[h] = inputs.read(step + u, u, h);
#pragma unroll
                for (int t = 0; t < F::kTiles; ++t) {
                    const uint4& w = weights.piece[u][t];
                    mma16816(c[t], x[0].x, x[1].x, x[0].y, x[1].y, w.x, w.y);
                    mma16816(c[t], x[0].z, x[1].z, x[0].w, x[1].w, w.z, w.w);
                }
                weights.fetch(u);
                inputs.fetch(weights.step() + u, u, weights.done());
            }
        }
        float* const sums = reinterpret_cast<float*>(room) + pass % 2 * kSums;
        finishPass<F, kInputTiles>(a, share, pass, sums, a.norm.weight != nullptr ? squares : nullptr, c);
    }
}

template <class F, int kInputTiles, bool kGated, class Inputs> void start(const Launch& how, const FewInputs& a) {
    const auto kernel = fewInputs<F, kInputTiles, kGated, Inputs>;
    constexpr const char* kName = "multiplying a few inputs";
    const std::size_t inputs = Inputs::bytes(a), shared = F::sumBytes(kInputTiles) + inputs;
    if (F::allBytes(kInputTiles, inputs) > how.blockShared)
        throw Error(ErrorKind::Unsupported, "the GPU has too little shared memory to multiply a few inputs",
                    "use --backend cpu, or a GPU with 99 KiB of it for a thread block");
    raiseShared(kernel, shared, kName);
    const int outputs = kGated ? a.w.rows / 2 : a.w.rows;
    const int blocks = std::min(how.multiprocessors * F::kBlocks, (outputs + 7) / 8);
    launch(how, {dim3(unsigned(blocks)), dim3(F::kThreads), shared}, kernel, kName, a);
}

using Tall = Form<16, 4, 2>;
using Flat = Form<8, 2, 4>;    // faster with five to eight inputs only
constexpr int kMostOfTall = 4; // of one input tile

template <bool kGated> void startGated(const Launch& how, const FewInputs& a) {
    if (a.x != nullptr) return start<Tall, 1, kGated, HeldInputs<Tall, kGated>>(how, a);
    if (a.n <= kMostOfTall) return start<Tall, 1, kGated, StreamedInputs<Tall, 1, kGated>>(how, a);
    if (a.n <= kInputTile) return start<Flat, 1, kGated, StreamedInputs<Flat, 1, kGated>>(how, a);
    start<Tall, 2, kGated, StreamedInputs<Tall, 2, kGated>>(how, a);
}

} // namespace

bool fewTakeFloats(const Launch& how, int n, int cols) {
    constexpr std::size_t kMostHeld = 80 * 1024; // every thread block reads and keeps them all
    const std::size_t held = HeldInputs<Tall, false>::bytes(n, cols);
    return n <= kMostOfTall && held <= kMostHeld && Tall::allBytes(1, held) <= how.blockShared;
}

void multiplyFew(const Launch& how, const FewInputs& args) {
    args.out.hidden != nullptr ? startGated<true>(how, args) : startGated<false>(how, args);
}

} // namespace kvscope::cuda
