// Reads KV blocks in 16, 8 and 4 bits as float32, which attention does once for each block and group of query heads.
#include "kernels/quantised_kv.h"

#include "kernels/half.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/quantised_kv_simd.cpp"
#include <hwy/foreach_target.h> // must come before highway.h
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace kvscope::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
using Bits = hn::RebindToUnsigned<D>;
using Integers = hn::RebindToSigned<D>;
constexpr int kLanes = int(hn::MaxLanes(D()));

/// `count` numbers from `from` on, as many at a time as a vector holds: make(i) is the vector of the numbers from i on.
/// Rows that do not end with a vector end with one that overlaps the vector before it; rows shorter than a vector go
/// through `one`.
template <class Make, class One> HWY_INLINE void Row(int count, float* HWY_RESTRICT out, Make&& make, One&& one) {
    const D d;
    if (count < kLanes) {
        for (int i = 0; i < count; ++i) out[i] = one(i);
        return;
    }
    int i = 0;
    for (; i + kLanes <= count; i += kLanes) hn::StoreU(make(i), d, out + i);
    if (i < count) hn::StoreU(make(count - kLanes), d, out + count - kLanes);
}

float OneFp8(std::uint8_t code) {
    const std::uint32_t bits = std::uint32_t(code & 0x7F) << 20;
    float magnitude;
    __builtin_memcpy(&magnitude, &bits, 4);
    return (code & 0x80 ? -0x1p120f : 0x1p120f) * magnitude;
}

void BfloatRow(const std::uint16_t* HWY_RESTRICT from, int count, float* HWY_RESTRICT out) {
    const hn::Rebind<std::uint16_t, D> halves;
    Row(
        count, out,
        [&](int i) { return hn::BitCast(D(), hn::ShiftLeft<16>(hn::PromoteTo(Bits(), hn::LoadU(halves, from + i)))); },
        [&](int i) { return bfloatToFloat(from[i]); });
}

void Int8Row(const std::uint8_t* HWY_RESTRICT codes, int count, float scale, float* HWY_RESTRICT out) {
    const hn::Rebind<std::int8_t, D> bytes;
    const auto* from = reinterpret_cast<const std::int8_t*>(codes);
    const auto step = hn::Set(D(), scale);
    Row(
        count, out,
        [&](int i) { return hn::Mul(hn::ConvertTo(D(), hn::PromoteTo(Integers(), hn::LoadU(bytes, from + i))), step); },
        [&](int i) { return float(from[i]) * scale; });
}

/// The exponent and mantissa of e4m3, moved to where float32 has them, are the number times 2^-120.
void Fp8Row(const std::uint8_t* HWY_RESTRICT codes, int count, float scale, float* HWY_RESTRICT out) {
    const hn::Rebind<std::uint8_t, D> bytes;
    const auto step = hn::Set(D(), scale), raise = hn::Set(D(), 0x1p120f);
    Row(
        count, out,
        [&](int i) {
            const auto code = hn::PromoteTo(Bits(), hn::LoadU(bytes, codes + i));
            const auto sign = hn::ShiftLeft<24>(hn::And(code, hn::Set(Bits(), 0x80u)));
            const auto rest = hn::ShiftLeft<20>(hn::And(code, hn::Set(Bits(), 0x7Fu)));
            return hn::Mul(hn::Mul(hn::BitCast(D(), hn::Or(sign, rest)), raise), step);
        },
        [&](int i) { return OneFp8(codes[i]) * scale; });
}

/// One group of an even count; see writeNibbles in quantised_kv.cpp.
void NibbleGroup(const std::uint8_t* HWY_RESTRICT codes, int count, float scale, float zero, float* HWY_RESTRICT out) {
    const hn::Rebind<std::uint8_t, D> bytes;
    const auto step = hn::Set(D(), scale), base = hn::Set(D(), zero);
    const int half = count / 2;
    const auto load = [&](int i) { return hn::PromoteTo(Integers(), hn::LoadU(bytes, codes + i)); };
    Row(
        half, out,
        [&](int i) {
            return hn::Add(hn::Mul(hn::ConvertTo(D(), hn::And(load(i), hn::Set(Integers(), 15))), step), base);
        },
        [&](int i) { return float(codes[i] & 15) * scale + zero; });
    Row(
        half, out + half,
        [&](int i) { return hn::Add(hn::Mul(hn::ConvertTo(D(), hn::ShiftRight<4>(load(i))), step), base); },
        [&](int i) { return float(codes[i] >> 4) * scale + zero; });
}

/// `rows` rows of `count` numbers, groups of `width` numbers in INT4.
void ReadRows(const KvFormat& format, const std::uint8_t* codes, const std::uint16_t* scales, int rows, int count,
              int width, float* out) {
    for (int r = 0; r < rows; ++r, out += count) {
        const std::int64_t first = std::int64_t(r) * count;
        switch (format.type) {
        case KvType::BF16:
            BfloatRow(reinterpret_cast<const std::uint16_t*>(codes) + first, count, out);
            break;
        case KvType::FP8:
            Fp8Row(codes + first, count, halfToFloat(scales[r]), out);
            break;
        case KvType::INT8:
            Int8Row(codes + first, count, halfToFloat(scales[r]), out);
            break;
        case KvType::INT4:
            for (int at = 0; at < count; at += width, scales += 2)
                NibbleGroup(codes + (first + at) / 2, std::min(width, count - at), halfToFloat(scales[0]),
                            halfToFloat(scales[1]), out + at);
            break;
        case KvType::F32:
            break;
        }
    }
}

} // namespace kvscope::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvscope {
namespace cpu {
namespace {

HWY_EXPORT(ReadRows);

void readRows(const KvFormat& format, const void* block, std::int64_t codesAt, std::int64_t scalesAt, int rows,
              int count, int width, float* out) {
    const auto* bytes = static_cast<const std::uint8_t*>(block);
    HWY_DYNAMIC_DISPATCH(ReadRows)
    (format, bytes + codesAt, reinterpret_cast<const std::uint16_t*>(bytes + scalesAt), rows, count, width, out);
}

} // namespace
} // namespace cpu

void readKeys(const KvFormat& format, const void* block, float* keys) {
    cpu::readRows(format, block, 0, format.keyScalesAt(), format.dim, format.blockTokens, KvFormat::kKeyGroup, keys);
}

void readValues(const KvFormat& format, const void* block, int tokens, float* values) {
    cpu::readRows(format, block, format.valuesAt(), format.valueScalesAt(), tokens, format.valueDim,
                  KvFormat::kValueGroup, values);
}

} // namespace kvscope
#endif
