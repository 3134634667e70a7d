#include "kernels/cuda/transfer/quantised_blocks.h"

#include "kernels/cuda/device/common.cuh"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/transfer/copy_ring.cuh"
#include "kernels/cuda/transfer/quantised_numbers.cuh"

#include <algorithm>
#include <climits>

namespace kvscope::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kMostScales = 128 * 8; // of a matrix

/// The scales of the matrix that a thread block quantises, in the order in which its block has them: at first the least
/// and the largest number of a group, as integers in the same order.
struct Scales {
    union {
        int least[kMostScales];
        float step[kMostScales];
    };
    union {
        int largest[kMostScales];
        float zero[kMostScales];
    };
};

/// An integer for every float, in the order of the floats; NaN comes before or after all of them. The same again makes
/// a float's bits of the integer.
__device__ inline int inOrder(int bits) { return bits ^ (bits >> 31 & 0x7fffffff); }

/// @return step and zero point
template <KvType kType> __device__ inline float2 scaleOf(int least, int largest) {
    constexpr int kInfinity = 0x7f800000;
    if (largest >= kInfinity || least <= inOrder(0xff800000))
        return {__int_as_float(0x7fc00000), 0.f}; // so that it does not come back as a number
    const float low = __int_as_float(inOrder(least)), high = __int_as_float(inOrder(largest));
    if constexpr (kType == KvType::INT4)
        return {__half2float(__float2half_rn(__fdiv_rn(high - low, 15.f))), __half2float(__float2half_rn(low))};
    const float most = fmaxf(fabsf(low), fabsf(high));
    return {__half2float(__float2half_rn(__fdiv_rn(most, kType == KvType::FP8 ? 448.f : 127.f))), 0.f};
}

/// Calls visit(at) for each eight numbers of a group of rows that are this thread's.
template <class Visit>
__device__ inline void visitGroup(const CodeMatrix& m, const MatrixShare& share, int group, const Visit& visit) {
    const int end = min(m.rows, (group + 1) * m.groupRows);
#pragma unroll 4
    for (int row = group * m.groupRows + share.row; row < end; row += share.rowStep) visit(row * m.cols + share.col);
}

/// Finds the scales of a bf16 matrix. The threads of a thread block share the work, and wait for each other at the end.
template <KvType kType>
__device__ void measure(const CodeMatrix& m, const MatrixShare& share, const Bf16* numbers, Scales& scales) {
    const int count = m.cols * m.groups;
    for (int i = int(threadIdx.x); i < count; i += int(blockDim.x))
        scales.least[i] = INT_MAX, scales.largest[i] = INT_MIN;
    __syncthreads();
    for (int group = 0; group < m.groups; ++group) {
        int least[kTogether], largest[kTogether];
        for (int i = 0; i < kTogether; ++i) least[i] = INT_MAX, largest[i] = INT_MIN;
        visitGroup(m, share, group, [&](int at) {
            const uint4 words = *reinterpret_cast<const uint4*>(numbers + at);
            const std::uint32_t pairs[] = {words.x, words.y, words.z, words.w};
#pragma unroll
            for (int i = 0; i < kTogether; ++i) {
                const int place = inOrder(int(i % 2 == 0 ? pairs[i / 2] << 16 : pairs[i / 2] & 0xffff0000u));
                least[i] = min(least[i], place), largest[i] = max(largest[i], place);
            }
        });
        if (share.row == m.rows) continue;
#pragma unroll
        for (int i = 0; i < kTogether; ++i) {
            const int column = (share.col + i) * m.groups + group;
            atomicMin(&scales.least[column], least[i]), atomicMax(&scales.largest[column], largest[i]);
        }
    }
    __syncthreads();
    for (int i = int(threadIdx.x); i < count; i += int(blockDim.x)) {
        const float2 scale = scaleOf<kType>(scales.least[i], scales.largest[i]);
        scales.step[i] = scale.x, scales.zero[i] = scale.y;
    }
    __syncthreads();
}

/// Where a quantised block goes, in its format: to no, one or two places.
struct Targets {
    char *first = nullptr, *second = nullptr;
    template <class Word> __device__ void put(std::int64_t part, int index, Word word) const {
        if (first != nullptr) reinterpret_cast<Word*>(first + part)[index] = word;
        if (second != nullptr) reinterpret_cast<Word*>(second + part)[index] = word;
    }
};

/// Quantises the keys or the values of a bf16 block. back: the block gets the numbers that come back. All threads of
/// the thread block call it. Not inlined: divisions may be calls, over which the caller would keep its registers in
/// memory.
template <KvType kType>
__device__ void quantise(KvFormat format, bool values, Bf16* block, Targets to, bool back, Scales& scales) {
    const CodeMatrix m = codeMatrix(format, values);
    const MatrixShare share(m, int(threadIdx.x), int(blockDim.x));
    Bf16* const numbers = block + m.numbersAt;
    __syncthreads(); // the scales of the matrix before are used no more
    measure<kType>(m, share, numbers, scales);
    for (int i = int(threadIdx.x); i < m.cols * m.groups; i += int(blockDim.x))
        if constexpr (kType == KvType::INT4)
            to.put(m.scalesAt, i, __floats2half2_rn(scales.step[i], scales.zero[i]));
        else
            to.put(m.scalesAt, i, __float2half_rn(scales.step[i]));
    for (int group = 0; group < m.groups; ++group) {
        EightScales<kType> eight;
#pragma unroll
        for (int i = 0; i < kTogether; ++i) {
            const int column = (share.col + i) * m.groups + group;
            eight.set(i, scales.step[column], scales.zero[column]);
        }
        visitGroup(m, share, group, [&](int at) {
            auto* const place = reinterpret_cast<uint4*>(numbers + at);
            const EightCodes<kType> codes = codesOf<kType>(*place, eight);
            to.put(m.codesAt, at / kTogether, codes);
            if (back) *place = numbersOf<kType>(codes, eight);
        });
    }
}

template <KvType kType> __global__ void __launch_bounds__(kThreads, 1) storeQuantisedKernel(StoreQuantisedArgs a) {
    __shared__ Scales scales;
    letNextKernelStart();
    waitForEarlierKernels();
    const std::int64_t bytes = a.format.blockBytes(), numbers = a.format.numbers();
    for (int i = int(blockIdx.x); i < 2 * a.blocks; i += int(gridDim.x))
        quantise<kType>(a.format, i % 2 != 0, const_cast<Bf16*>(a.from) + blockIdx.y * a.fromStride + i / 2 * numbers,
                        {static_cast<char*>(a.to) + blockIdx.y * a.toStride + i / 2 * bytes}, false, scales);
}

template <KvType kType> __global__ void __launch_bounds__(kThreads, 1) roundBlocksKernel(RoundBlocksArgs a) {
    __shared__ Scales scales;
    letNextKernelStart();
    waitForEarlierKernels();
    for (int i = int(blockIdx.x); i < 2 * a.count; i += int(gridDim.x))
        quantise<kType>(a.format, i % 2 != 0, a.blocks + blockIdx.y * a.stride + i / 2 * a.format.numbers(), {}, true,
                        scales);
}

template <KvType kType> __global__ void __launch_bounds__(kThreads, 1) roundNewestKernel(RoundNewestArgs a) {
    __shared__ Scales scales;
    letNextKernelStart();
    waitForEarlierKernels();
    const int head = int(blockIdx.x), row = head / a.kvHeads, tokens = a.format.blockTokens;
    if ((a.active != nullptr && a.active[row] == 0) || (a.position[row] + 1) % tokens != 0) return;
    const std::int64_t block = a.headFirst[head] + a.position[row] / tokens;
    quantise<kType>(a.format, blockIdx.y != 0, a.blocks + block * a.format.numbers(), {}, true, scales);
}

// The gather. A slot holds a full block as the host has it, so that a load is a copy. Some thread blocks load, in
// pieces through rings of bulk copies; the others write back the blocks that have become full.
struct Rings { // 72 KiB, which leaves the kernels that follow their cache and fits everywhere
    static constexpr int kDrivers = 3, kStages = 3;
};
constexpr int kGatherThreads = 256;
constexpr int kWritingBlocks = 12;
static_assert(Rings::kDrivers * kWarp <= kGatherThreads);

#if __CUDA_ARCH__ >= 900
/// Copies every loaders-th piece of the listed loads, beginning with piece `loader`. One thread calls this.
__device__ void loadPieces(const GatherArgs& a, const BlockPieces& pieces, std::uint32_t blocks, int loader,
                           int loaders, CopyRing<Rings>& ring) {
    const int all = int(blocks) * pieces.count;
    if (loader >= all) return;
    const auto pieceAt = [&](int turn) {
        const int index = loader + turn * loaders, block = index / pieces.count;
        return pieceOf(a.moves.loads[block], index - block * pieces.count, true, a, pieces);
    };
    ring.move((all - loader + loaders - 1) / loaders, pieceAt, [](int) {});
}
#endif

/// loading: the first thread blocks, which load; the others write back.
template <KvType kType>
__global__ void __launch_bounds__(kGatherThreads, 1)
    gatherQuantisedKernel(GatherArgs a, KvFormat format, BlockPieces pieces, int loading) {
    using Part = GatherArgs::Part;
    __shared__ Scales scales;
    letNextKernelStart();
    waitForEarlierKernels();
    const std::uint32_t loads = a.part == Part::WriteBacks ? 0 : a.moves.counts[0],
                        writeBacks = a.part == Part::Loads ? 0 : a.moves.counts[1];
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        stamp(a.mark);
        if (a.recordCounts != nullptr && a.part != Part::WriteBacks) a.recordCounts[0] = loads;
        if (a.recordCounts != nullptr && a.part != Part::Loads) a.recordCounts[1] = writeBacks;
    }
    const int writer = int(blockIdx.x) - loading;
    if (writer < 0) {
#if __CUDA_ARCH__ >= 900
        extern __shared__ __align__(128) char stages[];
        __shared__ RingMemory<Rings> memory;
        const int driver = int(threadIdx.x) / kWarp;
        if (threadIdx.x % kWarp == 0 && driver < Rings::kDrivers && loads > 0) {
            CopyRing<Rings> ring(stages, memory, driver);
            loadPieces(a, pieces, loads, driver * loading + int(blockIdx.x), Rings::kDrivers * loading, ring);
        }
#else
        // Plain 16-byte loads, four in flight per thread.
        const int words = pieces.blockBytes / 16;
        for (std::uint32_t m = blockIdx.x; m < loads; m += unsigned(loading)) {
            const BlockMove move = a.moves.loads[m];
            const auto* from =
                reinterpret_cast<const uint4*>(reinterpret_cast<const char*>(a.store) + move.store * pieces.blockBytes);
            auto* to = reinterpret_cast<uint4*>(reinterpret_cast<char*>(a.pool) + move.slot * pieces.blockBytes);
#pragma unroll 4
            for (int i = int(threadIdx.x); i < words; i += kGatherThreads) to[i] = loadOnce(from + i);
        }
#endif
    } else {
        const std::uint32_t matrices = 2 * writeBacks, writers = gridDim.x - unsigned(loading);
        for (std::uint32_t i = unsigned(writer); i < matrices; i += writers) {
            const BlockMove move = a.moves.writeBacks[i / 2];
            quantise<kType>(format, i % 2 != 0, a.newest + move.slot / a.slots * format.numbers(),
                            {reinterpret_cast<char*>(a.storeOut) + move.store * pieces.blockBytes,
                             reinterpret_cast<char*>(a.pool) + move.slot * pieces.blockBytes},
                            true, scales);
        }
    }
    __syncthreads();
    if (threadIdx.x == 0) stampLatest(a.endMark);
}

} // namespace

void checkQuantisedFormat(const KvFormat& f) {
    if (hasScales(f.type) && (f.dim == 64 || f.dim == 128) && f.valueDim == f.dim && !f.bias && f.blockTokens >= 16 &&
        f.blockTokens <= 256 && f.blockTokens % 16 == 0)
        return;
    throw Error(ErrorKind::Unsupported,
                "on a GPU KV blocks are kept in 8 and 4 bits where heads have 64 or 128 channels",
                "leave --kv-type out, or use a model with heads of 64 or 128 channels");
}

void storeQuantised(const Launch& how, const StoreQuantisedArgs& args) {
    if (args.blocks == 0 || args.heads == 0) return;
    const unsigned many = unsigned(args.blocks < 32 ? 2 * args.blocks : 64);
    withType(args.format, [&](auto type) {
        launch(how, {dim3(many, unsigned(args.heads)), dim3(kThreads)}, storeQuantisedKernel<decltype(type)::value>,
               "storing KV blocks", args);
    });
}

void roundBlocks(const Launch& how, const RoundBlocksArgs& args) {
    if (args.count == 0 || args.heads == 0) return;
    const unsigned many = unsigned(args.count < 512 ? 2 * args.count : 1024);
    withType(args.format, [&](auto type) {
        launch(how, {dim3(many, unsigned(args.heads)), dim3(kThreads)}, roundBlocksKernel<decltype(type)::value>,
               "quantising KV blocks", args);
    });
}

void roundNewest(const Launch& how, const RoundNewestArgs& args) {
    if (args.rows == 0) return;
    withType(args.format, [&](auto type) {
        launch(how, {dim3(unsigned(args.rows * args.kvHeads), 2), dim3(kThreads)},
               roundNewestKernel<decltype(type)::value>, "quantising KV blocks", args);
    });
}

void gatherQuantised(const Launch& how, const GatherArgs& args, const KvFormat& format, int blocks) {
    constexpr const char* kName = "preparing the transfers";
    const int loading = how.clusters ? blocks : 4 * blocks;
    withType(format, [&](auto type) {
        const auto kernel = gatherQuantisedKernel<decltype(type)::value>;
        if (how.clusters) {
            allowShared(kernel, kRingBytes<Rings>, kName);
            leaveCache(kernel, kName);
        }
        launch(how,
               {dim3(unsigned(loading + kWritingBlocks)), dim3(kGatherThreads), how.clusters ? kRingBytes<Rings> : 0},
               kernel, "moving KV blocks", args, format, BlockPieces(int(format.blockBytes())), loading);
    });
}

} // namespace kvscope::cuda
