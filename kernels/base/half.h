// 16-bit floating point to float32, exactly. In an unnamed namespace on purpose: translation units compiled for several
// instruction sets must not share inline functions.
#pragma once

#include "kernels/kernels.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

namespace kvscope {
namespace {

[[maybe_unused]] inline float bfloatToFloat(std::uint16_t raw) {
    const std::uint32_t wide = std::uint32_t(raw) << 16;
    float value;
    std::memcpy(&value, &wide, 4);
    return value;
}

[[maybe_unused]] inline float halfToFloat(std::uint16_t raw) {
    const int exponent = raw >> 10 & 31, mantissa = raw & 1023;
    const float sign = raw >> 15 ? -1.f : 1.f;
    if (exponent == 0) return sign * float(mantissa) * 0x1p-24f;
    if (exponent == 31)
        return mantissa ? std::numeric_limits<float>::quiet_NaN() : sign * std::numeric_limits<float>::infinity();
    return sign * std::ldexp(1.f + float(mantissa) / 1024.f, exponent - 15);
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
