// Writes KV blocks in 16, 8 and 4 bits. This happens once for each block, when the block is full.
#include "kernels/quantised_kv.h"

#include "kernels/half.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace kvscope {
namespace {

/// To the nearest integer, ties to even; |x| below 2^22.
float roundEven(float x) {
    constexpr float kShift = 12582912.f; // 1.5 * 2^23: a sum with it has no bits behind the point
    return (x + kShift) - kShift;
}

/// `x` within the range of the codes; NaN becomes the lowest.
float within(float x, float lowest, float highest) { return x >= lowest ? std::min(x, highest) : lowest; }

std::uint8_t int8Of(float x) { return std::uint8_t(std::int8_t(roundEven(within(x, -127.f, 127.f)))); }

/// e4m3, rounded to nearest, ties to even; the largest number, 448, for all that are larger.
std::uint8_t fp8Of(float x) {
    const std::uint8_t sign = std::signbit(x) ? 0x80 : 0;
    const float magnitude = within(std::abs(x), 0.f, 448.f);
    if (magnitude < 0x1p-6f) return std::uint8_t(sign | std::uint8_t(roundEven(magnitude * 512.f))); // subnormal
    std::uint32_t bits;
    std::memcpy(&bits, &magnitude, 4);
    bits = (bits + 0x7FFFF + (bits >> 20 & 1)) >> 20; // 3 bits of the mantissa are left
    return std::uint8_t(sign | (bits - (120u << 3)));
}

/// A group of numbers that lie `stride` apart and share one scale.
struct Group {
    const float* x;
    int count, stride;
    float at(int i) const { return x[std::int64_t(i) * stride]; }
};

float largestOf(const Group& group) {
    float most = 0;
    for (int i = 0; i < group.count; ++i) {
        const float magnitude = std::abs(group.at(i));
        if (!(magnitude <= most)) most = magnitude; // NaN stays: nothing is at most NaN
        if (std::isnan(most)) break;
    }
    return most;
}

/// Writes the codes of a group one after the other. @return the scale
std::uint16_t writeBytes(KvType type, const Group& group, std::uint8_t* codes) {
    const std::uint16_t scale = floatToHalf(largestOf(group) / (type == KvType::FP8 ? 448.f : 127.f));
    const float step = halfToFloat(scale);
    for (int i = 0; i < group.count; ++i) {
        const float x = step == 0.f ? 0.f : group.at(i) / step;
        codes[i] = type == KvType::FP8 ? fp8Of(x) : int8Of(x);
    }
    return scale;
}

/// Writes the codes of a group of an even count, two in a byte: byte i has number i in its low half and number
/// i + count/2 in its high half.
void writeNibbles(const Group& group, std::uint8_t* codes, std::uint16_t* scaleAndZero) {
    float low = group.at(0), high = low;
    for (int i = 1; i < group.count; ++i) {
        const float x = group.at(i);
        low = x < low || std::isnan(x) ? x : low;
        high = x > high || std::isnan(x) ? x : high;
    }
    scaleAndZero[0] = floatToHalf((high - low) / 15.f);
    scaleAndZero[1] = floatToHalf(low);
    const float step = halfToFloat(scaleAndZero[0]), zero = halfToFloat(scaleAndZero[1]);
    const auto code = [&](int i) {
        return step == 0.f ? 0u : unsigned(roundEven(within((group.at(i) - zero) / step, 0.f, 15.f)));
    };
    const int half = group.count / 2;
    for (int i = 0; i < half; ++i) codes[i] = std::uint8_t(code(i) | code(i + half) << 4);
}

/// A row of numbers that lie `stride` apart, in groups of `width`, the last one perhaps smaller.
void writeRow(const KvFormat& format, const Group& row, int width, std::uint8_t* codes, std::uint16_t* scales) {
    if (format.type != KvType::INT4) {
        *scales = writeBytes(format.type, row, codes);
        return;
    }
    for (int first = 0; first < row.count; first += width, scales += 2)
        writeNibbles({row.x + std::int64_t(first) * row.stride, std::min(width, row.count - first), row.stride},
                     codes + first / 2, scales);
}

} // namespace

void quantiseBlock(const KvFormat& format, const float* keys, const float* values, const float* bias, void* block) {
    auto* const bytes = static_cast<std::uint8_t*>(block);
    const int tokens = format.blockTokens, dim = format.dim, valueDim = format.valueDim;
    if (format.type == KvType::BF16) {
        auto* to = static_cast<std::uint16_t*>(block);
        for (int i = 0; i < tokens * dim; ++i) *to++ = floatToBfloat(keys[i]);
        for (int i = 0; i < tokens * valueDim; ++i) *to++ = floatToBfloat(values[i]);
    } else {
        const int bits = bitsOf(format.type);
        auto* scales = reinterpret_cast<std::uint16_t*>(bytes + format.keyScalesAt());
        const int keyScales = format.type == KvType::INT4 ? 2 * format.keyGroups() : 1;
        for (int c = 0; c < dim; ++c, scales += keyScales)
            writeRow(format, {keys + std::int64_t(c) * tokens, tokens, 1}, KvFormat::kKeyGroup,
                     bytes + std::int64_t(c) * tokens * bits / 8, scales);
        scales = reinterpret_cast<std::uint16_t*>(bytes + format.valueScalesAt());
        const int valueScales = format.type == KvType::INT4 ? 2 * format.valueGroups() : 1;
        for (int t = 0; t < tokens && valueDim > 0; ++t, scales += valueScales)
            writeRow(format, {values + std::int64_t(t) * valueDim, valueDim, 1}, KvFormat::kValueGroup,
                     bytes + format.valuesAt() + std::int64_t(t) * valueDim * bits / 8, scales);
    }
    if (format.bias) std::memcpy(bytes + format.biasAt(), bias, std::size_t(tokens) * sizeof(float));
}

} // namespace kvscope
