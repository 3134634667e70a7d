// Quantised linear layers and embeddings against double precision, for every format and instruction set.
//
// Tolerances. A weight is the sum of two float products: decoding it is wrong by at most 4 roundings of their sizes
// (scale, factor, product, sum). A dot product adds (cols + 8) roundings of S = sum of size |x|. With few inputs, each
// input is also rounded to a multiple of a 32767th of the largest of its 32: off by at most half of that, and then
// enters with its weight.
#include "base/error.h"
#include "tests/kernels/quantised_fixture.h"

#include <algorithm>
#include <gmock/gmock.h>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using namespace kvscope::test;

constexpr int kMostInputs = 11, kFew = 8; // up to kFew inputs meet the blocks as integers
constexpr int kRows[] = {1, 3, 4, 19, 70};

std::vector<int> widthsOf(DType type) {
    if (blockOf(type).weights == 256) return {256, 768, 2304};
    return {32, 96, 256, 576, 2080};
}

struct Expected {
    double value = 0, error = 0;
};

/// W[row] . x and how far a result may be from it.
Expected product(const QuantisedWeights& weights, int cols, int row, const float* x, bool few) {
    Expected out;
    double size = 0;
    for (int group = 0; group < cols; group += 32) {
        double most = 0, sum = 0;
        for (int c = group; c < group + 32; ++c) {
            const DecodedWeight& w = weights.values[std::size_t(row) * std::size_t(cols) + std::size_t(c)];
            out.value += w.value * double(x[c]);
            size += w.size * std::abs(double(x[c]));
            most = std::max(most, std::abs(double(x[c])));
            sum += std::abs(w.value);
        }
        if (few) out.error += sum * most / 32767 / 2;
    }
    out.error += (cols + 12) * kRounding * size + (few ? kRounding * out.error : 0) + 1e-30;
    return out;
}

TEST(Quantised, EmbeddingRowsAreWhatTheFormatsDefine) {
    for (const DType type : kQuantised)
        for (const int cols : widthsOf(type)) {
            std::mt19937 random(unsigned(cols) + unsigned(type));
            constexpr int kVocab = 5;
            const QuantisedWeights table(random, type, kVocab, cols, 1);
            const std::vector<std::int32_t> ids{4, 0, 4, 2};
            onEveryInstructionSet([&] {
                std::vector<float> out(ids.size() * std::size_t(cols) + 1, kSentinel);
                makeCpuKernels(2)->embed(table.matrix(), ids, out.data());
                for (std::size_t i = 0; i < ids.size(); ++i)
                    for (int c = 0; c < cols; ++c) {
                        const DecodedWeight& want = table.values[std::size_t(ids[i] * cols + c)];
                        ASSERT_NEAR(double(out[i * std::size_t(cols) + std::size_t(c)]), want.value,
                                    4 * kRounding * want.size)
                            << nameOf(type) << " of " << cols << ", id " << ids[i] << " column " << c;
                    }
                ASSERT_EQ(out.back(), kSentinel);
            });
        }
}

TEST(Quantised, LinearAgreesWithDoublePrecisionForEveryFormatShapeAndBatch) {
    for (const DType type : kQuantised)
        for (const int rows : kRows)
            for (const int cols : widthsOf(type)) {
                if (rows == 70 && cols > 1000) continue; // the double precision side would take long
                std::mt19937 random(unsigned(rows * 31 + cols) + unsigned(type));
                const QuantisedWeights weights(random, type, rows, cols, std::size_t(rows % 3));
                std::vector<float> x = randomFloats(random, std::size_t(kMostInputs * cols));
                x[0] = 40.f; // an outlier: only the 32 inputs around it may get coarser
                const std::vector<float> bias = randomFloats(random, std::size_t(rows));
                std::vector<Expected> want[2];
                for (const bool few : {false, true})
                    for (int i = 0; i < kMostInputs; ++i)
                        for (int r = 0; r < rows; ++r)
                            want[few].push_back(product(weights, cols, r, x.data() + i * cols, few));
                onEveryInstructionSet([&] {
                    for (const int threads : {1, 3}) {
                        const auto kernels = makeCpuKernels(threads);
                        for (const int n : {1, 2, 3, 4, 7, 8, 9, kMostInputs}) {
                            const int stride = rows + 2;
                            std::vector<float> y(std::size_t(n * stride), 0.5f);
                            const LinearTarget target{weights.matrix(), bias.data(), y.data(), stride, true};
                            kernels->linear(LinearArgs{x.data(), n, cols, nullptr, 0.f, {&target, 1}});
                            for (int i = 0; i < n; ++i)
                                for (int r = 0; r < stride; ++r) {
                                    const double got = y[std::size_t(i * stride + r)];
                                    if (r >= rows) {
                                        ASSERT_EQ(got, 0.5);
                                        continue;
                                    }
                                    const auto [value, error] = want[n <= kFew][std::size_t(i * rows + r)];
                                    const double constant = 0.5 + double(bias[std::size_t(r)]);
                                    ASSERT_NEAR(got, value + constant,
                                                error + 4 * kRounding * (std::abs(constant) + std::abs(value) + 1))
                                        << nameOf(type) << " " << rows << "x" << cols << ", " << n << " inputs, "
                                        << threads << " threads, input " << i << " row " << r;
                                }
                        }
                    }
                });
            }
}

TEST(Quantised, OneCallMixesFormatsAndNormalises) {
    constexpr int kCols = 512;
    std::mt19937 random(3);
    const QuantisedWeights first(random, DType::Q4_K, 9, kCols, 0), second(random, DType::Q6_K, 5, kCols, 1);
    const Weights third(randomFloats(random, 6 * kCols), DType::BF16, 6, kCols, 2);
    const std::vector<float> x = randomFloats(random, 2 * kCols), norm = randomFloats(random, kCols);
    std::vector<float> normed(x.size());
    for (int i = 0; i < 2; ++i) {
        double squares = 0;
        for (int c = 0; c < kCols; ++c)
            squares += double(x[std::size_t(i * kCols + c)]) * double(x[std::size_t(i * kCols + c)]);
        for (int c = 0; c < kCols; ++c)
            normed[std::size_t(i * kCols + c)] =
                float(double(x[std::size_t(i * kCols + c)]) / std::sqrt(squares / kCols + 1e-5) *
                      double(norm[std::size_t(c)]));
    }
    onEveryInstructionSet([&] {
        std::vector<float> a(18), b(10), c(12);
        const LinearTarget targets[] = {{first.matrix(), nullptr, a.data(), 9, false},
                                        {third.matrix(), nullptr, c.data(), 6, false},
                                        {second.matrix(), nullptr, b.data(), 5, false}};
        makeCpuKernels(2)->linear(LinearArgs{x.data(), 2, kCols, norm.data(), 1e-5f, targets});
        // The norm's own rounding adds some to every input: 1.5 cols roundings at most.
        const auto check = [&](const QuantisedWeights& weights, const std::vector<float>& y, int rows) {
            for (int i = 0; i < 2; ++i)
                for (int r = 0; r < rows; ++r) {
                    const auto [value, error] = product(weights, kCols, r, normed.data() + i * kCols, true);
                    ASSERT_NEAR(double(y[std::size_t(i * rows + r)]), value, 3 * error)
                        << "input " << i << " row " << r;
                }
        };
        check(first, a, 9);
        check(second, b, 5);
        for (int i = 0; i < 2; ++i)
            for (int r = 0; r < 6; ++r) {
                double value = 0, size = 0;
                for (int k = 0; k < kCols; ++k) {
                    const double term =
                        third.values[std::size_t(r * kCols + k)] * double(normed[std::size_t(i * kCols + k)]);
                    value += term;
                    size += std::abs(term);
                }
                ASSERT_NEAR(double(c[std::size_t(i * 6 + r)]), value, 2.5 * kCols * kRounding * size);
            }
    });
}

TEST(Quantised, GatedLinearIsSiluOfTheGateTimesTheOther) {
    constexpr int kWidth = 37, kCols = 256;
    std::mt19937 random(4);
    const QuantisedWeights gate(random, DType::Q5_1, kWidth, kCols, 0), up(random, DType::Q8_0, kWidth, kCols, 0);
    for (const int n : {1, 5, 9}) {
        const std::vector<float> x = randomFloats(random, std::size_t(n * kCols));
        onEveryInstructionSet([&] {
            std::vector<float> out(std::size_t(n * kWidth));
            makeCpuKernels(2)->gatedLinear({x.data(), n, nullptr, 0.f, gate.matrix(), up.matrix(), out.data()});
            for (int i = 0; i < n; ++i)
                for (int r = 0; r < kWidth; ++r) {
                    const auto g = product(gate, kCols, r, x.data() + i * kCols, n <= kFew),
                               u = product(up, kCols, r, x.data() + i * kCols, n <= kFew);
                    const double silu = g.value / (1 + std::exp(-g.value));
                    // silu's slope is below 1.1
                    const double error = 1.1 * g.error * (std::abs(u.value) + u.error) + std::abs(silu) * u.error;
                    ASSERT_NEAR(double(out[std::size_t(i * kWidth + r)]), silu * u.value,
                                error + 1e-6 * std::abs(silu * u.value) + 1e-9);
                }
        });
    }
}

TEST(Quantised, ZeroInputsGiveZeroAndNoNumbersGiveNone) {
    constexpr int kCols = 256;
    for (const DType type : kQuantised) {
        std::mt19937 random(5);
        const QuantisedWeights weights(random, type, 6, kCols, 0);
        for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
            std::vector<float> x(2 * kCols, 0.f);
            x[kCols + 77] = bad;
            onEveryInstructionSet([&] {
                std::vector<float> y(12, kSentinel);
                const LinearTarget target{weights.matrix(), nullptr, y.data(), 6, false};
                makeCpuKernels(1)->linear(LinearArgs{x.data(), 2, kCols, nullptr, 0.f, {&target, 1}});
                for (int r = 0; r < 6; ++r) {
                    EXPECT_EQ(y[std::size_t(r)], 0.f) << nameOf(type);
                    EXPECT_FALSE(std::isfinite(y[std::size_t(6 + r)])) << nameOf(type);
                }
            });
        }
    }
}

TEST(Quantised, PartialBlocksAreRefused) {
    const auto kernels = makeCpuKernels(1);
    float value = 0;
    for (const DType type : kQuantised) {
        const WeightMatrix odd{&value, type, 1, blockOf(type).weights - 16};
        const LinearTarget target{odd, nullptr, &value, 1, false};
        const auto refusal = ::testing::ThrowsMessage<Error>(::testing::HasSubstr(nameOf(type)));
        EXPECT_THAT([&] { kernels->linear(LinearArgs{&value, 1, odd.cols, nullptr, 0.f, {&target, 1}}); }, refusal);
        EXPECT_THAT([&] { kernels->gatedLinear({&value, 1, nullptr, 0.f, odd, odd, &value}); }, refusal);
        EXPECT_THAT([&] { kernels->embed(odd, {}, &value); }, refusal);
    }
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
