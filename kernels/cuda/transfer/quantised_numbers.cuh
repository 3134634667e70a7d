// The numbers of a block in 8 and 4 bits, eight at a time: from codes to bf16, bit for bit what a multiplication and an
// addition in float give, and back.
#pragma once

#include "kernels/cuda/device/common.cuh"
#include "kernels/kv_format.h"

#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <type_traits>

namespace kvscope::cuda {

constexpr int kTogether = 8; // neighbours in a row that a thread takes at a time: 16 bytes of bf16

/// The keys of a block, [tokens, dim], or its values, [dim, tokens], as a GPU's blocks have them (kv_shape.h). A column
/// has a scale for every `groupRows` rows; those of a column lie side by side.
struct CodeMatrix {
    int rows, cols, groupRows, groups;
    int codesAt, codeBytes, scalesAt, scaleBytes; // within a block of the format
    int numbersAt;                                // within a bf16 block, in numbers
};

__host__ __device__ inline CodeMatrix codeMatrix(const KvFormat& f, bool values) {
    const bool nibbles = f.type == KvType::INT4;
    const int bytes = f.blockTokens * f.dim * bitsOf(f.type) / 8, scale = nibbles ? 4 : 2;
    if (values)
        return {f.dim, f.blockTokens,          nibbles ? KvFormat::kValueGroup : f.dim, f.valueGroups(),      bytes,
                bytes, int(f.valueScalesAt()), f.blockTokens * f.valueGroups() * scale, f.blockTokens * f.dim};
    return {f.blockTokens,
            f.dim,
            nibbles ? KvFormat::kKeyGroup : f.blockTokens,
            f.keyGroups(),
            0,
            bytes,
            int(f.keyScalesAt()),
            f.dim * f.keyGroups() * scale,
            0};
}

/// What one of several threads takes of a matrix: eight columns from `col` on, in every `rowStep`-th row from `row` on.
/// Neighbouring threads have neighbouring columns.
struct MatrixShare {
    int col, row, rowStep;
    __device__ MatrixShare(const CodeMatrix& m, int worker, int workers) {
        const int perRow = m.cols / kTogether;
        col = worker % perRow * kTogether, rowStep = workers / perRow;
        row = worker / perRow < rowStep ? worker / perRow : m.rows; // threads that are left over have no row
    }
};

template <KvType kType> struct EightCodesOf { using Type = uint2; };
template <> struct EightCodesOf<KvType::INT4> { using Type = std::uint32_t; };
template <KvType kType> using EightCodes = typename EightCodesOf<kType>::Type;

/// The scales of eight columns.
template <KvType kType> struct EightScales {
    // A byte of INT8 becomes a number by its place in the bits of 2^15, of which 128 more must then go. 257 * 2^7 times
    // a half-precision scale is exact in float, and so is the difference.
    static constexpr float kByteShift = 32768.f + 128.f;

    float step[kTogether];
    float added[kTogether]; // to a product with the step. INT8: what the shift has too much; INT4: the zero point

    __device__ void set(int i, float scale, float zero) {
        step[i] = scale;
        added[i] = kType == KvType::INT8 ? -kByteShift * scale : zero;
    }
    /// scales: of a matrix, as they lie in a block.
    __device__ void read(const char* scales, int col, int group, int groups) {
        if constexpr (kType == KvType::INT4) {
            const auto* pairs = reinterpret_cast<const __half2*>(scales);
#pragma unroll
            for (int i = 0; i < kTogether; ++i) {
                const float2 both = __half22float2(pairs[(col + i) * groups + group]);
                set(i, both.x, both.y);
            }
        } else {
            const uint4 words = *reinterpret_cast<const uint4*>(scales + col * 2);
            const std::uint32_t four[] = {words.x, words.y, words.z, words.w};
#pragma unroll
            for (int i = 0; i < kTogether / 2; ++i) {
                const float2 both = __half22float2(reinterpret_cast<const __half2&>(four[i]));
                set(2 * i, both.x, 0.f), set(2 * i + 1, both.y, 0.f);
            }
        }
    }
};

namespace codes {

/// Byte i of four, each of which is a signed byte with its highest bit turned, as a number plus
/// EightScales::kByteShift.
template <int i> __device__ inline float shiftedByte(std::uint32_t turned) {
    return __uint_as_float(__byte_perm(turned, 0x47000000u, 0x7604u | i << 4)); // 0x47000000 is 2^15, whose ulp is 2^-8
}

/// Nibble i of eight. Its bits become the lowest ones of a number's mantissa that count whole numbers.
template <int i> __device__ inline float nibble(std::uint32_t eight) {
    constexpr int kAt = i < 5 ? i : i - 3; // a mantissa has 23 bits; the upper nibbles are brought down
    const std::uint32_t word = i < 5 ? eight : eight >> 12;
    constexpr std::uint32_t kExponent = std::uint32_t(127 + 23 - 4 * kAt) << 23;
    return __uint_as_float((word & 15u << 4 * kAt) | kExponent) - float(1u << (23 - 4 * kAt));
}

} // namespace codes

/// The bf16 numbers of eight codes of a row.
template <KvType kType> __device__ inline uint4 numbersOf(EightCodes<kType> eight, const EightScales<kType>& scales) {
    float x[kTogether];
    if constexpr (kType == KvType::INT4) {
        x[0] = codes::nibble<0>(eight), x[1] = codes::nibble<1>(eight), x[2] = codes::nibble<2>(eight);
        x[3] = codes::nibble<3>(eight), x[4] = codes::nibble<4>(eight), x[5] = codes::nibble<5>(eight);
        x[6] = codes::nibble<6>(eight), x[7] = codes::nibble<7>(eight);
    } else if constexpr (kType == KvType::INT8) {
        const std::uint32_t low = eight.x ^ 0x80808080u, high = eight.y ^ 0x80808080u;
        x[0] = codes::shiftedByte<0>(low), x[1] = codes::shiftedByte<1>(low);
        x[2] = codes::shiftedByte<2>(low), x[3] = codes::shiftedByte<3>(low);
        x[4] = codes::shiftedByte<0>(high), x[5] = codes::shiftedByte<1>(high);
        x[6] = codes::shiftedByte<2>(high), x[7] = codes::shiftedByte<3>(high);
    } else {
        const std::uint32_t words[] = {eight.x, eight.y};
#pragma unroll
        for (int i = 0; i < kTogether / 2; ++i) {
            const auto pair = __nv_fp8x2_storage_t(words[i / 2] >> i % 2 * 16 & 0xffff);
            const float2 both = __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(pair, __NV_E4M3)));
            x[2 * i] = both.x, x[2 * i + 1] = both.y;
        }
    }
#pragma unroll
    for (int i = 0; i < kTogether; ++i) // products of codes and scales are exact, so that one rounding is left in all
        x[i] = kType == KvType::FP8 ? x[i] * scales.step[i] : __fmaf_rn(x[i], scales.step[i], scales.added[i]);
    return make_uint4(packBf16(x[0], x[1]), packBf16(x[2], x[3]), packBf16(x[4], x[5]), packBf16(x[6], x[7]));
}

template <KvType kType> __device__ inline std::uint32_t codeOf(float x, float step, float zero) {
    const float scaled = step == 0.f ? 0.f : __fdiv_rn(x - zero, step);
    if (kType == KvType::FP8) return __nv_cvt_float_to_fp8(scaled, __NV_SATFINITE, __NV_E4M3);
    if (kType == KvType::INT4) return std::uint32_t(__float2int_rn(fminf(fmaxf(scaled, 0.f), 15.f)));
    return std::uint32_t(__float2int_rn(fminf(fmaxf(scaled, -127.f), 127.f))) & 0xff;
}

/// The codes of eight bf16 numbers of a row.
template <KvType kType> __device__ inline EightCodes<kType> codesOf(uint4 numbers, const EightScales<kType>& scales) {
    const std::uint32_t pairs[] = {numbers.x, numbers.y, numbers.z, numbers.w};
    std::uint32_t code[kTogether];
#pragma unroll
    for (int i = 0; i < kTogether; ++i)
        code[i] = codeOf<kType>(i % 2 == 0 ? lowHalf(pairs[i / 2]) : highHalf(pairs[i / 2]), scales.step[i],
                                kType == KvType::INT4 ? scales.added[i] : 0.f);
    if constexpr (kType == KvType::INT4) {
        std::uint32_t word = 0;
#pragma unroll
        for (int i = 0; i < kTogether; ++i) word |= code[i] << 4 * i;
        return word;
    } else {
        return make_uint2(code[0] | code[1] << 8 | code[2] << 16 | code[3] << 24,
                          code[4] | code[5] << 8 | code[6] << 16 | code[7] << 24);
    }
}

/// Calls start with the type of a format with scales as a constant.
template <class Start> void withType(const KvFormat& format, const Start& start) {
    if (format.type == KvType::INT4) return start(std::integral_constant<KvType, KvType::INT4>());
    if (format.type == KvType::INT8) return start(std::integral_constant<KvType, KvType::INT8>());
    start(std::integral_constant<KvType, KvType::FP8>());
}

} // namespace kvscope::cuda
