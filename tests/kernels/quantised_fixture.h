// Random weights in every block format, with the values they stand for: decoded in double precision straight from the
// formats' definitions, one weight at a time.
#pragma once

#include "tests/kernels/kernel_fixture.h"

#include <array>

namespace kvscope::test {

constexpr std::array kQuantised{DType::Q8_0, DType::Q4_0, DType::Q4_1, DType::Q5_0,
                                DType::Q5_1, DType::Q4_K, DType::Q5_K, DType::Q6_K};

/// A weight and the size of the two terms it is the sum of, which bounds the rounding of any way to compute it.
struct DecodedWeight {
    double value = 0, size = 0;
};

inline DecodedWeight decodeWeight(DType type, const std::uint8_t* block, int index) {
    const auto half = [&](int at) { return decode(std::uint16_t(block[at] | block[at + 1] << 8), 10); };
    const auto nibble = [&](int from, int i) { return i < 16 ? block[from + i] & 15 : block[from + i - 16] >> 4; };
    const auto bit = [&](int from, int i) { return block[from + i / 8] >> i % 8 & 1; };
    const auto sum = [](double a, double b) { return DecodedWeight{a + b, std::abs(a) + std::abs(b)}; };
    switch (type) {
    case DType::Q8_0:
        return sum(half(0) * std::int8_t(block[2 + index]), 0);
    case DType::Q4_0:
        return sum(half(0) * nibble(2, index), half(0) * -8);
    case DType::Q4_1:
        return sum(half(0) * nibble(4, index), half(2));
    case DType::Q5_0:
        return sum(half(0) * (nibble(6, index) + 16 * bit(2, index)), half(0) * -16);
    case DType::Q5_1:
        return sum(half(0) * (nibble(8, index) + 16 * bit(4, index)), half(2));
    case DType::Q4_K:
    case DType::Q5_K: {
        const int part = index / 32, in = index % 32; // 8 parts, each with a factor for the scale and for the minimum
        const std::uint8_t* packed = block + 4;
        const int factor = part < 4 ? packed[part] & 63 : (packed[part + 4] & 15) | (packed[part - 4] >> 6) << 4;
        const int least = part < 4 ? packed[part + 4] & 63 : packed[part + 4] >> 4 | (packed[part] >> 6) << 4;
        const int nibblesAt = type == DType::Q4_K ? 16 : 48;
        int value = block[nibblesAt + part / 2 * 32 + in] >> part % 2 * 4 & 15;
        if (type == DType::Q5_K) value += 16 * (block[16 + in] >> part & 1);
        return sum(half(0) * factor * value, -half(2) * least);
    }
    case DType::Q6_K: {
        const int part = index / 128, in = index % 128;
        const int low = block[64 * part + in % 64] >> in / 64 * 4 & 15;
        const int high = block[128 + 32 * part + in % 32] >> in / 32 * 2 & 3;
        const double scale = half(208) * std::int8_t(block[192 + index / 16]);
        return sum(scale * (low + 16 * high), scale * -32);
    }
    default:
        return {};
    }
}

/// Rows of random blocks that start `offset` bytes into their memory.
class QuantisedWeights {
public:
    QuantisedWeights(std::mt19937& random, DType type, int rows, int cols, std::size_t offset)
        : memory_(std::size_t(rows) * rowBytes(type, cols) + offset), offset_(offset), type_(type), rows_(rows),
          cols_(cols) {
        const auto [weights, bytes] = blockOf(type);
        std::uint8_t* at = memory_.data() + offset;
        std::normal_distribution<float> normal(0.f, 0.01f);
        for (int block = 0; block < rows * (cols / weights); ++block, at += bytes) {
            for (int i = 0; i < bytes; ++i) at[i] = std::uint8_t(random());
            const auto putHalf = [&](int where) {
                const std::uint16_t raw = toHalf(normal(random));
                std::memcpy(at + where, &raw, 2);
            };
            putHalf(type == DType::Q6_K ? 208 : 0);
            if (type == DType::Q4_1 || type == DType::Q5_1 || type == DType::Q4_K || type == DType::Q5_K) putHalf(2);
            for (int i = 0; i < weights; ++i) values.push_back(decodeWeight(type, at, i));
        }
    }
    WeightMatrix matrix() const { return {memory_.data() + offset_, type_, rows_, cols_}; }

    std::vector<DecodedWeight> values; // [rows, cols]

private:
    std::vector<std::uint8_t> memory_;
    std::size_t offset_;
    DType type_;
    int rows_, cols_;
};

} // namespace kvscope::test
