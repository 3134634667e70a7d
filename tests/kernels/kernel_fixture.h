// Shared by the kernel tests: every compiled instruction set, random data, 16-bit floats, tolerances.
#pragma once

#include "kernels/kernels.h"

#include <cmath>
#include <cstring>
#include <gtest/gtest.h>
#include <hwy/targets.h>
#include <limits>
#include <random>
#include <vector>

namespace kvscope::test {

/// Half the distance between neighbours of 1: the relative error of one rounded float operation.
constexpr double kRounding = 0x1p-24;

constexpr float kSentinel = -777.25f; // stands in memory that no kernel may write

/// Runs body() once per instruction set that is compiled and that this machine has.
template <class Body> void onEveryInstructionSet(Body&& body) {
    struct Restore {
        ~Restore() { hwy::SetSupportedTargetsForTest(0); }
    } restore;
    for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
        SCOPED_TRACE(hwy::TargetName(target));
        hwy::SetSupportedTargetsForTest(target);
        body();
        if (::testing::Test::HasFailure()) return;
    }
}

inline std::vector<float> randomFloats(std::mt19937& random, std::size_t count, float scale = 1.f) {
    std::normal_distribution<float> normal(0.f, scale);
    std::vector<float> values(count);
    for (float& value : values) value = normal(random);
    return values;
}

/// Nearest half below or above an ordinary float (|value| < 65504), subnormal halves included.
inline std::uint16_t toHalf(float value) {
    const std::uint16_t sign = std::signbit(value) ? 0x8000 : 0;
    int exponent = 0;
    const float fraction = std::frexp(std::abs(value), &exponent); // 0.5 <= fraction < 1
    if (fraction == 0.f) return sign;
    if (exponent - 1 < -14) return std::uint16_t(sign | unsigned(std::lround(std::ldexp(std::abs(value), 24))));
    const auto mantissa = unsigned(std::lround(std::ldexp(fraction, 11))); // 1024..2048; 2048 carries into the exponent
    return std::uint16_t(sign | ((unsigned(exponent - 1 + 15 - 1) << 10) + mantissa));
}
inline std::uint16_t toBfloat(float value) {
    std::uint32_t bits;
    std::memcpy(&bits, &value, 4);
    return std::uint16_t(bits >> 16);
}

/// The value of a 16-bit float from its fields, by the definition of the format.
inline double decode(std::uint16_t raw, int mantissaBits) {
    const int exponentBits = 15 - mantissaBits, exponentMask = (1 << exponentBits) - 1, bias = exponentMask / 2;
    const int exponent = raw >> mantissaBits & exponentMask, mantissa = raw & ((1 << mantissaBits) - 1);
    const double sign = raw & 0x8000 ? -1. : 1.;
    if (exponent == exponentMask)
        return mantissa ? std::numeric_limits<double>::quiet_NaN() : sign * std::numeric_limits<double>::infinity();
    if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissaBits);
    return sign * std::ldexp(mantissa + (1 << mantissaBits), exponent - bias - mantissaBits);
}

/// A weight matrix that starts `offset` bytes into its memory, with the exact values it holds.
class Weights {
public:
    Weights(const std::vector<float>& source, DType type, int rows, int cols, std::size_t offset)
        : memory_(source.size() * std::size_t(bytesOf(type)) + offset), offset_(offset), type_(type), rows_(rows),
          cols_(cols) {
        char* at = memory_.data() + offset;
        for (const float value : source) {
            if (type == DType::F32) {
                std::memcpy(at, &value, 4);
                values.push_back(value);
            } else {
                const std::uint16_t raw = type == DType::F16 ? toHalf(value) : toBfloat(value);
                std::memcpy(at, &raw, 2);
                values.push_back(decode(raw, type == DType::F16 ? 10 : 7));
            }
            at += bytesOf(type);
        }
    }
    WeightMatrix matrix() const { return {memory_.data() + offset_, type_, rows_, cols_}; }

    std::vector<double> values; // [rows, cols]

private:
    std::vector<char> memory_;
    std::size_t offset_;
    DType type_;
    int rows_, cols_;
};

} // namespace kvscope::test
