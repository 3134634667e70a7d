#include "kernels/cuda/diffusion/block_place.h"

#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/diffusion/active_tokens.cuh"
#include "kernels/cuda/token/rotation.cuh"

#include <algorithm>

namespace kvscope::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;

/// Normalises one head of one token, where weight is not null, and rotates it. in: its `dim` numbers; angles: where the
/// cosines and sines of its position begin. `out(channel, value)` gets every rotated channel once. A warp calls this.
template <class Out>
__device__ void rotateHead(const BlockPlaceArgs& a, const float* in, const float* weight, std::size_t angles,
                           Out&& out) {
    const int dim = a.rows.shape.dim, half = dim / 2;
    const float inverse = weight != nullptr ? inverseNorm(in, dim, a.norms.eps) : 1.f;
    for (int c = int(threadIdx.x) % kWarp; c < half; c += kWarp) {
        const Pair pair(a.interleaved, c, half);
        float x = in[pair.low], y = in[pair.high];
        if (weight != nullptr) {
            x *= inverse * weight[pair.low];
            y *= inverse * weight[pair.high];
        }
        const float cos = a.cos[angles + std::size_t(c)], sin = a.sin[angles + std::size_t(c)];
        out(pair.low, x * cos - y * sin);
        out(pair.high, y * cos + x * sin);
    }
}

/// A lane's part of how much a head has changed since the forward before: the square sums of differences and of
/// numbers.
struct Change {
    float change = 0, size = 0;
    /// Adds a number. before: the number of the forward before, which `value` replaces.
    __device__ void add(float value, float& before) {
        const float difference = value - before;
        change = fmaf(difference, difference, change);
        size = fmaf(value, value, size);
        before = value;
    }
    /// Writes the warp's sums. All lanes of the warp call this.
    __device__ void write(float2& to) {
        change = warpSum(change);
        size = warpSum(size);
        if (threadIdx.x % kWarp == 0) to = make_float2(change, size);
    }
};

/// Normalises and rotates queries and keys, writes queries to `q` and keys and values into their KV blocks, and sums up
/// how much they changed. Grid (tokens of all rows, heads / 8): a warp takes a query head, a key or a value of one
/// token.
__global__ void __launch_bounds__(kThreads) placeKernel(BlockPlaceArgs a) {
    letNextKernelStart();
    waitForEarlierKernels();
    if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) stamp(a.mark);
    const AttentionShape& shape = a.rows.shape;
    const int dim = shape.dim, queries = shape.queryHeads, heads = shape.kvHeads, lane = int(threadIdx.x) % kWarp;
    const int at = int(blockIdx.x), row = at / a.rows.block, unit = int(blockIdx.y) * kWarps + int(threadIdx.x) / kWarp;
    const BlockRow of = a.rows.table[row];
    if (!of.is(BlockRow::kTaken) || unit >= queries + 2 * heads) return;
    const int position = of.first + at - row * a.rows.block;
    const std::size_t angles = std::size_t(a.ropeFirst[of.sequence] + position) * std::size_t(dim / 2);
    const float* const in = a.qkv + (std::size_t(at) * std::size_t(queries + 2 * heads) + std::size_t(unit)) * dim;
    if (unit < queries) {
        const std::size_t head = std::size_t(at) * queries + unit;
        Bf16* const q = a.q + head * dim;
        Change change;
        rotateHead(a, in, a.norms.query, angles, [&](int c, float value) {
            q[c] = __float2bfloat16(value);
            if (a.before != nullptr) change.add(value, a.before[head * dim + c]);
        });
        if (a.before != nullptr) change.write(a.changes[head]);
        return;
    }
    const bool key = unit < queries + heads;
    const int g = key ? unit - queries : unit - queries - heads, bs = shape.blockSize, within = position % bs;
    Bf16* const block =
        a.blocks + std::size_t(a.rows.headFirst[of.sequence * heads + g] + position / bs) * blockElements(bs, dim);
    const std::size_t head = (std::size_t(at) * 2 + (key ? 0 : 1)) * heads + g; // among keys and values
    Change change;
    const auto put = [&](int c, float value) {
        block[key ? std::size_t(within) * dim + c : std::size_t(bs) * dim + std::size_t(c) * bs + within] =
            __float2bfloat16(value);
        if (a.beforeKv != nullptr) change.add(value, a.beforeKv[head * dim + c]);
    };
    if (key)
        rotateHead(a, in, a.norms.key, angles, put);
    else
        for (int c = lane; c < dim; c += kWarp) put(c, in[c]);
    if (a.beforeKv != nullptr) change.write(a.kvChanges[head]);
}

/// The mean square change over `heads` heads of one token; 0 where it is so small that rounding explains it. kTogether
/// neighbouring lanes share the token: lane `part` of them takes every kTogether-th head.
template <int kTogether = 1> __device__ inline float changeOf(const float2* sums, int heads, int dim, int part = 0) {
    constexpr double kSameNumbers = 1e-10;
    double change = 0, size = 0;
#pragma unroll 8
    for (int h = part; h < heads; h += kTogether) change += double(sums[h].x), size += double(sums[h].y);
#pragma unroll
    for (int offset = 1; offset < kTogether; offset *= 2) {
        change += __shfl_xor_sync(0xffffffffu, change, offset);
        size += __shfl_xor_sync(0xffffffffu, size, offset);
    }
    return change < kSameNumbers * size ? 0.f : float(change / (double(heads) * double(dim)));
}

/// Writes the mean square change of each token's keys, and of its values. Grid (rows, keys and values), a thread for
/// each token.
__global__ void __launch_bounds__(kMostDenoised) kvChangesKernel(KvChangesArgs a) {
    letNextKernelStart();
    waitForEarlierKernels();
    const int row = int(blockIdx.x), which = int(blockIdx.y), i = int(threadIdx.x), block = a.rows.block,
              heads = a.rows.shape.kvHeads;
    if (i >= block || !a.rows.table[row].is(BlockRow::kTaken)) return;
    a.scores[(row * 2 + which) * block + i] =
        changeOf(a.changes + (std::size_t(row * block + i) * 2 + which) * heads, heads, a.rows.shape.dim);
}

/// A number that sorts: NaN, which broken weights give, comes last.
__device__ inline float ranked(float value) { return isnan(value) ? -INFINITY : value; }

constexpr int kTokenLanes = 4; // that add up the changes of a token

/// Writes which tokens of the block are active, as bits for each KV head: those whose queries changed most, or all
/// where the row does not choose. Grid (rows, KV heads or 1), kTokenLanes neighbouring threads for each token.
__global__ void __launch_bounds__(kMostDenoised* kTokenLanes) activeKernel(NameActiveArgs a) {
    __shared__ float changes[kMostDenoised];
    __shared__ unsigned bits[2];
    letNextKernelStart();
    const int row = int(blockIdx.x), set = int(blockIdx.y), sets = int(gridDim.y), i = int(threadIdx.x) / kTokenLanes,
              part = int(threadIdx.x) % kTokenLanes;
    const BlockRow of = a.rows.table[row]; // copies alone write it
    waitForEarlierKernels();
    if (row == 0 && set == 0 && threadIdx.x == 0) stamp(a.mark);
    if (!of.is(BlockRow::kTaken)) return;
    const int block = a.rows.block, heads = a.rows.shape.queryHeads / sets, kvHeads = a.rows.shape.kvHeads;
    const bool compares = a.changes != nullptr && of.is(BlockRow::kCompares);
    float change = 0;
    if (compares) {
        const std::size_t token = std::size_t(row * block + min(i, block - 1));
        change = changeOf<kTokenLanes>(a.changes + token * a.rows.shape.queryHeads + set * heads, heads,
                                       a.rows.shape.dim, part);
        if (i < block && part == 0) {
            changes[i] = change;
            if (a.scores != nullptr) a.scores[std::size_t(row * sets + set) * block + i] = change;
        }
    }
    if (threadIdx.x < 2) bits[threadIdx.x] = 0;
    __syncthreads();
    bool active = i < block && part == 0;
    if (compares && of.is(BlockRow::kSparse) && !of.is(BlockRow::kEveryToken) && active) {
        int before = 0;
        for (int j = 0; j < block; ++j) {
            const float other = ranked(changes[j]), mine = ranked(change);
            before += other > mine || (other == mine && j < i) ? 1 : 0;
        }
        active = a.byThreshold ? double(change) >= a.threshold : before < a.count;
    }
    if (active) atomicOr(&bits[i / 32], 1u << (i % 32));
    __syncthreads();
    const std::uint64_t all = std::uint64_t(bits[1]) << 32 | bits[0];
    if (sets > 1) {
        if (threadIdx.x == 0) a.active[row * kvHeads + set] = all;
    } else {
        for (int g = int(threadIdx.x); g < kvHeads; g += int(blockDim.x)) a.active[row * kvHeads + g] = all;
    }
}

/// Writes the least and the largest key of each channel for the pages that a finished block lies in.
/// Grid (pages that a block may touch, kvHeads, rows), a thread per channel.
__global__ void boundKernel(BoundBlocksArgs a) {
    letNextKernelStart();
    waitForEarlierKernels();
    if (blockIdx.x == 0 && blockIdx.y == 0 && blockIdx.z == 0 && threadIdx.x == 0) stamp(a.mark);
    const AttentionShape& shape = a.rows.shape;
    const int g = int(blockIdx.y), dim = shape.dim, bs = shape.blockSize, c = int(threadIdx.x);
    const BlockRow of = a.rows.table[blockIdx.z];
    if (!of.is(BlockRow::kTaken) || !of.is(BlockRow::kClean)) return;
    const int end = of.first + a.rows.block, page = of.first / bs + int(blockIdx.x), tokens = min(bs, end - page * bs);
    if (tokens <= 0) return;
    const std::size_t at = std::size_t(a.rows.headFirst[of.sequence * shape.kvHeads + g] + page);
    const Bf16* const keys = a.blocks + at * blockElements(bs, dim) + c;
    float low = INFINITY, high = -INFINITY;
    for (int t = 0; t < tokens; ++t) {
        const float key = __bfloat162float(keys[t * dim]);
        low = fminf(low, key);
        high = fmaxf(high, key);
    }
    a.ranges[at * 2 * dim + c] = __float2bfloat16(low);
    a.ranges[(at * 2 + 1) * dim + c] = __float2bfloat16(high);
}

} // namespace

void placeBlocks(const Launch& how, const BlockPlaceArgs& args) {
    if (args.rows.rows == 0) return;
    const int units = args.rows.shape.queryHeads + 2 * args.rows.shape.kvHeads;
    launch(how,
           {dim3(unsigned(args.rows.rows * args.rows.block), unsigned((units + kWarps - 1) / kWarps)), dim3(kThreads)},
           placeKernel, "placing the blocks", args);
}

void nameActive(const Launch& how, const NameActiveArgs& args) {
    if (args.rows.rows == 0) return;
    const unsigned sets = args.perHead ? unsigned(args.rows.shape.kvHeads) : 1u;
    launch(how, {dim3(unsigned(args.rows.rows), sets), dim3(kMostDenoised * kTokenLanes)}, activeKernel,
           "naming active tokens", args);
}

void addKvChanges(const Launch& how, const KvChangesArgs& args) {
    if (args.rows.rows == 0) return;
    launch(how, {dim3(unsigned(args.rows.rows), 2u), dim3(kMostDenoised)}, kvChangesKernel, "comparing keys and values",
           args);
}

void boundBlocks(const Launch& how, const BoundBlocksArgs& args) {
    if (args.rows.rows == 0) return;
    const int bs = args.rows.shape.blockSize, pages = (args.rows.block + bs - 2) / bs + 1;
    launch(how,
           {dim3(unsigned(pages), unsigned(args.rows.shape.kvHeads), unsigned(args.rows.rows)),
            dim3(unsigned(args.rows.shape.dim))},
           boundKernel, "bounding the blocks", args);
}

} // namespace kvscope::cuda
