// How packed weights become fragments of a tensor-core product. A weight of a block format is scale * integer + least.
// Its integer becomes a bf16 number by bit operations alone: for i < 128 the bits 0x4300 | i are the number 128 + i.
// Most formats therefore multiply 128 + i, and subtract 128 times the sum of the inputs from the sum of products.
//
// Of the 32 columns of a block, quad q = lane % 4 has those at 16*t + 4*q + {0..3}, t = 0, 1: each t is one 16-deep
// instruction, whose 16 columns share even the finest scale (Q6_K). Pair j = 2*t + p is columns 16*t + 4*q + 2*p, +1.
#pragma once

#include "kernels/cuda/device/common.cuh"
#include "kernels/cuda/linear/packed.h"

#include <cuda_fp16.h>

namespace kvscope::cuda {

template <DType> struct Packed;

/// What a lane holds of a chunk. A word belongs to a block and a half: half 0 is row lane/4, half 1 is row lane/4 + 8.
template <class Format> struct PackedPiece {
    uint4 quants[Format::kQuants];
    std::uint32_t high[Format::kHigh > 0 ? Format::kHigh : 1];
    uint4 scales[Format::kScales > 0 ? Format::kScales : 1];
    std::uint32_t blockScales; // Q6_K: halves, of both rows
};

/// kQuants: 16-byte pieces of a lane; kScales: 16-byte pieces of a row pair; kHigh: words of a lane.
template <DType kType, int kTheQuants, int kTheHigh, int kTheScales> struct PackedLayout {
    static constexpr DType kDType = kType;
    static constexpr int kCols = packedChunk(kType).cols, kBlocks = kCols / 32;
    static constexpr int kQuants = kTheQuants, kHigh = kTheHigh, kScales = kTheScales;
    static constexpr bool kBlockScales = kType == DType::Q6_K;
    static constexpr int kHighAt = kQuants * 512, kScalesAt = kHighAt + kHigh * 128,
                         kBlockScalesAt = kScalesAt + kScales * 128, kBytes = kBlockScalesAt + (kBlockScales ? 32 : 0);
    static_assert(kBytes == packedChunk(kType).bytes);
    static constexpr bool kFine = false; // two scales per block
};

struct ScaleAndLeast {
    float scale, least; // weight = scale * (number of the fragment - kBase) + least
};

__device__ inline std::uint32_t wordOf(const uint4* pieces, int index) {
    const uint4& piece = pieces[index / 4];
    return index % 4 == 0 ? piece.x : index % 4 == 1 ? piece.y : index % 4 == 2 ? piece.z : piece.w;
}
__device__ inline float halfOf(std::uint32_t word, int which) {
    return __half2float(__ushort_as_half(static_cast<unsigned short>(which == 0 ? word & 0xffff : word >> 16)));
}
/// (value & mask) | bits in one instruction, which the compiler does not use when both are constants.
__device__ inline std::uint32_t andOr(std::uint32_t value, std::uint32_t mask, std::uint32_t bits) {
    std::uint32_t out;
    asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(out) : "r"(value), "r"(mask), "r"(bits));
    return out;
}
__device__ inline std::uint32_t nibblePair(std::uint32_t word, int pair) {
    return andOr(word >> 4 * pair, 0x000f000fu, 0x43004300u);
}
/// Moves bit `from` to bit 4.
__device__ inline std::uint32_t toBitFour(std::uint32_t word, int from) {
    return from < 4 ? word << (4 - from) : word >> (from - 4);
}
/// The fifth bits of a pair: bit i and bit 16 + i of a lane's words, i counting pairs.
template <class Piece> __device__ inline std::uint32_t fifthBits(const Piece& piece, int word, int pair) {
    return toBitFour(piece.high[word / 4], word % 4 * 4 + pair) & 0x00100010u;
}

/// Formats of 32 weights: halves of 4 blocks of both rows in 16 bytes.
template <class Piece> __device__ inline float smallScale(const Piece& piece, int which, int block, int half) {
    return halfOf(wordOf(piece.scales + which, half * 2 + block / 2), block % 2);
}

template <> struct Packed<DType::BF16> : PackedLayout<DType::BF16, 4, 0, 0> {
    static constexpr bool kScaled = false;
    static constexpr float kBase = 0; // no sum of the inputs takes part
    static __device__ std::uint32_t fragment(const PackedPiece<Packed>& piece, int block, int half, int pair) {
        return wordOf(piece.quants, (block * 2 + half) * 4 + pair);
    }
    static __device__ ScaleAndLeast scaleOf(const PackedPiece<Packed>&, int, int, int) { return {1.f, 0.f}; }
};

template <> struct Packed<DType::Q8_0> : PackedLayout<DType::Q8_0, 4, 0, 1> {
    static constexpr bool kScaled = true;
    static constexpr float kBase = 0;
    /// (128 + low 7 bits) - (128 or, with the sign bit, 256): exact.
    static __device__ std::uint32_t fragment(const PackedPiece<Packed>& piece, int block, int half, int pair) {
        const std::uint32_t bytes = wordOf(piece.quants, (block * 2 + half) * 2 + pair / 2) >> pair % 2 * 8;
        const std::uint32_t low = andOr(bytes, 0x007f007fu, 0x43004300u), sign = andOr(bytes, 0x00800080u, 0x43004300u);
        const __nv_bfloat162 value =
            __hsub2(reinterpret_cast<const __nv_bfloat162&>(low), reinterpret_cast<const __nv_bfloat162&>(sign));
        return reinterpret_cast<const std::uint32_t&>(value);
    }
    static __device__ ScaleAndLeast scaleOf(const PackedPiece<Packed>& piece, int block, int, int half) {
        return {smallScale(piece, 0, block, half), 0.f};
    }
};

template <> struct Packed<DType::Q4_0> : PackedLayout<DType::Q4_0, 2, 0, 1> {
    static constexpr bool kScaled = true;
    static constexpr float kBase = 128 + 8;
    static __device__ std::uint32_t fragment(const PackedPiece<Packed>& piece, int block, int half, int pair) {
        return nibblePair(wordOf(piece.quants, block * 2 + half), pair);
    }
    static __device__ ScaleAndLeast scaleOf(const PackedPiece<Packed>& piece, int block, int, int half) {
        return {smallScale(piece, 0, block, half), 0.f};
    }
};

template <> struct Packed<DType::Q4_1> : PackedLayout<DType::Q4_1, 2, 0, 2> {
    static constexpr bool kScaled = true;
    static constexpr float kBase = 128;
    static __device__ std::uint32_t fragment(const PackedPiece<Packed>& piece, int block, int half, int pair) {
        return nibblePair(wordOf(piece.quants, block * 2 + half), pair);
    }
    static __device__ ScaleAndLeast scaleOf(const PackedPiece<Packed>& piece, int block, int, int half) {
        return {smallScale(piece, 0, block, half), smallScale(piece, 1, block, half)};
    }
};

template <> struct Packed<DType::Q5_0> : PackedLayout<DType::Q5_0, 2, 2, 1> {
    static constexpr bool kScaled = true;
    static constexpr float kBase = 128 + 16;
    static __device__ std::uint32_t fragment(const PackedPiece<Packed>& piece, int block, int half, int pair) {
        const int word = block * 2 + half;
        return nibblePair(wordOf(piece.quants, word), pair) | fifthBits(piece, word, pair);
    }
    static __device__ ScaleAndLeast scaleOf(const PackedPiece<Packed>& piece, int block, int, int half) {
        return {smallScale(piece, 0, block, half), 0.f};
    }
};

template <> struct Packed<DType::Q5_1> : PackedLayout<DType::Q5_1, 2, 2, 2> {
    static constexpr bool kScaled = true;
    static constexpr float kBase = 128;
    static __device__ std::uint32_t fragment(const PackedPiece<Packed>& piece, int block, int half, int pair) {
        const int word = block * 2 + half;
        return nibblePair(wordOf(piece.quants, word), pair) | fifthBits(piece, word, pair);
    }
    static __device__ ScaleAndLeast scaleOf(const PackedPiece<Packed>& piece, int block, int, int half) {
        return {smallScale(piece, 0, block, half), smallScale(piece, 1, block, half)};
    }
};

/// Q4_K, Q5_K: halves d and dmin, then 8 fields of 12 bits, a block's 6-bit factors for its scale and its minimum:
/// words 1..3 hold two fields each, the last two fields are spread over their top bytes.
template <class Piece> __device__ inline ScaleAndLeast sixBitScales(const Piece& piece, int block, int half) {
    const uint4& row = piece.scales[half];
    const std::uint32_t words[3] = {row.y, row.z, row.w};
    // The float with the bits kLarge | i is 2^23 + i. The multiply-add subtracts the 2^23 again, exactly, and the whole
    // takes less time than a conversion.
    constexpr std::uint32_t kSix = 63, kLarge = 0x4B000000u;
    std::uint32_t scale, least;
    if (block < 6) {
        const std::uint32_t word = words[block / 2];
        scale = andOr(word >> block % 2 * 12, kSix, kLarge), least = andOr(word >> (block % 2 * 12 + 6), kSix, kLarge);
    } else {
        const std::uint32_t word = words[block - 6];
        scale = andOr(word >> 24, kSix, kLarge);
        least = (word >> 30 | (words[2] >> (block == 6 ? 24 : 28) & 15) << 2) | kLarge;
    }
    const float d = halfOf(row.x, 0), dmin = halfOf(row.x, 1);
    const float by = fmaf(d, __uint_as_float(scale), d * -8388608.f);
    const float minus = fmaf(dmin, __uint_as_float(least), dmin * -8388608.f);
    return {by, -minus};
}

template <> struct Packed<DType::Q4_K> : PackedLayout<DType::Q4_K, 4, 0, 2> {
    static constexpr bool kScaled = true;
    static constexpr float kBase = 128;
    static __device__ std::uint32_t fragment(const PackedPiece<Packed>& piece, int block, int half, int pair) {
        return nibblePair(wordOf(piece.quants, block * 2 + half), pair);
    }
    static __device__ ScaleAndLeast scaleOf(const PackedPiece<Packed>& piece, int block, int, int half) {
        return sixBitScales(piece, block, half);
    }
};

template <> struct Packed<DType::Q5_K> : PackedLayout<DType::Q5_K, 4, 4, 2> {
    static constexpr bool kScaled = true;
    static constexpr float kBase = 128;
    static __device__ std::uint32_t fragment(const PackedPiece<Packed>& piece, int block, int half, int pair) {
        const int word = block * 2 + half;
        return nibblePair(wordOf(piece.quants, word), pair) | fifthBits(piece, word, pair);
    }
    static __device__ ScaleAndLeast scaleOf(const PackedPiece<Packed>& piece, int block, int, int half) {
        return sixBitScales(piece, block, half);
    }
};

template <> struct Packed<DType::Q6_K> : PackedLayout<DType::Q6_K, 4, 8, 2> {
    static constexpr bool kScaled = true, kFine = true;
    static constexpr float kBase = 128 + 32;
    /// The upper two bits of a pair: bits 2i, 2i + 1 and 16 + 2i, 17 + 2i of a word for two (block, half).
    static __device__ std::uint32_t fragment(const PackedPiece<Packed>& piece, int block, int half, int pair) {
        const int word = block * 2 + half;
        return nibblePair(wordOf(piece.quants, word), pair) |
               (toBitFour(piece.high[word / 2], (word % 2 * 4 + pair) * 2) & 0x00300030u);
    }
    /// Factors of 16 columns, stored 128 higher.
    static __device__ ScaleAndLeast scaleOf(const PackedPiece<Packed>& piece, int block, int t, int half) {
        const int index = block * 2 + t;
        const std::uint32_t factor = wordOf(piece.scales + half, index / 4) >> index % 4 * 8 & 0xff;
        return {halfOf(piece.blockScales, half) * (__uint_as_float(factor | 0x4B000000u) - (8388608.f + 128.f)), 0.f};
    }
};

/// Reads this lane's share of a chunk from global or shared memory.
template <class Format> __device__ inline void loadPiece(const std::byte* chunk, PackedPiece<Format>& piece) {
    const int lane = threadIdx.x % kWarp, group = lane / 4;
#pragma unroll
    for (int i = 0; i < Format::kQuants; ++i) piece.quants[i] = reinterpret_cast<const uint4*>(chunk)[i * kWarp + lane];
    if constexpr (Format::kHigh == 2) {
        const uint2 high = reinterpret_cast<const uint2*>(chunk + Format::kHighAt)[lane];
        piece.high[0] = high.x, piece.high[1] = high.y;
    } else {
#pragma unroll
        for (int i = 0; i < Format::kHigh / 4; ++i) {
            const uint4 high = reinterpret_cast<const uint4*>(chunk + Format::kHighAt)[i * kWarp + lane];
            piece.high[i * 4] = high.x, piece.high[i * 4 + 1] = high.y;
            piece.high[i * 4 + 2] = high.z, piece.high[i * 4 + 3] = high.w;
        }
    }
#pragma unroll
    for (int i = 0; i < Format::kScales; ++i)
        piece.scales[i] = reinterpret_cast<const uint4*>(chunk + Format::kScalesAt)[i * 8 + group];
    if constexpr (Format::kBlockScales)
        piece.blockScales = reinterpret_cast<const std::uint32_t*>(chunk + Format::kBlockScalesAt)[group];
}

/// Calls action(Packed<type>()).
template <class Action> void forFormat(DType type, Action&& action) {
    switch (type) {
    case DType::Q8_0:
        return action(Packed<DType::Q8_0>());
    case DType::Q4_0:
        return action(Packed<DType::Q4_0>());
    case DType::Q4_1:
        return action(Packed<DType::Q4_1>());
    case DType::Q5_0:
        return action(Packed<DType::Q5_0>());
    case DType::Q5_1:
        return action(Packed<DType::Q5_1>());
    case DType::Q4_K:
        return action(Packed<DType::Q4_K>());
    case DType::Q5_K:
        return action(Packed<DType::Q5_K>());
    case DType::Q6_K:
        return action(Packed<DType::Q6_K>());
    case DType::BF16:
        return action(Packed<DType::BF16>());
    case DType::F32:
    case DType::F16:
        break;
    }
    throw Error(ErrorKind::BadInput, "these weights have no packed form", "this is a bug in KVScope");
}

} // namespace kvscope::cuda
