// Linear layers whose weights are in GGUF's block formats. Weights stay integers: 16 at a time are unpacked to int16 in
// registers and multiplied with inputs that were rounded to int16. A block so costs a few integer multiply-adds, and
// one multiply-add in float for its scale.
#include "kernels/cpu/quantised.h"
#include "kernels/half.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/quantised_simd.cpp"
#include <hwy/foreach_target.h> // must come before highway.h
#include <hwy/highway.h>

#include "kernels/cpu/half_simd.h"

HWY_BEFORE_NAMESPACE();
namespace kvscope::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Sixteen weights as int16 fill a 256-bit register. Sixteen is also the number of weights that share the finest scales
// (Q6_K).
using DW = hn::CappedTag<std::int16_t, 16>;
using DI = hn::RepartitionToWide<DW>;
using DF = hn::Rebind<float, DI>;
using VF = hn::Vec<DF>;
constexpr int kWeightLanes = int(hn::MaxLanes(DW())), kParts = 16 / kWeightLanes, kLanes = int(hn::MaxLanes(DF()));
constexpr int kGroup = kRoundedGroup;
constexpr int kChunk = 8; // groups whose scales are unpacked together: one 256-weight block, or eight small ones

struct Sixteen {
    hn::Vec<DW> part[kParts];
};

template <class Function> HWY_INLINE Sixteen Each(Function&& function) {
    Sixteen out;
    for (int p = 0; p < kParts; ++p) out.part[p] = function(p);
    return out;
}
HWY_INLINE Sixteen FromBytes(const std::uint8_t* at) {
    const hn::Rebind<std::uint8_t, DW> bytes;
    return Each([&](int p) HWY_ATTR { return hn::PromoteTo(DW(), hn::LoadU(bytes, at + p * kWeightLanes)); });
}
HWY_INLINE Sixteen FromSigned(const std::uint8_t* at) {
    const hn::Rebind<std::int8_t, DW> bytes;
    const auto* from = reinterpret_cast<const std::int8_t*>(at);
    return Each([&](int p) HWY_ATTR { return hn::PromoteTo(DW(), hn::LoadU(bytes, from + p * kWeightLanes)); });
}
/// (value >> shift) & mask
HWY_INLINE Sixteen Field(const Sixteen& value, int shift, int mask) {
    const auto bits = hn::Set(DW(), std::int16_t(mask));
    return Each([&](int p) HWY_ATTR { return hn::And(hn::ShiftRightSame(value.part[p], shift), bits); });
}
HWY_INLINE Sixteen LowNibbles(const Sixteen& value) {
    const auto bits = hn::Set(DW(), 15);
    return Each([&](int p) HWY_ATTR { return hn::And(value.part[p], bits); });
}
HWY_INLINE Sixteen HighNibbles(const Sixteen& value) {
    return Each([&](int p) HWY_ATTR { return hn::ShiftRight<4>(value.part[p]); });
}
/// value | high << 4
HWY_INLINE Sixteen WithHighBits(const Sixteen& value, const Sixteen& high) {
    return Each([&](int p) HWY_ATTR { return hn::Or(value.part[p], hn::ShiftLeft<4>(high.part[p])); });
}
/// value | 16 where bit i of `bits` is set
HWY_INLINE Sixteen WithFifthBits(const Sixteen& value, unsigned bits) {
    HWY_ALIGN static constexpr std::int16_t kBits[16] = {
        1,      1 << 1, 1 << 2,  1 << 3,  1 << 4,  1 << 5,  1 << 6,  1 << 7,
        1 << 8, 1 << 9, 1 << 10, 1 << 11, 1 << 12, 1 << 13, 1 << 14, std::int16_t(-32768)};
    const auto all = hn::Set(DW(), std::int16_t(bits)), sixteen = hn::Set(DW(), 16);
    return Each([&](int p) HWY_ATTR {
        const auto set = hn::TestBit(all, hn::Load(DW(), kBits + p * kWeightLanes));
        return hn::Or(value.part[p], hn::IfThenElseZero(set, sixteen));
    });
}
HWY_INLINE Sixteen Times(const Sixteen& value, int factor) {
    const auto all = hn::Set(DW(), std::int16_t(factor));
    return Each([&](int p) HWY_ATTR { return hn::Mul(value.part[p], all); });
}

HWY_INLINE std::uint16_t LoadHalf(const std::uint8_t* at) {
    std::uint16_t raw;
    std::memcpy(&raw, at, 2);
    return raw;
}

/// Converts kChunk numbers from half to float.
HWY_INLINE void HalvesToFloats(const std::uint16_t* HWY_RESTRICT raw, float* HWY_RESTRICT out) {
    for (int i = 0; i < kChunk; i += kLanes) hn::Store(LoadHalves(DF(), raw + i), DF(), out + i);
}

/// A block format, which tells how to get a chunk's scales and a group's integers from the bytes:
///   weight = scale * integer + least, where integers are signed or begin at 0;
///   Scales   a chunk's `groups` groups: their scales, and what each adds to all its weights; the rest is left zero
///   Integers a group's 2 x 16 integers; `chunk` is where the group's chunk starts
/// kHasLeast: some `least` is not 0. kFineScales: a group's halves have their own `least` [2 * kChunk], and integers
/// come multiplied with their own small scales.
template <DType kType> struct Format;

/// Where group `group` of a chunk of 32-weight blocks starts.
template <DType kType> HWY_INLINE const std::uint8_t* BlockAt(const std::uint8_t* chunk, int group) {
    return chunk + group * blockOf(kType).bytes;
}

template <DType kType, bool kStoredLeast>
HWY_INLINE void BlockScales(const std::uint8_t* chunk, int groups, float leastOfScale, float* scales, float* least) {
    std::uint16_t raw[2][kChunk] = {};
    for (int g = 0; g < groups; ++g) {
        raw[0][g] = LoadHalf(BlockAt<kType>(chunk, g));
        if constexpr (kStoredLeast) raw[1][g] = LoadHalf(BlockAt<kType>(chunk, g) + 2);
    }
    HalvesToFloats(raw[0], scales);
    if constexpr (kStoredLeast)
        HalvesToFloats(raw[1], least);
    else
        for (int g = 0; g < kChunk; ++g) least[g] = leastOfScale * scales[g];
}

template <> struct Format<DType::Q8_0> {
    static constexpr bool kHasLeast = false, kFineScales = false;
    static HWY_INLINE void Scales(const std::uint8_t* chunk, int groups, float* scales, float* least) {
        BlockScales<DType::Q8_0, false>(chunk, groups, 0.f, scales, least);
    }
    static HWY_INLINE void Integers(const std::uint8_t* chunk, int group, Sixteen& first, Sixteen& second) {
        const std::uint8_t* at = BlockAt<DType::Q8_0>(chunk, group) + 2;
        first = FromSigned(at);
        second = FromSigned(at + 16);
    }
};

template <> struct Format<DType::Q4_0> {
    static constexpr bool kHasLeast = true, kFineScales = false;
    static HWY_INLINE void Scales(const std::uint8_t* chunk, int groups, float* scales, float* least) {
        BlockScales<DType::Q4_0, false>(chunk, groups, -8.f, scales, least);
    }
    static HWY_INLINE void Integers(const std::uint8_t* chunk, int group, Sixteen& first, Sixteen& second) {
        const Sixteen bytes = FromBytes(BlockAt<DType::Q4_0>(chunk, group) + 2);
        first = LowNibbles(bytes);
        second = HighNibbles(bytes);
    }
};

template <> struct Format<DType::Q4_1> {
    static constexpr bool kHasLeast = true, kFineScales = false;
    static HWY_INLINE void Scales(const std::uint8_t* chunk, int groups, float* scales, float* least) {
        BlockScales<DType::Q4_1, true>(chunk, groups, 0.f, scales, least);
    }
    static HWY_INLINE void Integers(const std::uint8_t* chunk, int group, Sixteen& first, Sixteen& second) {
        const Sixteen bytes = FromBytes(BlockAt<DType::Q4_1>(chunk, group) + 4);
        first = LowNibbles(bytes);
        second = HighNibbles(bytes);
    }
};

/// Unpacks integers of five bits: their low four bits lie at `at + 4`, their fifth bits in the four bytes at `at`.
HWY_INLINE void FiveBits(const std::uint8_t* at, Sixteen& first, Sixteen& second) {
    std::uint32_t high;
    std::memcpy(&high, at, 4);
    const Sixteen bytes = FromBytes(at + 4);
    first = WithFifthBits(LowNibbles(bytes), high & 0xFFFF);
    second = WithFifthBits(HighNibbles(bytes), high >> 16);
}

template <> struct Format<DType::Q5_0> {
    static constexpr bool kHasLeast = true, kFineScales = false;
    static HWY_INLINE void Scales(const std::uint8_t* chunk, int groups, float* scales, float* least) {
        BlockScales<DType::Q5_0, false>(chunk, groups, -16.f, scales, least);
    }
    static HWY_INLINE void Integers(const std::uint8_t* chunk, int group, Sixteen& first, Sixteen& second) {
        FiveBits(BlockAt<DType::Q5_0>(chunk, group) + 2, first, second);
    }
};

template <> struct Format<DType::Q5_1> {
    static constexpr bool kHasLeast = true, kFineScales = false;
    static HWY_INLINE void Scales(const std::uint8_t* chunk, int groups, float* scales, float* least) {
        BlockScales<DType::Q5_1, true>(chunk, groups, 0.f, scales, least);
    }
    static HWY_INLINE void Integers(const std::uint8_t* chunk, int group, Sixteen& first, Sixteen& second) {
        FiveBits(BlockAt<DType::Q5_1>(chunk, group) + 4, first, second);
    }
};

/// Scales of Q4_K and Q5_K: the block has a scale and a least, then 8 pairs of 6-bit factors for them in 12 bytes.
HWY_INLINE void SixBitScales(const std::uint8_t* block, float* scales, float* least) {
    const float scale = halfToFloat(LoadHalf(block)), low = halfToFloat(LoadHalf(block + 2));
    const std::uint8_t* packed = block + 4;
    for (int g = 0; g < 4; ++g) {
        scales[g] = scale * float(packed[g] & 63);
        least[g] = -low * float(packed[g + 4] & 63);
        scales[g + 4] = scale * float((packed[g + 8] & 15) | (packed[g] >> 6) << 4);
        least[g + 4] = -low * float(packed[g + 8] >> 4 | (packed[g + 4] >> 6) << 4);
    }
}

template <> struct Format<DType::Q4_K> {
    static constexpr bool kHasLeast = true, kFineScales = false;
    static HWY_INLINE void Scales(const std::uint8_t* chunk, int, float* scales, float* least) {
        SixBitScales(chunk, scales, least);
    }
    static HWY_INLINE void Integers(const std::uint8_t* chunk, int group, Sixteen& first, Sixteen& second) {
        const std::uint8_t* at = chunk + 16 + group / 2 * 32; // two groups share 32 bytes
        first = Field(FromBytes(at), group % 2 * 4, 15);
        second = Field(FromBytes(at + 16), group % 2 * 4, 15);
    }
};

template <> struct Format<DType::Q5_K> {
    static constexpr bool kHasLeast = true, kFineScales = false;
    static HWY_INLINE void Scales(const std::uint8_t* chunk, int, float* scales, float* least) {
        SixBitScales(chunk, scales, least);
    }
    static HWY_INLINE void Integers(const std::uint8_t* chunk, int group, Sixteen& first, Sixteen& second) {
        const std::uint8_t *high = chunk + 16, *at = high + 32 + group / 2 * 32;
        first = Field(FromBytes(at), group % 2 * 4, 15);
        second = Field(FromBytes(at + 16), group % 2 * 4, 15);
        first = WithHighBits(first, Field(FromBytes(high), group, 1));
        second = WithHighBits(second, Field(FromBytes(high + 16), group, 1));
    }
};

template <> struct Format<DType::Q6_K> {
    static constexpr bool kHasLeast = true, kFineScales = true;
    static constexpr int kScalesAt = 192;
    static HWY_INLINE void Scales(const std::uint8_t* chunk, int, float* scales, float* least) {
        const float scale = halfToFloat(LoadHalf(chunk + 208));
        const auto* fine = reinterpret_cast<const std::int8_t*>(chunk + kScalesAt);
        std::fill_n(scales, kChunk, scale);
        for (int half = 0; half < 2 * kChunk; ++half) least[half] = -32.f * scale * float(fine[half]);
    }
    /// Integers of a group, 0 to 63.
    static HWY_INLINE void Plain(const std::uint8_t* chunk, int group, Sixteen& first, Sixteen& second) {
        const int part = group / 4, in = group % 4; // a block is two parts of four groups
        const std::uint8_t *low = chunk + 64 * part + in % 2 * 32, *high = chunk + 128 + 32 * part;
        first = WithHighBits(Field(FromBytes(low), in / 2 * 4, 15), Field(FromBytes(high), 2 * in, 3));
        second = WithHighBits(Field(FromBytes(low + 16), in / 2 * 4, 15), Field(FromBytes(high + 16), 2 * in, 3));
    }
    /// Integers of a group times their own scale: at most 63 * 128, so that the sum of 8 products with 16-bit inputs
    /// still fits an int32.
    static HWY_INLINE void Integers(const std::uint8_t* chunk, int group, Sixteen& first, Sixteen& second) {
        const auto* fine = reinterpret_cast<const std::int8_t*>(chunk + kScalesAt) + 2 * group;
        Plain(chunk, group, first, second);
        first = Times(first, fine[0]);
        second = Times(second, fine[1]);
    }
};

// A rounded row lies in memory as: the groups' scales, the groups' sums, the half groups' sums (both kinds times the
// scale), and then the int16 values.
struct RoundedRow {
    const float *scales, *sums, *halfSums;
    const std::int16_t* values;
};
constexpr int PaddedGroups(int cols) { return (cols / kGroup + kChunk - 1) / kChunk * kChunk; }
HWY_INLINE RoundedRow RoundedAt(const std::byte* at, int cols) {
    const auto* floats = reinterpret_cast<const float*>(at);
    const int groups = PaddedGroups(cols);
    return {floats, floats + groups, floats + 2 * groups, reinterpret_cast<const std::int16_t*>(floats + 4 * groups)};
}

std::int64_t RoundedBytes(int cols) {
    return std::int64_t(PaddedGroups(cols)) * (4 * std::int64_t(sizeof(float)) + kGroup * 2);
}

void RoundInput(const float* HWY_RESTRICT x, int cols, std::byte* rounded) {
    const DF d;
    const DI di;
    const hn::Rebind<std::int16_t, DI> shorts;
    const RoundedRow row = RoundedAt(rounded, cols);
    auto* scales = const_cast<float*>(row.scales);
    auto* sums = const_cast<float*>(row.sums);
    auto* halfSums = const_cast<float*>(row.halfSums);
    auto* values = const_cast<std::int16_t*>(row.values);
    const int groups = cols / kGroup;
    for (int g = 0; g < groups; ++g) {
        const float* from = x + g * kGroup;
        VF largest = hn::Zero(d), total = hn::Zero(d);
        for (int i = 0; i < kGroup; i += kLanes) {
            const VF v = hn::LoadU(d, from + i);
            largest = hn::Max(largest, hn::Abs(v));
            total = hn::Add(total, v);
        }
        const float most = hn::GetLane(hn::MaxOfLanes(d, largest)), sum = hn::GetLane(hn::SumOfLanes(d, total));
        // NaN among the inputs must reach the outputs. An integer cannot be NaN, so the scale becomes NaN.
        const float scale = most / 32767.f + (sum - sum), inverse = most > 0 ? 32767.f / most : 0.f;
        const VF factor = hn::Set(d, inverse);
        float halves[2];
        for (int half = 0; half < 2; ++half) {
            auto count = hn::Zero(di);
            for (int i = 0; i < 16; i += kLanes) {
                const auto whole = hn::NearestInt(hn::Mul(hn::LoadU(d, from + half * 16 + i), factor));
                count = hn::Add(count, whole);
                hn::StoreU(hn::DemoteTo(shorts, whole), shorts, values + g * kGroup + half * 16 + i);
            }
            halves[half] = scale * float(hn::GetLane(hn::SumOfLanes(di, count)));
            halfSums[2 * g + half] = halves[half];
        }
        scales[g] = scale;
        sums[g] = halves[0] + halves[1];
    }
    for (int g = groups; g < PaddedGroups(cols); ++g) scales[g] = sums[g] = halfSums[2 * g] = halfSums[2 * g + 1] = 0.f;
}

/// How far ahead weights are fetched, and why: see kAheadBytes in linear_simd.cpp.
constexpr std::int64_t kAheadBytes = 16 << 10;

/// Adds the scaled integer products of one group to `sums`; the group's chunk starts at column `from`.
template <DType kType, int kRows, int kInputs>
HWY_INLINE void AddGroup(const std::uint8_t* chunk, std::int64_t bytes, int group, const RoundedRow (&in)[kInputs],
                         int from, const float (&scaled)[kRows][kInputs][kChunk], VF (&sums)[kRows][kInputs]) {
    const DF d;
    for (int r = 0; r < kRows; ++r) {
        Sixteen a, b;
        Format<kType>::Integers(chunk + r * bytes, group, a, b);
        for (int i = 0; i < kInputs; ++i) {
            const std::int16_t* x = in[i].values + from + group * kGroup;
#if HWY_TARGET == HWY_SCALAR // the only lane would have to sum all 32 products and would overflow
            std::int64_t total = 0;
            for (int p = 0; p < kParts; ++p)
                total += std::int64_t(a.part[p].raw) * x[p] + std::int64_t(b.part[p].raw) * x[16 + p];
            const VF product = hn::Set(d, float(total));
#else
            const DI di;
            auto even = hn::Zero(di), odd = hn::Zero(di);
            for (int p = 0; p < kParts; ++p) {
                const auto x0 = hn::LoadU(DW(), x + p * kWeightLanes), x1 = hn::LoadU(DW(), x + 16 + p * kWeightLanes);
                even = hn::ReorderWidenMulAccumulate(di, a.part[p], x0, even, odd);
                even = hn::ReorderWidenMulAccumulate(di, b.part[p], x1, even, odd);
            }
            const VF product = hn::ConvertTo(d, hn::Add(even, odd));
#endif
            sums[r][i] = hn::MulAdd(product, hn::Set(d, scaled[r][i][group]), sums[r][i]);
        }
    }
}

template <DType kType, int kRows, int kInputs>
void RowsByInputs(const LinearTarget& target, const std::byte* inputs, std::int64_t inputBytes, int firstInput,
                  std::int64_t row) {
    using F = Format<kType>;
    const DF d;
    constexpr int kChunkBytes = kChunk * kGroup / blockOf(kType).weights * blockOf(kType).bytes;
    constexpr int kLeast = F::kFineScales ? 2 * kChunk : kChunk; // of a chunk
    const int cols = target.weight.cols, groups = cols / kGroup;
    const auto bytes = std::int64_t(rowBytes(kType, cols));
    const auto* base = static_cast<const std::uint8_t*>(target.weight.data) + row * bytes;
    const std::uint8_t* ahead = base + std::max(kAheadBytes, kRows * bytes);
    RoundedRow in[kInputs];
    for (int i = 0; i < kInputs; ++i) in[i] = RoundedAt(inputs + i * inputBytes, cols);
    VF sums[kRows][kInputs];
    for (int r = 0; r < kRows; ++r)
        for (int i = 0; i < kInputs; ++i) sums[r][i] = hn::Zero(d);
    for (int first = 0; first < groups; first += kChunk) {
        const int count = std::min(kChunk, groups - first);
        const std::uint8_t* chunk = base + std::int64_t(first / kChunk) * kChunkBytes;
        for (int line = 0; line < kRows * kChunkBytes; line += 64) __builtin_prefetch(ahead + line, 0, 2);
        ahead += kRows * kChunkBytes;
        HWY_ALIGN float scaled[kRows][kInputs][kChunk];
        for (int r = 0; r < kRows; ++r) {
            HWY_ALIGN float scales[kChunk], least[kLeast];
            F::Scales(chunk + r * bytes, count, scales, least);
            for (int i = 0; i < kInputs; ++i) {
                for (int g = 0; g < kChunk; g += kLanes)
                    hn::Store(hn::Mul(hn::Load(d, scales + g), hn::LoadU(d, in[i].scales + first + g)), d,
                              scaled[r][i] + g);
                if constexpr (F::kHasLeast) {
                    const float* total = F::kFineScales ? in[i].halfSums + 2 * first : in[i].sums + first;
                    for (int g = 0; g < kLeast; g += kLanes)
                        sums[r][i] = hn::MulAdd(hn::Load(d, least + g), hn::LoadU(d, total + g), sums[r][i]);
                }
            }
        }
        const int from = first * kGroup;
        for (int g = 0; g < count; ++g) AddGroup<kType>(chunk, bytes, g, in, from, scaled, sums);
    }
    for (int r = 0; r < kRows; ++r)
        for (int i = 0; i < kInputs; ++i) {
            float value = hn::GetLane(hn::SumOfLanes(d, sums[r][i]));
            if (target.bias) value += target.bias[row + r];
            float& y = target.y[std::int64_t(firstInput + i) * target.stride + row + r];
            y = target.accumulate ? y + value : value;
        }
}

template <DType kType>
void RowsOf(const LinearTarget& target, const std::byte* inputs, int n, std::int64_t begin, std::int64_t end) {
    const std::int64_t inputBytes = RoundedBytes(target.weight.cols);
    const auto input = [&](int i) { return inputs + i * inputBytes; };
    constexpr int kRows = 4;
    std::int64_t row = begin;
    // The outer loop goes over rows and the inner one over inputs, so that the next inputs find the weights in the
    // cache.
    for (; row + kRows <= end; row += kRows) {
        int i = 0;
        for (; i + 4 <= n; i += 4) RowsByInputs<kType, kRows, 4>(target, input(i), inputBytes, i, row);
        for (; i + 2 <= n; i += 2) RowsByInputs<kType, kRows, 2>(target, input(i), inputBytes, i, row);
        if (i < n) RowsByInputs<kType, kRows, 1>(target, input(i), inputBytes, i, row);
    }
    for (; row < end; ++row)
        for (int i = 0; i < n; ++i) RowsByInputs<kType, 1, 1>(target, input(i), inputBytes, i, row);
}

HWY_INLINE void StoreWeights(const Sixteen& integers, VF scale, VF least, float* out) {
    const DF d;
    const hn::Rebind<std::int16_t, DF> shorts;
    HWY_ALIGN std::int16_t plain[16];
    for (int p = 0; p < kParts; ++p) hn::Store(integers.part[p], DW(), plain + p * kWeightLanes);
    for (int i = 0; i < 16; i += kLanes) {
        const VF value = hn::ConvertTo(d, hn::PromoteTo(DI(), hn::Load(shorts, plain + i)));
        hn::StoreU(hn::Add(hn::Mul(value, scale), least), d, out + i);
    }
}

template <DType kType> void DequantiseAs(const std::uint8_t* row, int first, int n, float* HWY_RESTRICT out) {
    using F = Format<kType>;
    const DF d;
    constexpr int kChunkBytes = kChunk * kGroup / blockOf(kType).weights * blockOf(kType).bytes;
    for (int group = first / kGroup, last = (first + n) / kGroup; group < last;) {
        const std::uint8_t* chunk = row + std::int64_t(group / kChunk) * kChunkBytes;
        const int end = std::min(last - group / kChunk * kChunk, kChunk);
        HWY_ALIGN float scales[kChunk], least[2 * kChunk];
        F::Scales(chunk, end, scales, least);
        for (int g = group % kChunk; g < end; ++g, ++group, out += kGroup) {
            Sixteen a, b;
            if constexpr (kType == DType::Q6_K) {
                const auto* fine = reinterpret_cast<const std::int8_t*>(chunk + F::kScalesAt) + 2 * g;
                F::Plain(chunk, g, a, b);
                StoreWeights(a, hn::Set(d, scales[g] * float(fine[0])), hn::Set(d, least[2 * g]), out);
                StoreWeights(b, hn::Set(d, scales[g] * float(fine[1])), hn::Set(d, least[2 * g + 1]), out + 16);
            } else {
                F::Integers(chunk, g, a, b);
                StoreWeights(a, hn::Set(d, scales[g]), hn::Set(d, least[g]), out);
                StoreWeights(b, hn::Set(d, scales[g]), hn::Set(d, least[g]), out + 16);
            }
        }
    }
}

/// Calls function.operator()<type>() for a quantised type.
template <class Function> HWY_INLINE void ForType(DType type, Function&& function) {
    switch (type) {
    case DType::Q8_0:
        return function.template operator()<DType::Q8_0>();
    case DType::Q4_0:
        return function.template operator()<DType::Q4_0>();
    case DType::Q4_1:
        return function.template operator()<DType::Q4_1>();
    case DType::Q5_0:
        return function.template operator()<DType::Q5_0>();
    case DType::Q5_1:
        return function.template operator()<DType::Q5_1>();
    case DType::Q4_K:
        return function.template operator()<DType::Q4_K>();
    case DType::Q5_K:
        return function.template operator()<DType::Q5_K>();
    case DType::Q6_K:
        return function.template operator()<DType::Q6_K>();
    case DType::F32:
    case DType::F16:
    case DType::BF16:
        return;
    }
}

void QuantisedRows(const LinearTarget& target, const std::byte* inputs, int n, std::int64_t begin, std::int64_t end) {
    ForType(target.weight.type, [&]<DType kType>() { RowsOf<kType>(target, inputs, n, begin, end); });
}

void Dequantise(DType type, const void* row, int first, int n, float* out) {
    ForType(type, [&]<DType kType>() { DequantiseAs<kType>(static_cast<const std::uint8_t*>(row), first, n, out); });
}

} // namespace kvscope::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvscope::cpu {

HWY_EXPORT(RoundedBytes);
HWY_EXPORT(RoundInput);
HWY_EXPORT(QuantisedRows);
HWY_EXPORT(Dequantise);

std::int64_t roundedBytes(int cols) { return HWY_DYNAMIC_DISPATCH(RoundedBytes)(cols); }
void roundInput(const float* x, int cols, std::byte* rounded) { HWY_DYNAMIC_DISPATCH(RoundInput)(x, cols, rounded); }
void quantisedRows(const LinearTarget& target, const std::byte* inputs, int n, std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(QuantisedRows)(target, inputs, n, begin, end);
}
void dequantise(DType type, const void* row, int first, int n, float* out) {
    HWY_DYNAMIC_DISPATCH(Dequantise)(type, row, first, n, out);
}

} // namespace kvscope::cpu
#endif
