#include "kernels/cuda/linear/packed.h"

#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/linear/gate.cuh"
#include "kernels/cuda/linear/packed_formats.cuh"

#include <algorithm>
#include <type_traits>

namespace kvscope::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;

struct Job {
    PackedProduct p;
    int chunks = 0, tiles = 0; // chunks of a row tile; groups of kRowTiles row tiles
};

__device__ inline void copyToShared(unsigned to, const void* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

/// Multiplies one chunk of weights and adds the products up. inputs(block, j) gives the fragments of 32 columns of the
/// 8 inputs of tile j, for two instructions. sumsOf(block) gives the sums of the input's first and last 16 columns
/// where there is one input; null: the sums are made by the tensor cores as well.
template <class Format, int kRowTiles, int kInputTiles, class Inputs, class Sums>
__device__ inline void multiplyChunk(const PackedPiece<Format> (&w)[kRowTiles], Inputs&& inputs, Sums&& sumsOf,
                                     float (&acc)[kRowTiles][kInputTiles][4]) {
    constexpr bool kSumsKnown = !std::is_null_pointer_v<std::remove_cvref_t<Sums>>;
    constexpr std::uint32_t kOnes = 0x3f803f80u;
    constexpr bool kSummed = Format::kBase != 0;
    constexpr int kParts = Format::kFine ? 2 : 1, kSteps = 2 / kParts; // 16 or 32 columns share a scale
    uint4 next[kInputTiles];
#pragma unroll
    for (int j = 0; j < kInputTiles; ++j) next[j] = inputs(0, j);
#pragma unroll
    for (int block = 0; block < Format::kBlocks; ++block) {
        uint4 x[kInputTiles];
#pragma unroll
        for (int j = 0; j < kInputTiles; ++j) {
            x[j] = next[j];
            if (block + 1 < Format::kBlocks) next[j] = inputs(block + 1, j); // asked for one block ahead
        }
        float known[2] = {};
        if constexpr (kSummed && kSumsKnown) {
            const float2 both = sumsOf(block);
            known[0] = kParts == 1 ? both.x + both.y : both.x;
            known[1] = both.y;
        }
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
            float sums[kInputTiles][4] = {};
            if constexpr (kSummed && !kSumsKnown) {
#pragma unroll
                for (int j = 0; j < kInputTiles; ++j)
#pragma unroll
                    for (int step = 0; step < kSteps; ++step) {
                        const bool first = part + step == 0;
                        mma16816(sums[j], kOnes, kOnes, kOnes, kOnes, first ? x[j].x : x[j].z, first ? x[j].y : x[j].w);
                    }
            }
#pragma unroll
            for (int r = 0; r < kRowTiles; ++r) {
                float c[kInputTiles][4] = {};
#pragma unroll
                for (int step = 0; step < kSteps; ++step) {
                    const int t = part + step;
                    const std::uint32_t a0 = Format::fragment(w[r], block, 0, t * 2),
                                        a1 = Format::fragment(w[r], block, 1, t * 2),
                                        a2 = Format::fragment(w[r], block, 0, t * 2 + 1),
                                        a3 = Format::fragment(w[r], block, 1, t * 2 + 1);
#pragma unroll
                    for (int j = 0; j < kInputTiles; ++j) {
                        auto& to = Format::kScaled ? c[j] : acc[r][j];
                        mma16816(to, a0, a1, a2, a3, t == 0 ? x[j].x : x[j].z, t == 0 ? x[j].y : x[j].w);
                    }
                }
                if constexpr (Format::kScaled) {
#pragma unroll
                    for (int half = 0; half < 2; ++half) {
                        const ScaleAndLeast s = Format::scaleOf(w[r], block, part, half);
                        const float shift = fmaf(s.scale, -Format::kBase, s.least);
                        if constexpr (kSummed && kSumsKnown) // once: both columns of the input are added up in the end
                            acc[r][0][half * 2] = fmaf(shift, known[part], acc[r][0][half * 2]);
#pragma unroll
                        for (int j = 0; j < kInputTiles; ++j)
#pragma unroll
                            for (int e = half * 2; e < half * 2 + 2; ++e) {
                                acc[r][j][e] = fmaf(s.scale, c[j][e], acc[r][j][e]);
                                if constexpr (kSummed && !kSumsKnown)
                                    acc[r][j][e] = fmaf(shift, sums[j][e], acc[r][j][e]);
                            }
                    }
                }
            }
        }
    }
}

/// Brings this warp's columns of the one input into shared memory: each number is split into two bf16 numbers, which
/// are laid out as fragments, [block][quad][8] in `high` and in `low`. sums: the sum of each 16 columns. cols: a
/// multiple of 32. @return this lane's share of the sum of squares
__device__ inline float stageInput(const PackedProduct& p, int firstCol, int cols, Bf16* high, Bf16* low, float* sums) {
    float squares = 0;
    const int lane = threadIdx.x % kWarp;
    for (int base = 0; base < cols; base += kWarp * 4) {
        const int at = base + lane * 4, col = firstCol + at;
        float4 x = make_float4(0, 0, 0, 0);
        if (at < cols && col < p.cols) {
            if (p.x != nullptr) {
                x = *reinterpret_cast<const float4*>(p.x + col);
                squares += x.x * x.x + x.y * x.y + x.z * x.z + x.w * x.w;
                if (p.normWeight != nullptr) {
                    const float4 u = *reinterpret_cast<const float4*>(p.normWeight + col);
                    x.x *= u.x, x.y *= u.y, x.z *= u.z, x.w *= u.w;
                }
            } else {
                const uint2 half = *reinterpret_cast<const uint2*>(p.xHalf + col);
                x = make_float4(lowHalf(half.x), highHalf(half.x), lowHalf(half.y), highHalf(half.y));
            }
        }
        const uint2 top = make_uint2(packBf16(x.x, x.y), packBf16(x.z, x.w));
        const uint2 rest = make_uint2(packBf16(x.x - lowHalf(top.x), x.y - highHalf(top.x)),
                                      packBf16(x.z - lowHalf(top.y), x.w - highHalf(top.y)));
        const auto sumOf = [](const uint2& four) {
            return (lowHalf(four.x) + highHalf(four.x)) + (lowHalf(four.y) + highHalf(four.y));
        };
        float sum = sumOf(top) + sumOf(rest);
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        if (at >= cols) continue;
        const int to = at / 32 * 32 + at % 16 / 4 * 8 + at % 32 / 16 * 4;
        *reinterpret_cast<uint2*>(high + to) = top;
        *reinterpret_cast<uint2*>(low + to) = rest;
        if (lane % 4 == 0) sums[at / 16] = sum;
    }
    return squares;
}

/// Stores the products `low` and `high` of the rows `row` and `row` + 8 of a tile with one input.
__device__ inline void store(const PackedProduct& p, int row, int output, float low, float high) {
    if (p.hidden != nullptr) {
        if (row < p.rows)
            p.hidden[std::size_t(output) * (p.rows / 2) + (row / 16 * 8 + row % 16)] =
                __float2bfloat16(gated(low, high, p.gate));
        return;
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int to = row + half * 8;
        if (to >= p.rows) continue;
        const float value = (half == 0 ? low : high) + (p.bias != nullptr ? p.bias[to] : 0.f);
        float* y = p.y + std::size_t(output) * p.stride + to;
        *y = p.accumulate ? *y + value : value;
    }
}

/// The number of the index-th expert that has inputs; -1: fewer have. Every warp finds it by itself.
__device__ inline int expertAt(const ExpertGroups& groups, int index) {
    for (int base = 0; base < groups.experts; base += kWarp) {
        const int e = base + int(threadIdx.x % kWarp);
        unsigned busy = __ballot_sync(0xffffffffu, e < groups.experts && groups.counts[e] > 0);
        const int here = __popc(busy);
        if (index >= here) {
            index -= here;
            continue;
        }
        for (; index > 0; --index) busy &= busy - 1;
        return base + __ffs(int(busy)) - 1;
    }
    return -1;
}

/// Bytes of a warp's slice of the one input in shared memory: two bf16 parts and the sums of each 16 columns.
__host__ __device__ constexpr int stagedBytes(int cols) { return (cols * 2 + 32) * 2 + cols / 16 * 4 + 64; }

/// How many chunks a warp has under way in its ring in shared memory: enough to keep memory busy, and few enough for
/// thread blocks of the next kernel to find room on the multiprocessor.
template <class Format, int kRowTiles, bool kOne> constexpr int ringStages() {
    constexpr int kBytes = Format::kBytes * kRowTiles;
    if (kOne)
        return kBytes <= 1152   ? 5
               : kBytes <= 1536 ? 4
               : kBytes <= 2304 ? 3
                                : 2; // a multiprocessor holds three thread blocks of a layer with 4,096 columns
    return kBytes <= 2304 ? 4 : kBytes <= 3400 ? 3 : 2; // at most 90 KiB with the sums
}

/// Grid (row tiles, busy experts or 1). Thread blocks take row tiles in turn. The warps of a thread block split the
/// columns, and their sums of a tile are added up in shared memory. A warp copies its next chunks ahead, also those of
/// the next tile. kOne: there is a single input.
template <class Format, int kRowTiles, int kInputTiles, bool kOne>
__global__ void __launch_bounds__(kThreads, kOne ? 3 : 2) packedKernel(Job job) {
    extern __shared__ __align__(16) std::byte dynamic[];
    constexpr int kKept = kOne ? 8 : kWarp; // lanes whose sums are used
    __shared__ float sums[kOne ? 2 : 1][kWarps][kRowTiles][kInputTiles][kKept][4];
    __shared__ float squares[kWarps];
    const PackedProduct& p = job.p;
    constexpr int kStages = ringStages<Format, kRowTiles, kOne>(), kStageBytes = Format::kBytes * kRowTiles;
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, quad = lane % 4;
    const int begin = job.chunks * warp / kWarps, end = job.chunks * (warp + 1) / kWarps;
    const int rowTiles = (p.rows + 15) / 16;
    std::byte* ring = dynamic + warp * kStages * kStageBytes;
    const std::byte* weights = p.w;
    letNextKernelStart();

    // The place of the next copy, kept as pointers that advance: working it out anew for every chunk takes longer.
    const std::size_t rowBytes = std::size_t(job.chunks) * Format::kBytes;
    const std::size_t tileJump = rowBytes * (gridDim.x * kRowTiles - 1) + (job.chunks - (end - begin)) * Format::kBytes;
    const std::byte* next = nullptr;
    unsigned ringAt = 0;
    int nextTile = 0, nextChunk = 0, nextStage = 0;
    const auto restart = [&] {
        nextTile = blockIdx.x, nextChunk = begin;
        next = weights + std::size_t(nextTile) * kRowTiles * rowBytes + begin * Format::kBytes + lane * 16;
        ringAt = unsigned(__cvta_generic_to_shared(ring)) + lane * 16;
    };
    const auto fetch = [&] { // every call is one group of copies, which the wait below counts
        if (nextTile < job.tiles && begin < end) {
            const unsigned to = ringAt + nextStage * kStageBytes;
#pragma unroll
            for (int r = 0; r < kRowTiles; ++r) {
                const std::byte* from = next + (r > 0 && nextTile * kRowTiles + r < rowTiles ? rowBytes : 0);
#pragma unroll
                for (int i = 0; i < (Format::kBytes / 16 + kWarp - 1) / kWarp; ++i)
                    if (i * kWarp + lane < Format::kBytes / 16)
                        copyToShared(to + r * Format::kBytes + i * kWarp * 16, from + i * kWarp * 16);
            }
            next += Format::kBytes;
            if (++nextChunk == end) nextChunk = begin, nextTile += gridDim.x, next += tileJump;
        }
        nextStage = nextStage + 1 == kStages ? 0 : nextStage + 1;
        asm volatile("cp.async.commit_group;" ::: "memory");
    };
    restart();
    const bool grouped = p.groups.counts != nullptr;
    if (!grouped) { // before the wait: no kernel writes weights, but earlier ones choose experts
#pragma unroll
        for (int s = 0; s < kStages; ++s) fetch();
    }
    waitForEarlierKernels();
    if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) stamp(p.mark);

    int inputs = p.n;
    const std::int32_t* pairs = nullptr;
    if (grouped) {
        const int expert = expertAt(p.groups, blockIdx.y);
        if (expert < 0) return; // the whole thread block leaves
        inputs = p.groups.counts[expert];
        pairs = p.groups.pairs + std::size_t(expert) * p.groups.capacity;
        weights += std::size_t(expert) * p.groups.bytes;
    }
    const int mine = (end - begin) * Format::kCols, slice = (job.chunks + kWarps - 1) / kWarps * Format::kCols;
    // [high parts][low parts][sums]; 32 numbers between the parts put them into different banks
    std::byte* input = dynamic + kWarps * kStages * kStageBytes + std::size_t(warp) * stagedBytes(slice);
    Bf16 *high = reinterpret_cast<Bf16*>(input), *low = high + slice + 32;
    float* columnSums = reinterpret_cast<float*>(low + slice);
    if constexpr (kOne) {
        const float share = warpSum(stageInput(p, begin * Format::kCols, mine, high, low, columnSums));
        if (lane == 0) squares[warp] = share;
        __syncwarp();
    }
    float inputScale = 0; // scale of the one input's norm; 0: not worked out yet
    int turn = 0, stage = 0;
    for (int firstInput = 0; firstInput < inputs; firstInput += kInputTiles * 8) {
        const Bf16* rows[kInputTiles] = {};
        if constexpr (!kOne) {
#pragma unroll
            for (int j = 0; j < kInputTiles; ++j) {
                int input = min(firstInput + j * 8 + lane / 4, inputs - 1);
                if (grouped) input = p.groups.inputPerPair ? pairs[input] : pairs[input] / p.groups.used;
                rows[j] = p.xHalf + std::size_t(input) * p.cols + quad * 4;
            }
        }
        if (grouped) { // starts over with the first tile; the ring is empty, as no copies follow the last tile
            restart();
            nextStage = stage;
#pragma unroll
            for (int s = 0; s < kStages; ++s) fetch();
        }
        const auto knownSums = [&](int chunk) {
            if constexpr (kOne)
                return [at = columnSums + (chunk - begin) * (Format::kCols / 16)](int block) {
                    return *reinterpret_cast<const float2*>(at + block * 2);
                };
            else
                return nullptr;
        };
        for (int tile = blockIdx.x; tile < job.tiles; tile += gridDim.x, turn ^= 1) {
            float acc[kRowTiles][kInputTiles][4] = {};
            for (int chunk = begin; chunk < end; ++chunk) {
                asm volatile("cp.async.wait_group %0;" ::"n"(kStages - 1) : "memory");
                __syncwarp(); // the copies of all lanes have arrived
                PackedPiece<Format> w[kRowTiles];
#pragma unroll
                for (int r = 0; r < kRowTiles; ++r)
                    loadPiece<Format>(ring + stage * kStageBytes + r * Format::kBytes, w[r]);
                stage = stage + 1 == kStages ? 0 : stage + 1;
                __syncwarp(); // all lanes have read the stage, which may be filled again
                fetch();
                multiplyChunk<Format, kRowTiles, kInputTiles>(
                    w,
                    [&](int block, int j) -> uint4 {
                        if constexpr (kOne) { // the input's high part is column 0 of the tile, its low part column 1
                            const int at = (chunk - begin) * Format::kCols + block * 32 + quad * 8;
                            return *reinterpret_cast<const uint4*>((lane & 4 ? low : high) + at);
                        } else {
                            const int col = chunk * Format::kCols + block * 32;
                            if (col >= p.cols) return make_uint4(0, 0, 0, 0);
                            const uint2 x = *reinterpret_cast<const uint2*>(rows[j] + col),
                                        y = *reinterpret_cast<const uint2*>(rows[j] + col + 16);
                            return make_uint4(x.x, x.y, y.x, y.y);
                        }
                    },
                    knownSums(chunk), acc);
            }
            if constexpr (kOne) {
                if (quad == 0) // holds columns 0 and 1, the products with the input's two parts
                    *reinterpret_cast<float2*>(sums[turn][warp][0][0][lane / 4]) =
                        make_float2(acc[0][0][0] + acc[0][0][1], acc[0][0][2] + acc[0][0][3]);
                __syncthreads(); // the sums are complete, and those of the turn before have been read
                if (warp < 2) {  // 8 threads take a pair of rows, each of them one warp's share
                    const int pair = threadIdx.x / 8, from = threadIdx.x % 8, row = tile * 16 + pair;
                    if (inputScale == 0) {
                        float all = squares[from];
#pragma unroll
                        for (int offset = 4; offset > 0; offset /= 2) all += __shfl_xor_sync(0xffffffffu, all, offset);
                        inputScale = p.normWeight != nullptr ? rsqrtf(all / float(p.cols) + p.normEps) : 1.f;
                    }
                    float2 total = *reinterpret_cast<const float2*>(sums[turn][from][0][0][pair]);
#pragma unroll
                    for (int offset = 4; offset > 0; offset /= 2) {
                        total.x += __shfl_xor_sync(0xffffffffu, total.x, offset);
                        total.y += __shfl_xor_sync(0xffffffffu, total.y, offset);
                    }
                    if (from == 0) store(p, row, 0, total.x * inputScale, total.y * inputScale);
                }
            } else {
#pragma unroll
                for (int r = 0; r < kRowTiles; ++r)
#pragma unroll
                    for (int j = 0; j < kInputTiles; ++j)
                        *reinterpret_cast<float4*>(sums[0][warp][r][j][lane]) =
                            make_float4(acc[r][j][0], acc[r][j][1], acc[r][j][2], acc[r][j][3]);
                __syncthreads();
                // Lane l of a tile has the products of the rows l/4 and l/4 + 8 with the inputs 2(l%4) and 2(l%4) + 1.
                for (int item = threadIdx.x; item < kRowTiles * kInputTiles * kWarp; item += kThreads) {
                    const int l = item % kWarp, j = item / kWarp % kInputTiles, r = item / kWarp / kInputTiles;
                    float total[4] = {};
#pragma unroll
                    for (int u = 0; u < kWarps; ++u)
#pragma unroll
                        for (int e = 0; e < 4; ++e) total[e] += sums[0][u][r][j][l][e];
#pragma unroll
                    for (int e = 0; e < 2; ++e) {
                        const int at = firstInput + j * 8 + l % 4 * 2 + e;
                        if (at < inputs)
                            store(p, (tile * kRowTiles + r) * 16 + l / 4, grouped ? pairs[at] : at, total[e],
                                  total[e + 2]);
                    }
                }
                __syncthreads(); // the sums have been read: those of the next tile may take their place
            }
        }
    }
}

template <class Format, int kRowTiles, int kInputTiles, bool kOne>
void launchPacked(const Launch& how, const PackedProduct& p) {
    Job job{p, packedChunks(Format::kDType, p.cols), (packedTiles(p.rows) + kRowTiles - 1) / kRowTiles};
    const int groups = p.groups.counts != nullptr ? std::min(p.groups.experts, p.n * p.groups.used) : 1;
    const int resident = how.multiprocessors * (kOne ? 3 : 2);
    const int blocks = std::min(job.tiles, std::max(1, groups > 1 ? resident * 4 / groups : resident));
    const int slice = (job.chunks + kWarps - 1) / kWarps * Format::kCols;
    const std::size_t staged = kOne ? std::size_t(kWarps) * stagedBytes(slice) : 0;
    const std::size_t shared =
        std::size_t(kWarps) * ringStages<Format, kRowTiles, kOne>() * Format::kBytes * kRowTiles + staged;
    const auto kernel = packedKernel<Format, kRowTiles, kInputTiles, kOne>;
    allowShared(kernel, shared, "preparing a product");
    launch(how, {dim3(unsigned(blocks), unsigned(groups)), dim3(kThreads), shared}, kernel,
           "multiplying packed weights", job);
}

} // namespace

int packedFloatCols(const Launch& how) { return how.blockShared >= std::size_t(180) << 10 ? 24576 : 8192; }

void multiplyPacked(const Launch& how, const PackedProduct& p) {
    if (p.n == 0 || p.rows == 0) return;
    const bool grouped = p.groups.counts != nullptr;
    if (!grouped && (p.n > kPackedInputs || (p.x != nullptr && (p.n > 1 || p.cols > packedFloatCols(how)))))
        throw Error(ErrorKind::BadInput, "too many inputs for one product of packed weights",
                    "this is a bug in KVScope");
    forFormat(p.type, [&](auto format) {
        using Format = decltype(format);
        constexpr int kRowTiles = Format::kBytes <= 2304 ? 2 : 1; // two tiles together read the inputs once
        if (!grouped && p.n == 1 && p.cols <= packedFloatCols(how))
            launchPacked<Format, 1, 1, true>(how, p);
        else if (p.n <= 8)
            launchPacked<Format, kRowTiles, 1, false>(how, p);
        else
            launchPacked<Format, kRowTiles, 2, false>(how, p);
    });
}

} // namespace kvscope::cuda
