// 16-bit floating point to float32, exactly. In an unnamed namespace on purpose: translation units compiled for several
// instruction sets must not share inline functions.
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
