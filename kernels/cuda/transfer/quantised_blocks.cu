#include "kernels/cuda/transfer/quantised_blocks.h"

#include "kernels/cuda/device/common.cuh"
#include "kernels/cuda/device/launch.cuh"

#include <cuda_fp16.h>
#include <cuda_fp8.h>

namespace kvscope::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kTogether = 16; // numbers that a thread takes at a time: 32 bytes of bf16
constexpr int kInFlight = 4;  // so many pieces a thread asks of the host's memory before it waits
constexpr int kMostKeyScales = 128 * 8, kMostValueScales = 256 * 2;

struct Scale {
    float step, zero;
};

/// The scales of one block, in the order in which the block has them.
struct Scales {
    Scale keys[kMostKeyScales];     // [dim, key groups]
    Scale values[kMostValueScales]; // [tokens, value groups]
};

__device__ inline Scale scaleOf(KvType type, float low, float high) {
    if (type == KvType::INT4)
        return {__half2float(__float2half_rn(__fdiv_rn(high - low, 15.f))), __half2float(__float2half_rn(low))};
    const float most = fmaxf(fabsf(low), fabsf(high));
    return {__half2float(__float2half_rn(__fdiv_rn(most, type == KvType::FP8 ? 448.f : 127.f))), 0.f};
}

__device__ inline std::uint32_t codeOf(KvType type, float x, Scale scale) {
    const float scaled = scale.step == 0.f ? 0.f : __fdiv_rn(x - scale.zero, scale.step);
    if (type == KvType::FP8) return __nv_cvt_float_to_fp8(scaled, __NV_SATFINITE, __NV_E4M3);
    if (type == KvType::INT4) return std::uint32_t(__float2int_rn(fminf(fmaxf(scaled, 0.f), 15.f)));
    return std::uint32_t(__float2int_rn(fminf(fmaxf(scaled, -127.f), 127.f))) & 0xff;
}

__device__ inline float numberOf(KvType type, std::uint32_t code, Scale scale) {
    if (type == KvType::INT4) return __fadd_rn(__fmul_rn(float(code), scale.step), scale.zero);
    if (type == KvType::INT8) return float(std::int8_t(code)) * scale.step;
    return __half2float(__half(__nv_cvt_fp8_to_halfraw(__nv_fp8_storage_t(code), __NV_E4M3))) * scale.step;
}

/// A group of numbers that lie `stride` apart.
__device__ inline Scale measure(KvType type, const Bf16* x, int count, int stride) {
    float low = float(x[0]), high = low;
    bool finite = isfinite(low);
    for (int i = 1; i < count; ++i) {
        const float number = float(x[std::int64_t(i) * stride]);
        low = fminf(low, number), high = fmaxf(high, number);
        finite = finite && isfinite(number);
    }
    const Scale scale = scaleOf(type, low, high);
    return finite ? scale : Scale{__int_as_float(0x7fc00000), 0.f}; // so that it does not come back as a number
}

/// Finds the scales of a bf16 block. The threads of a thread block share the work, and wait for each other at the end.
__device__ void measureBlock(const KvFormat& f, const Bf16* block, Scales& scales) {
    const int tokens = f.blockTokens, dim = f.dim, keyGroups = f.keyGroups(), valueGroups = f.valueGroups();
    const int keyWidth = f.type == KvType::INT4 ? KvFormat::kKeyGroup : tokens,
              valueWidth = f.type == KvType::INT4 ? KvFormat::kValueGroup : dim;
    for (int i = int(threadIdx.x); i < dim * keyGroups; i += int(blockDim.x)) { // neighbours have neighbouring channels
        const int c = i % dim, g = i / dim;
        scales.keys[c * keyGroups + g] =
            measure(f.type, block + std::int64_t(g) * keyWidth * dim + c, min(keyWidth, tokens - g * keyWidth), dim);
    }
    const Bf16* const values = block + std::int64_t(tokens) * dim;
    for (int i = int(threadIdx.x); i < tokens * valueGroups; i += int(blockDim.x)) {
        const int t = i % tokens, g = i / tokens;
        scales.values[t * valueGroups + g] = measure(f.type, values + std::int64_t(g) * valueWidth * tokens + t,
                                                     min(valueWidth, dim - g * valueWidth), tokens);
    }
    __syncthreads();
}

/// The scale of number `i` of a block.
__device__ inline Scale scaleAt(const KvFormat& f, const Scales& scales, int i) {
    const int keys = f.blockTokens * f.dim;
    if (i < keys) {
        const int c = i % f.dim, g = f.type == KvType::INT4 ? i / f.dim / KvFormat::kKeyGroup : 0;
        return scales.keys[c * f.keyGroups() + g];
    }
    const int t = (i - keys) % f.blockTokens,
              g = f.type == KvType::INT4 ? (i - keys) / f.blockTokens / KvFormat::kValueGroup : 0;
    return scales.values[t * f.valueGroups() + g];
}

/// 16 numbers of a block and their codes.
struct Piece {
    uint4 numbers[2];
    std::uint32_t codes[4]; // of INT4 the first two
};

__device__ inline Piece loadNumbers(const Bf16* from) {
    const auto* words = reinterpret_cast<const uint4*>(from);
    return {{words[0], words[1]}, {}};
}

__device__ inline void storeNumbers(Bf16* to, const Piece& piece) {
    auto* words = reinterpret_cast<uint4*>(to);
    words[0] = piece.numbers[0], words[1] = piece.numbers[1];
}

__device__ inline std::uint32_t codeIn(KvType type, const Piece& piece, int i) {
    if (type == KvType::INT4) return piece.codes[i / 8] >> (i % 8 * 4) & 15;
    return piece.codes[i / 4] >> (i % 4 * 8) & 0xff;
}

/// Makes the codes of the numbers.
__device__ inline void quantise(const KvFormat& f, const Scales& scales, int first, Piece& piece) {
    const auto* pairs = reinterpret_cast<const std::uint32_t*>(piece.numbers);
    for (std::uint32_t& word : piece.codes) word = 0;
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
        const float x = i % 2 == 0 ? lowHalf(pairs[i / 2]) : highHalf(pairs[i / 2]);
        const std::uint32_t code = codeOf(f.type, x, scaleAt(f, scales, first + i));
        if (f.type == KvType::INT4)
            piece.codes[i / 8] |= code << (i % 8 * 4);
        else
            piece.codes[i / 4] |= code << (i % 4 * 8);
    }
}

/// Makes the numbers of the codes.
__device__ inline void dequantise(const KvFormat& f, const Scales& scales, int first, Piece& piece) {
    auto* pairs = reinterpret_cast<std::uint32_t*>(piece.numbers);
#pragma unroll
    for (int i = 0; i < kTogether; i += 2)
        pairs[i / 2] = packBf16(numberOf(f.type, codeIn(f.type, piece, i), scaleAt(f, scales, first + i)),
                                numberOf(f.type, codeIn(f.type, piece, i + 1), scaleAt(f, scales, first + i + 1)));
}

/// Quantises a bf16 block. to: where the block goes in its format; null: nowhere. back: the block gets the numbers that
/// come back. All threads of the thread block call it.
__device__ void quantiseBlock(const KvFormat& f, Bf16* block, char* to, bool back, Scales& scales) {
    __syncthreads(); // the scales of the block before are used no more
    measureBlock(f, block, scales);
    const int numbers = int(f.numbers()), codeBytes = kTogether * bitsOf(f.type) / 8;
    for (int i = int(threadIdx.x) * kTogether; i < numbers; i += int(blockDim.x) * kTogether) {
        Piece piece = loadNumbers(block + i);
        quantise(f, scales, i, piece);
        if (to != nullptr && codeBytes == 16)
            reinterpret_cast<uint4*>(to)[i / kTogether] =
                make_uint4(piece.codes[0], piece.codes[1], piece.codes[2], piece.codes[3]);
        else if (to != nullptr)
            reinterpret_cast<uint2*>(to)[i / kTogether] = make_uint2(piece.codes[0], piece.codes[1]);
        if (!back) continue;
        dequantise(f, scales, i, piece);
        storeNumbers(block + i, piece);
    }
    if (to == nullptr) return;
    const auto writeScales = [&](std::int64_t at, const Scale* from, int count) {
        auto* halves = reinterpret_cast<__half*>(to + at);
        for (int i = int(threadIdx.x); i < count; i += int(blockDim.x))
            if (f.type == KvType::INT4)
                reinterpret_cast<__half2*>(halves)[i] = __floats2half2_rn(from[i].step, from[i].zero);
            else
                halves[i] = __float2half_rn(from[i].step);
    };
    writeScales(f.keyScalesAt(), scales.keys, f.dim * f.keyGroups());
    writeScales(f.valueScalesAt(), scales.values, f.blockTokens * f.valueGroups());
}

/// Reads the codes of the 16 numbers from `first` on.
__device__ inline void loadCodes(KvType type, const char* from, int first, Piece& piece) {
    if (type == KvType::INT4) {
        const uint2 codes = reinterpret_cast<const uint2*>(from)[first / kTogether];
        piece.codes[0] = codes.x, piece.codes[1] = codes.y;
        return;
    }
    const uint4 codes = loadOnce(reinterpret_cast<const uint4*>(from) + first / kTogether);
    piece.codes[0] = codes.x, piece.codes[1] = codes.y, piece.codes[2] = codes.z, piece.codes[3] = codes.w;
}

/// Brings a block from its format. All threads of the thread block call it.
__device__ void loadBlock(const KvFormat& f, const char* from, Bf16* block, Scales& scales) {
    __syncthreads();
    const auto readScales = [&](std::int64_t at, Scale* to, int count) {
        const auto* halves = reinterpret_cast<const __half*>(from + at);
        for (int i = int(threadIdx.x); i < count; i += int(blockDim.x))
            to[i] = f.type == KvType::INT4 ? Scale{__half2float(halves[2 * i]), __half2float(halves[2 * i + 1])}
                                           : Scale{__half2float(halves[i]), 0.f};
    };
    readScales(f.keyScalesAt(), scales.keys, f.dim * f.keyGroups());
    readScales(f.valueScalesAt(), scales.values, f.blockTokens * f.valueGroups());
    __syncthreads();
    const int numbers = int(f.numbers()), step = int(blockDim.x) * kTogether;
    for (int first = int(threadIdx.x) * kTogether; first < numbers; first += step * kInFlight) {
        Piece pieces[kInFlight];
#pragma unroll
        for (int j = 0; j < kInFlight; ++j)
            if (first + j * step < numbers) loadCodes(f.type, from, first + j * step, pieces[j]);
#pragma unroll
        for (int j = 0; j < kInFlight; ++j) {
            const int i = first + j * step;
            if (i >= numbers) continue;
            dequantise(f, scales, i, pieces[j]);
            storeNumbers(block + i, pieces[j]);
        }
    }
}

__global__ void __launch_bounds__(kThreads) storeQuantisedKernel(StoreQuantisedArgs a) {
    __shared__ Scales scales;
    letNextKernelStart();
    waitForEarlierKernels();
    const std::int64_t bytes = a.format.blockBytes(), numbers = a.format.numbers();
    for (int b = int(blockIdx.x); b < a.blocks; b += int(gridDim.x))
        quantiseBlock(a.format, const_cast<Bf16*>(a.from) + blockIdx.y * a.fromStride + b * numbers,
                      static_cast<char*>(a.to) + blockIdx.y * a.toStride + b * bytes, false, scales);
}

__global__ void __launch_bounds__(kThreads) roundBlocksKernel(RoundBlocksArgs a) {
    __shared__ Scales scales;
    letNextKernelStart();
    waitForEarlierKernels();
    for (int b = int(blockIdx.x); b < a.count; b += int(gridDim.x))
        quantiseBlock(a.format, a.blocks + blockIdx.y * a.stride + b * a.format.numbers(), nullptr, true, scales);
}

__global__ void __launch_bounds__(kThreads) roundNewestKernel(RoundNewestArgs a) {
    __shared__ Scales scales;
    letNextKernelStart();
    waitForEarlierKernels();
    const int head = int(blockIdx.x), row = head / a.kvHeads, tokens = a.format.blockTokens;
    if ((a.active != nullptr && a.active[row] == 0) || (a.position[row] + 1) % tokens != 0) return;
    const std::int64_t block = a.headFirst[head] + a.position[row] / tokens;
    quantiseBlock(a.format, a.blocks + block * a.format.numbers(), nullptr, true, scales);
}

__global__ void __launch_bounds__(kThreads) gatherQuantisedKernel(GatherArgs a, KvFormat format) {
    using Part = GatherArgs::Part;
    __shared__ Scales scales;
    letNextKernelStart();
    waitForEarlierKernels();
    const std::uint32_t loads = a.part == Part::WriteBacks ? 0 : a.moves.counts[0],
                        writes = a.part == Part::Loads ? 0 : a.moves.counts[1], all = loads + writes;
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        stamp(a.mark);
        if (a.recordCounts != nullptr && a.part != Part::WriteBacks) a.recordCounts[0] = loads;
        if (a.recordCounts != nullptr && a.part != Part::Loads) a.recordCounts[1] = writes;
    }
    for (std::uint32_t m = blockIdx.x; m < all; m += gridDim.x) {
        const bool load = m < loads;
        const BlockMove move = load ? a.moves.loads[m] : a.moves.writeBacks[m - loads];
        Bf16* const slot = a.pool + move.slot * format.numbers();
        const std::int64_t at = move.store * format.blockBytes();
        if (load)
            loadBlock(format, reinterpret_cast<const char*>(a.store) + at, slot, scales);
        else
            quantiseBlock(format, slot, reinterpret_cast<char*>(a.storeOut) + at, true, scales);
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
    const unsigned many = unsigned(args.blocks < 64 ? args.blocks : 64);
    launch(how, {dim3(many, unsigned(args.heads)), dim3(kThreads)}, storeQuantisedKernel, "storing KV blocks", args);
}

void roundBlocks(const Launch& how, const RoundBlocksArgs& args) {
    if (args.count == 0 || args.heads == 0) return;
    const unsigned many = unsigned(args.count < 1024 ? args.count : 1024);
    launch(how, {dim3(many, unsigned(args.heads)), dim3(kThreads)}, roundBlocksKernel, "quantising KV blocks", args);
}

void roundNewest(const Launch& how, const RoundNewestArgs& args) {
    if (args.rows == 0) return;
    launch(how, {dim3(unsigned(args.rows * args.kvHeads)), dim3(kThreads)}, roundNewestKernel, "quantising KV blocks",
           args);
}

void gatherQuantised(const Launch& how, const GatherArgs& args, const KvFormat& format, int blocks) {
    launch(how, {dim3(unsigned(blocks)), dim3(kThreads)}, gatherQuantisedKernel, "moving KV blocks", args, format);
}

} // namespace kvscope::cuda
