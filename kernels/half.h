// 16-bit floating point to float32, exactly, and back. In an unnamed namespace on purpose: translation units compiled
// for several instruction sets must not share inline functions.
#pragma once

#include "kernels/kernels.h"

#include <cstdint>
#include <cstring>

namespace kvscope {
namespace {

[[maybe_unused]] inline float bfloatToFloat(std::uint16_t raw) {
    const std::uint32_t wide = std::uint32_t(raw) << 16;
    float value;
    std::memcpy(&value, &wide, 4);
    return value;
}

[[maybe_unused]] inline float halfToFloat(std::uint16_t raw) {
    const std::uint32_t sign = std::uint32_t(raw & 0x8000) << 16, exponent = raw >> 10 & 31, mantissa = raw & 1023;
    if (exponent == 0) return (sign ? -1.f : 1.f) * float(mantissa) * 0x1p-24f;
    const std::uint32_t wide = sign | (exponent == 31 ? 0x7F800000u : (exponent + 112) << 23) | mantissa << 13;
    float value;
    std::memcpy(&value, &wide, 4);
    return value;
}

/// Rounded to nearest, ties to even. A number that is too large becomes infinite.
[[maybe_unused]] inline std::uint16_t floatToHalf(float value) {
    std::uint32_t raw;
    std::memcpy(&raw, &value, 4);
    const std::uint32_t sign = raw >> 16 & 0x8000, rest = raw & 0x7FFFFFFF;
    if (rest > 0x7F800000) return std::uint16_t(sign | 0x7E00); // NaN
    if (rest >= 0x47800000) return std::uint16_t(sign | 0x7C00);
    if (rest < 0x38800000) { // below the smallest normal number, 2^-14: a sum whose last bit is 2^-24
        float magnitude;
        std::memcpy(&magnitude, &rest, 4);
        magnitude += 0.5f;
        std::uint32_t sum;
        std::memcpy(&sum, &magnitude, 4);
        return std::uint16_t(sign | (sum - 0x3F000000));
    }
    return std::uint16_t(sign | ((rest - 0x38000000 + 0xFFF + (rest >> 13 & 1)) >> 13));
}

/// Rounded to nearest, ties to even.
[[maybe_unused]] inline std::uint16_t floatToBfloat(float value) {
    std::uint32_t raw;
    std::memcpy(&raw, &value, 4);
    if ((raw & 0x7FFFFFFF) > 0x7F800000) return std::uint16_t(raw >> 16 | 64); // NaN
    return std::uint16_t((raw + 0x7FFF + (raw >> 16 & 1)) >> 16);
}

/// Element `index` of an array of any type and alignment.
[[maybe_unused]] inline float elementAt(const void* data, DType type, std::int64_t index) {
    const char* at = static_cast<const char*>(data) + index * bytesOf(type);
    if (type == DType::F32) {
        float value;
        std::memcpy(&value, at, 4);
        return value;
    }
    std::uint16_t raw;
    std::memcpy(&raw, at, 2);
    return type == DType::BF16 ? bfloatToFloat(raw) : halfToFloat(raw);
}

} // namespace
} // namespace kvscope
