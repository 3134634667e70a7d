#include "kernels/cuda/transfer/quantised_blocks.h"

#include "kernels/cuda/device/bulk_copy.cuh"
#include "kernels/cuda/device/common.cuh"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/transfer/quantised_numbers.cuh"

#include <algorithm>
#include <climits>
#include <type_traits>

namespace kvscope::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kInFlight = 4;         // so many codes a thread takes from shared memory before it makes numbers of them
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

/// Quantises the keys or the values of a bf16 block. to: where the block goes in its format; null: nowhere. back: the
/// block gets the numbers that come back. All threads of the thread block call it. Not inlined: divisions may be calls,
/// over which the gather would keep its registers in memory.
template <KvType kType>
__device__ void quantise(KvFormat format, bool values, Bf16* block, char* to, bool back, Scales& scales) {
    const CodeMatrix m = codeMatrix(format, values);
    const MatrixShare share(m, int(threadIdx.x), int(blockDim.x));
    Bf16* const numbers = block + m.numbersAt;
    __syncthreads(); // the scales of the matrix before are used no more
    measure<kType>(m, share, numbers, scales);
    for (int i = int(threadIdx.x); to != nullptr && i < m.cols * m.groups; i += int(blockDim.x))
        if constexpr (kType == KvType::INT4)
            reinterpret_cast<__half2*>(to + m.scalesAt)[i] = __floats2half2_rn(scales.step[i], scales.zero[i]);
        else
            reinterpret_cast<__half*>(to + m.scalesAt)[i] = __float2half_rn(scales.step[i]);
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
            if (to != nullptr) reinterpret_cast<EightCodes<kType>*>(to + m.codesAt)[at / kTogether] = codes;
            if (back) *place = numbersOf<kType>(codes, eight);
        });
    }
}

/// Makes the bf16 numbers of a matrix of its codes and scales, which lie in shared memory. numbers: of the whole matrix
template <KvType kType>
__device__ void dequantise(const CodeMatrix& m, const MatrixShare& share, const char* codes, const char* scales,
                           Bf16* numbers) {
    const auto* eights = reinterpret_cast<const EightCodes<kType>*>(codes);
    if (share.row >= m.rows) return;
    for (int group = 0; group < m.groups; ++group) {
        const int end = min(m.rows, (group + 1) * m.groupRows);
        EightScales<kType> scale;
        scale.read(scales, share.col, group, m.groups);
        for (int first = group * m.groupRows + share.row; first < end; first += kInFlight * share.rowStep) {
            EightCodes<kType> flying[kInFlight];
#pragma unroll
            for (int i = 0; i < kInFlight; ++i) {
                const int row = first + i * share.rowStep;
                if (row < end) flying[i] = eights[(row * m.cols + share.col) / kTogether];
            }
#pragma unroll
            for (int i = 0; i < kInFlight; ++i) {
                const int row = first + i * share.rowStep;
                if (row < end)
                    *reinterpret_cast<uint4*>(numbers + row * m.cols + share.col) = numbersOf<kType>(flying[i], scale);
            }
        }
    }
}

template <KvType kType> __global__ void __launch_bounds__(kThreads, 1) storeQuantisedKernel(StoreQuantisedArgs a) {
    __shared__ Scales scales;
    letNextKernelStart();
    waitForEarlierKernels();
    const std::int64_t bytes = a.format.blockBytes(), numbers = a.format.numbers();
    for (int i = int(blockIdx.x); i < 2 * a.blocks; i += int(gridDim.x))
        quantise<kType>(a.format, i % 2 != 0, const_cast<Bf16*>(a.from) + blockIdx.y * a.fromStride + i / 2 * numbers,
                        static_cast<char*>(a.to) + blockIdx.y * a.toStride + i / 2 * bytes, false, scales);
}

template <KvType kType> __global__ void __launch_bounds__(kThreads, 1) roundBlocksKernel(RoundBlocksArgs a) {
    __shared__ Scales scales;
    letNextKernelStart();
    waitForEarlierKernels();
    for (int i = int(blockIdx.x); i < 2 * a.count; i += int(gridDim.x))
        quantise<kType>(a.format, i % 2 != 0, a.blocks + blockIdx.y * a.stride + i / 2 * a.format.numbers(), nullptr,
                        true, scales);
}

template <KvType kType> __global__ void __launch_bounds__(kThreads, 1) roundNewestKernel(RoundNewestArgs a) {
    __shared__ Scales scales;
    letNextKernelStart();
    waitForEarlierKernels();
    const int head = int(blockIdx.x), row = head / a.kvHeads, tokens = a.format.blockTokens;
    if ((a.active != nullptr && a.active[row] == 0) || (a.position[row] + 1) % tokens != 0) return;
    const std::int64_t block = a.headFirst[head] + a.position[row] / tokens;
    quantise<kType>(a.format, blockIdx.y != 0, a.blocks + block * a.format.numbers(), nullptr, true, scales);
}

// The gather. Keys and values of a block are two pieces: each has its codes and its scales, and goes through one stage
// of a thread block's ring. One warp asks the host's memory for pieces as soon as stages are free; teams of warps make
// bf16 of them in turns and store it to the slots.
constexpr int kTeamWarps = 4, kTeams = 2, kTeamThreads = kTeamWarps * kWarp;
constexpr int kGatherThreads = kTeams * kTeamThreads + kWarp;
constexpr int kMostStages = 32;
constexpr std::size_t kRingBytes = std::size_t(80) << 10; // leaves the kernels that follow their cache; fits everywhere

/// Bytes of shared memory for one piece: its codes, and behind them its scales.
__host__ __device__ inline int stageBytes(const KvFormat& format) {
    const CodeMatrix keys = codeMatrix(format, false), values = codeMatrix(format, true);
    const int scales = keys.scaleBytes > values.scaleBytes ? keys.scaleBytes : values.scaleBytes;
    return (keys.codeBytes + scales + 127) / 128 * 128;
}

/// The pieces of a list that a thread block moves: every gridDim.x-th of the loads, then of the write-backs.
struct PieceShare {
    std::uint32_t loads, writeBacks, all; // of the grid
    __device__ PieceShare(std::uint32_t loadBlocks, std::uint32_t writeBlocks)
        : loads(2 * loadBlocks), writeBacks(2 * writeBlocks), all(loads + writeBacks) {}
    __device__ std::uint32_t count() const {
        return blockIdx.x < loads ? (loads - blockIdx.x + gridDim.x - 1) / gridDim.x : 0;
    }
    /// Number `turn` of this thread block's.
    __device__ std::uint32_t at(std::uint32_t turn) const { return blockIdx.x + turn * gridDim.x; }
};

#if __CUDA_ARCH__ >= 900
struct Ring {
    std::uint64_t full[kMostStages], empty[kMostStages];
    Bf16* slot[kMostStages]; // where the piece in a stage goes
};

/// Asks for the pieces of this thread block, one after the other. One warp calls it.
__device__ void fillRing(const GatherArgs& a, const KvFormat& format, const PieceShare& pieces, Ring& ring, char* room,
                         std::uint32_t stages) {
    const std::int64_t numbers = format.numbers(), bytes = format.blockBytes();
    const std::uint32_t lane = threadIdx.x % kWarp, mine = pieces.count(), stride = std::uint32_t(stageBytes(format));
    asm volatile("fence.proxy.async;" ::: "memory"); // lists and blocks were written by ordinary stores
    std::uint32_t stage = 0, round = 0;
    for (std::uint32_t first = 0; first < mine; first += kWarp) { // every lane reads what one of the next pieces is
        const std::uint32_t count = min(mine - first, std::uint32_t(kWarp));
        const std::uint32_t piece = pieces.at(first + min(lane, count - 1));
        const BlockMove move = a.moves.loads[piece / 2];
        const CodeMatrix m = codeMatrix(format, piece % 2 != 0);
        const char* const from = reinterpret_cast<const char*>(a.store) + move.store * bytes;
        for (std::uint32_t i = 0; i < count; ++i) {
            if (round > 0) waitFor(ring.empty[stage], (round - 1) & 1);
            if (lane == i) {
                char* const to = room + stage * stride;
                ring.slot[stage] = a.pool + move.slot * numbers + m.numbersAt;
                expectBytes(ring.full[stage], unsigned(m.codeBytes + m.scaleBytes));
                bulkLoad(to, from + m.codesAt, unsigned(m.codeBytes), ring.full[stage]);
                bulkLoad(to + m.codeBytes, from + m.scalesAt, unsigned(m.scaleBytes), ring.full[stage]);
            }
            __syncwarp();
            if (++stage == stages) stage = 0, ++round;
        }
    }
}

/// Makes bf16 of every kTeams-th piece of this thread block.
template <KvType kType>
__device__ void emptyRing(const KvFormat& format, const PieceShare& pieces, Ring& ring, const char* room,
                          std::uint32_t stages) {
    const CodeMatrix keys = codeMatrix(format, false), values = codeMatrix(format, true);
    const int worker = int(threadIdx.x) % kTeamThreads;
    const MatrixShare ofKeys(keys, worker, kTeamThreads), ofValues(values, worker, kTeamThreads);
    const std::uint32_t mine = pieces.count(), stride = std::uint32_t(stageBytes(format));
    for (std::uint32_t turn = threadIdx.x / kTeamThreads; turn < mine; turn += kTeams) {
        const std::uint32_t stage = turn % stages;
        const char* const piece = room + stage * stride;
        waitFor(ring.full[stage], turn / stages & 1);
        if (pieces.at(turn) % 2 == 0)
            dequantise<kType>(keys, ofKeys, piece, piece + keys.codeBytes, ring.slot[stage]);
        else
            dequantise<kType>(values, ofValues, piece, piece + values.codeBytes, ring.slot[stage]);
        __syncwarp();
        if (threadIdx.x % kWarp == 0) arrive(ring.empty[stage]);
    }
}
#else
/// Brings this thread block's pieces one after the other: 16 bytes a thread, four in flight, into shared memory.
template <KvType kType>
__device__ void loadPieces(const GatherArgs& a, const KvFormat& format, const PieceShare& pieces, char* room) {
    for (std::uint32_t turn = 0; turn < pieces.count(); ++turn) {
        const std::uint32_t piece = pieces.at(turn);
        const CodeMatrix m = codeMatrix(format, piece % 2 != 0);
        const BlockMove move = a.moves.loads[piece / 2];
        const char* const from = reinterpret_cast<const char*>(a.store) + move.store * format.blockBytes();
        const auto bring = [&](char* to, const char* source, int bytes) {
#pragma unroll 4
            for (int i = int(threadIdx.x) * 16; i < bytes; i += int(blockDim.x) * 16)
                *reinterpret_cast<uint4*>(to + i) = loadOnce(source + i);
        };
        bring(room, from + m.codesAt, m.codeBytes);
        bring(room + m.codeBytes, from + m.scalesAt, m.scaleBytes);
        __syncthreads();
        dequantise<kType>(m, MatrixShare(m, int(threadIdx.x), int(blockDim.x)), room, room + m.codeBytes,
                          a.pool + move.slot * format.numbers() + m.numbersAt);
        __syncthreads();
    }
}
#endif

/// stages: of the ring of a thread block, in dynamic shared memory. One thread block on a multiprocessor is enough, so
/// that a thread may have the registers of both ways.
template <KvType kType>
__global__ void __launch_bounds__(kGatherThreads, 1)
    gatherQuantisedKernel(GatherArgs a, KvFormat format, std::uint32_t stages) {
    using Part = GatherArgs::Part;
    extern __shared__ __align__(128) char room[];
    __shared__ Scales scales;
    letNextKernelStart();
#if __CUDA_ARCH__ >= 900
    __shared__ Ring ring;
    if (threadIdx.x < stages) {
        initBarrier(ring.full[threadIdx.x], 1), initBarrier(ring.empty[threadIdx.x], kTeamWarps);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
#endif
    waitForEarlierKernels();
    const PieceShare pieces(a.part == Part::WriteBacks ? 0 : a.moves.counts[0],
                            a.part == Part::Loads ? 0 : a.moves.counts[1]);
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        stamp(a.mark);
        if (a.recordCounts != nullptr && a.part != Part::WriteBacks) a.recordCounts[0] = pieces.loads / 2;
        if (a.recordCounts != nullptr && a.part != Part::Loads) a.recordCounts[1] = pieces.writeBacks / 2;
    }
#if __CUDA_ARCH__ >= 900
    __syncthreads();
    if (threadIdx.x >= kTeams * kTeamThreads)
        fillRing(a, format, pieces, ring, room, stages);
    else
        emptyRing<kType>(format, pieces, ring, room, stages);
#else
    loadPieces<kType>(a, format, pieces, room);
#endif
    for (std::uint32_t piece = pieces.at(pieces.count()); piece < pieces.all; piece += gridDim.x) {
        const BlockMove move = a.moves.writeBacks[(piece - pieces.loads) / 2];
        quantise<kType>(format, piece % 2 != 0, a.pool + move.slot * format.numbers(),
                        reinterpret_cast<char*>(a.storeOut) + move.store * format.blockBytes(), true, scales);
    }
    __syncthreads();
    if (threadIdx.x == 0) stampLatest(a.endMark);
}

/// Calls start with the type of the format as a constant.
template <class Start> void withType(const KvFormat& format, const Start& start) {
    if (format.type == KvType::INT4) return start(std::integral_constant<KvType, KvType::INT4>());
    if (format.type == KvType::INT8) return start(std::integral_constant<KvType, KvType::INT8>());
    start(std::integral_constant<KvType, KvType::FP8>());
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
    const std::size_t stage = std::size_t(stageBytes(format));
    // Each stage belongs to one team. Pieces come in any order: a team that waited for the next use of a stage of
    // another team, whose piece had not come yet, would see the parity of the use before it and not wait.
    const std::size_t stages =
        how.clusters ? std::min(kRingBytes / stage, std::size_t(kMostStages)) / kTeams * kTeams : 1;
    withType(format, [&](auto type) {
        const auto kernel = gatherQuantisedKernel<decltype(type)::value>;
        if (how.clusters) {
            allowShared(kernel, kRingBytes, kName);
            leaveCache(kernel, kName);
        }
        launch(how, {dim3(unsigned(how.clusters ? blocks : 4 * blocks)), dim3(kGatherThreads), stages * stage}, kernel,
               "moving KV blocks", args, format, std::uint32_t(stages));
    });
}

} // namespace kvscope::cuda
