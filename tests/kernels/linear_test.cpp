// Linear layers, embedding, rotary positions and eviction scores against double precision.
//
// Tolerances. A float dot product of c terms makes at most c rounded additions (products are fused or rounded once),
// each wrong by at most 2^-24 of a partial sum that never exceeds S = sum |w x|: the error is below (c + 8) 2^-24 S,
// where the 8 covers the sum over lanes, the bias and `accumulate`. RMS normalisation multiplies every input by a
// factor whose error is half of that of a sum of c squares plus a few roundings, hence (1.5 c + 16) 2^-24 S with it.
// One forgotten or doubled term of average size is S / c, which is more than that for every shape below. Small integers
// need no tolerance: all sums stay below 2^24, so every order of summation gives the same exact float.
#include "base/error.h"
#include "tests/kernels/kernel_fixture.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <gmock/gmock.h>
#include <numeric>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using namespace kvscope::test;

constexpr std::array kTypes{DType::F32, DType::F16, DType::BF16};
constexpr std::array kBatches{1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 13, 24, 50};
constexpr int kMostInputs = 50;

struct Shape {
    int rows, cols;
};
constexpr std::array<Shape, 9> kShapes{
    {{1, 1}, {7, 5}, {3, 16}, {33, 17}, {16, 31}, {100, 384}, {384, 1024}, {70, 2100}, {2, 4099}}};

std::vector<float> smallIntegers(std::mt19937& random, std::size_t count) {
    std::vector<float> values(count);
    for (float& value : values) value = float(int(random() % 17) - 8);
    return values;
}

/// Rows of x `stride` apart with NaN between them: reading past a row would show.
std::vector<float> spreadRows(const std::vector<float>& x, int rows, int cols, int stride) {
    std::vector<float> spread(std::size_t(rows) * std::size_t(stride), std::numeric_limits<float>::quiet_NaN());
    for (int i = 0; i < rows; ++i)
        std::copy_n(x.begin() + std::ptrdiff_t(i) * cols, cols, spread.begin() + std::ptrdiff_t(i) * stride);
    return spread;
}

struct Product {
    std::vector<double> value, size; // [n, rows]: W x and sum |w x|
};

Product multiply(const std::vector<double>& weight, int rows, int cols, const std::vector<double>& x, int n) {
    Product product;
    for (int i = 0; i < n; ++i)
        for (int r = 0; r < rows; ++r) {
            const double *w = weight.data() + std::ptrdiff_t(r) * cols, *in = x.data() + std::ptrdiff_t(i) * cols;
            double value = 0, size = 0;
            for (int c = 0; c < cols; ++c) {
                value += w[c] * in[c];
                size += std::abs(w[c] * in[c]);
            }
            product.value.push_back(value);
            product.size.push_back(size);
        }
    return product;
}

std::vector<double> rmsNormed(const std::vector<float>& x, int n, int cols, const std::vector<float>& weight,
                              float eps) {
    std::vector<double> normed;
    for (int i = 0; i < n; ++i) {
        const float* row = x.data() + std::ptrdiff_t(i) * cols;
        double squares = 0;
        for (int c = 0; c < cols; ++c) squares += double(row[c]) * double(row[c]);
        const double scale = 1. / std::sqrt(squares / cols + double(eps));
        for (int c = 0; c < cols; ++c) normed.push_back(double(row[c]) * scale * double(weight[std::size_t(c)]));
    }
    return normed;
}

std::vector<double> widened(const std::vector<float>& x) { return {x.begin(), x.end()}; }

TEST(Linear, IsExactForSmallIntegersForEveryShapeTypeBatchAndThreadCount) {
    for (const DType type : kTypes)
        for (const auto [rows, cols] : kShapes) {
            std::mt19937 random(unsigned(rows * 31 + cols));
            const Weights weights(smallIntegers(random, std::size_t(rows * cols)), type, rows, cols, 1);
            const std::vector<float> x = smallIntegers(random, std::size_t(kMostInputs * cols));
            const int xStride = cols + 3, yStride = rows + 2;
            const std::vector<float> input = spreadRows(x, kMostInputs, cols, xStride);
            const Product expected = multiply(weights.values, rows, cols, widened(x), kMostInputs);
            onEveryInstructionSet([&] {
                for (const int threads : {1, 2, 3}) {
                    const auto kernels = makeCpuKernels(threads);
                    for (const int n : kBatches) {
                        std::vector<float> y(std::size_t(n * yStride), kSentinel);
                        const LinearTarget target{weights.matrix(), nullptr, y.data(), yStride, false};
                        LinearArgs args;
                        args.x = input.data();
                        args.n = n;
                        args.xStride = xStride;
                        args.targets = {&target, 1};
                        kernels->linear(args);
                        for (int i = 0; i < n; ++i)
                            for (int r = 0; r < yStride; ++r)
                                ASSERT_EQ(double(y[std::size_t(i * yStride + r)]),
                                          r < rows ? expected.value[std::size_t(i * rows + r)] : double(kSentinel))
                                    << nameOf(type) << " " << rows << "x" << cols << ", " << n << " inputs, " << threads
                                    << " threads, input " << i << " row " << r;
                    }
                }
            });
        }
}

TEST(Linear, AppliesNormBiasAndAccumulateWithinRoundingForSeveralTargets) {
    constexpr float kEps = 1e-5f;
    for (const auto [rows, cols] : kShapes) {
        std::mt19937 random(unsigned(rows * 7 + cols));
        const auto count = std::size_t(cols);
        // Three targets of different types, alignments, widths and modes share one input; one of them has no rows.
        const int moreRows = 19;
        const Weights first(randomFloats(random, std::size_t(rows) * count, 0.3f), DType::BF16, rows, cols, 2);
        const Weights second(randomFloats(random, moreRows * count, 1e-5f), DType::F16, moreRows, cols, 3); // subnormal
        const Weights third(randomFloats(random, std::size_t(rows) * count, 2.f), DType::F32, rows, cols, 1);
        const std::vector<float> x = randomFloats(random, kMostInputs * count), norm = randomFloats(random, count),
                                 bias = randomFloats(random, std::size_t(rows)),
                                 moreBias = randomFloats(random, moreRows), start = randomFloats(random, 1 << 15);
        for (const bool normed : {false, true}) {
            const std::vector<double> in = normed ? rmsNormed(x, kMostInputs, cols, norm, kEps) : widened(x);
            const Product products[] = {multiply(first.values, rows, cols, in, kMostInputs),
                                        multiply(second.values, moreRows, cols, in, kMostInputs),
                                        multiply(third.values, rows, cols, in, kMostInputs)};
            const double unit = kRounding * (normed ? 1.5 * cols + 16 : cols + 8);
            onEveryInstructionSet([&] {
                for (const int threads : {1, 3}) {
                    const auto kernels = makeCpuKernels(threads);
                    for (const int n : kBatches) {
                        std::vector<float> y[3];
                        for (auto& values : y) values.assign(start.begin(), start.begin() + n * (rows + moreRows + 4));
                        const LinearTarget targets[] = {
                            {first.matrix(), bias.data(), y[0].data(), rows, true},
                            {WeightMatrix{nullptr, DType::F32, 0, cols}, nullptr, nullptr, 0, false},
                            {second.matrix(), moreBias.data(), y[1].data(), moreRows + 4, false},
                            {third.matrix(), nullptr, y[2].data(), rows, true}};
                        kernels->linear(LinearArgs{x.data(), n, cols, normed ? norm.data() : nullptr, kEps, targets});
                        for (int which = 0; which < 3; ++which) {
                            const int width = which == 1 ? moreRows : rows, stride = which == 1 ? moreRows + 4 : rows;
                            const float* added = which == 0 ? bias.data() : which == 1 ? moreBias.data() : nullptr;
                            for (int i = 0; i < n; ++i)
                                for (int r = 0; r < width; ++r) {
                                    const auto at = std::size_t(i * width + r), out = std::size_t(i * stride + r);
                                    const double before = which == 1 ? 0. : double(start[out]),
                                                 constant = added ? double(added[r]) : 0.;
                                    const Product& product = products[which];
                                    ASSERT_NEAR(double(y[which][out]), product.value[at] + constant + before,
                                                unit * (product.size[at] + std::abs(constant) + std::abs(before)))
                                        << rows << "x" << cols << ", " << n << " inputs, " << threads
                                        << " threads, target " << which << ", norm " << normed << ", row " << r;
                                }
                        }
                    }
                }
            });
        }
    }
}

TEST(Linear, RepeatsBitForBitAndLeavesItsInputAlone) {
    std::mt19937 random(5);
    constexpr int kRows = 210, kCols = 300;
    const Weights weights(randomFloats(random, kRows * kCols), DType::F32, kRows, kCols, 0);
    const std::vector<float> x = randomFloats(random, kMostInputs * kCols), norm = randomFloats(random, kCols);
    const auto kernels = makeCpuKernels(3);
    for (const int n : kBatches) {
        std::vector<float> input = x, first;
        for (int round = 0; round < 20; ++round) {
            std::vector<float> y(std::size_t(n * kRows));
            const LinearTarget target{weights.matrix(), nullptr, y.data(), kRows, false};
            kernels->linear(LinearArgs{input.data(), n, kCols, norm.data(), 1e-6f, {&target, 1}});
            if (round == 0) first = y;
            ASSERT_EQ(y, first);
        }
        ASSERT_EQ(input, x);
    }
}

TEST(Linear, RejectsTargetsOfDifferentWidthsAndIgnoresEmptyWork) {
    const auto kernels = makeCpuKernels(2);
    const std::vector<float> data(64, 1.f);
    std::vector<float> y(64, kSentinel);
    const LinearTarget mixed[] = {{{data.data(), DType::F32, 2, 8}, nullptr, y.data(), 2, false},
                                  {{data.data(), DType::F32, 2, 9}, nullptr, y.data(), 2, false}};
    EXPECT_THROW(kernels->linear(LinearArgs{data.data(), 1, 8, nullptr, 0.f, mixed}), Error);
    kernels->linear(LinearArgs{data.data(), 0, 8, nullptr, 0.f, {mixed, 1}});
    kernels->linear(LinearArgs{data.data(), 1, 8, nullptr, 0.f, {}});
    const LinearTarget noRows{{data.data(), DType::BF16, 0, 8}, nullptr, y.data(), 1, false};
    for (const int n : {1, 9}) kernels->linear(LinearArgs{data.data(), n, 0, nullptr, 0.f, {&noRows, 1}});
    EXPECT_THAT(y, ::testing::Each(kSentinel));
}

TEST(Linear, GivesTheBiasAloneForWeightsWithoutColumns) {
    const auto kernels = makeCpuKernels(2);
    const float bias[] = {1.f, -2.f, 3.f};
    for (const int n : {1, 9, 50})
        for (const bool accumulate : {false, true}) {
            std::vector<float> y(std::size_t(n * 3), 10.f);
            const LinearTarget target{{nullptr, DType::BF16, 3, 0}, bias, y.data(), 3, accumulate};
            kernels->linear(LinearArgs{nullptr, n, 0, nullptr, 0.f, {&target, 1}});
            for (int at = 0; at < n * 3; ++at)
                ASSERT_EQ(y[std::size_t(at)], bias[at % 3] + (accumulate ? 10.f : 0.f)) << n << " inputs";
        }
}

TEST(Linear, SaysWhichNumberIsOutOfRange) {
    const auto kernels = makeCpuKernels(1);
    float value = 0;
    const auto message = [&](int n, int rows, int cols) {
        const LinearTarget target{{&value, DType::F32, rows, cols}, nullptr, &value, 1, false};
        try {
            kernels->linear(LinearArgs{&value, n, 1, nullptr, 0.f, {&target, 1}});
        } catch (const Error& error) {
            EXPECT_EQ(error.kind, ErrorKind::BadInput);
            return oneLine(error);
        }
        return std::string("no error");
    };
    EXPECT_THAT(message(-1, 1, 1), ::testing::HasSubstr("inputs cannot be -1"));
    EXPECT_THAT(message(1, -2, 1), ::testing::HasSubstr("outputs cannot be -2"));
    EXPECT_THAT(message(1, 1, -3), ::testing::HasSubstr("columns cannot be -3"));
    EXPECT_EQ(message(1, 1, 1), "no error");
    EXPECT_THROW(
        kernels->gatedLinear({&value, 1, &value, 0.f, {&value, DType::F32, 1, 1}, {&value, DType::F32, 1, 0}, &value}),
        Error);
}

TEST(Linear, TakesEveryBitPatternOfHalfForWhatItIs) {
    constexpr int kRows = 65536, kCols = 32; // the pattern in one column, zeros in the others
    std::vector<std::uint16_t> weights(std::size_t(kRows) * kCols);
    for (int row = 0; row < kRows; ++row) weights[std::size_t(row * kCols + row % kCols)] = std::uint16_t(row);
    const std::vector<float> ones(kCols, 1.f);
    onEveryInstructionSet([&] {
        std::vector<float> out(kRows);
        const LinearTarget target{{weights.data(), DType::F16, kRows, kCols}, nullptr, out.data(), kRows, false};
        makeCpuKernels(2)->linear({ones.data(), 1, kCols, nullptr, 0.f, {&target, 1}});
        for (int raw = 0; raw < kRows; ++raw) {
            const double expected = decode(std::uint16_t(raw), 10);
            if (std::isnan(expected)) {
                ASSERT_TRUE(std::isnan(out[std::size_t(raw)])) << raw;
            } else {
                ASSERT_EQ(double(out[std::size_t(raw)]), expected) << raw;
            }
        }
    });
}

TEST(GatedLinear, ComputesSwiGluWithinRounding) {
    constexpr float kEps = 1e-5f;
    for (const DType type : kTypes)
        for (const auto [rows, cols] : {Shape{1, 1}, Shape{7, 5}, Shape{33, 17}, Shape{100, 384}, Shape{70, 2100}}) {
            std::mt19937 random(unsigned(rows * 13 + cols));
            const float scale = 2.f / std::sqrt(float(cols));
            const auto count = std::size_t(rows * cols);
            const Weights gate(randomFloats(random, count, scale), type, rows, cols, 1),
                up(randomFloats(random, count, scale), type, rows, cols, 3);
            const std::vector<float> x = randomFloats(random, std::size_t(kMostInputs * cols)),
                                     norm = randomFloats(random, std::size_t(cols));
            const std::vector<double> in = rmsNormed(x, kMostInputs, cols, norm, kEps);
            const Product g = multiply(gate.values, rows, cols, in, kMostInputs),
                          u = multiply(up.values, rows, cols, in, kMostInputs);
            const double unit = kRounding * (1.5 * cols + 16);
            onEveryInstructionSet([&] {
                for (const int threads : {1, 3}) {
                    const auto kernels = makeCpuKernels(threads);
                    for (const int n : kBatches) {
                        std::vector<float> out(std::size_t(n * rows) + 1, kSentinel);
                        kernels->gatedLinear({x.data(), n, norm.data(), kEps, gate.matrix(), up.matrix(), out.data()});
                        ASSERT_EQ(out.back(), kSentinel);
                        for (std::size_t at = 0; at < std::size_t(n * rows); ++at) {
                            const double silu = g.value[at] / (1 + std::exp(-g.value[at]));
                            // |silu'| < 1.1; exp, division and product add a few roundings of the result.
                            const double tolerance = 1.1 * unit * g.size[at] * std::abs(u.value[at]) +
                                                     std::abs(silu) * unit * u.size[at] + unit * unit +
                                                     16 * kRounding * std::abs(silu * u.value[at]);
                            ASSERT_NEAR(double(out[at]), silu * u.value[at], tolerance)
                                << nameOf(type) << " " << rows << "x" << cols << ", " << n << " inputs, " << threads
                                << " threads, output " << at;
                        }
                    }
                }
            });
        }
}

TEST(GatedLinear, StaysFiniteAndRightForGatesOfAnySize) {
    // Gates come straight from the weights: one column, input 1 after the norm.
    std::vector<float> gates{0.f, -0.f, 1e-30f, -87.f, -88.5f, -89.f, -103.f, -105.f, -126.f, -176.f, -177.f, -200.f};
    for (const float g : {300.f, 1e4f, 1e20f, 3e38f}) gates.insert(gates.end(), {g, -g});
    for (int i = 0; i < 45; ++i) gates.push_back(float(i) * -9.25f);
    const int rows = int(gates.size());
    const std::vector<float> ones(std::size_t(rows), 1.f), x(kMostInputs, 1.f);
    onEveryInstructionSet([&] {
        const auto kernels = makeCpuKernels(1);
        for (const int n : {1, 3, 20}) {
            std::vector<float> out(std::size_t(n * rows), kSentinel);
            kernels->gatedLinear({x.data(),
                                  n,
                                  ones.data(),
                                  0.f,
                                  {gates.data(), DType::F32, rows, 1},
                                  {ones.data(), DType::F32, rows, 1},
                                  out.data()});
            for (int at = 0; at < n * rows; ++at) {
                const double g = double(gates[std::size_t(at % rows)]), expected = g / (1 + std::exp(-g));
                // Below the smallest normal float a result may be rounded to zero.
                ASSERT_NEAR(double(out[std::size_t(at)]), expected, 16 * kRounding * std::abs(expected) + 0x1p-120)
                    << "gate " << g;
            }
        }
    });
}

/// Gates and partners come straight from the weights, of both signs and beyond the limit.
TEST(GatedLinear, BoundsGatesAndPartnersWhereALimitIsGiven) {
    std::vector<float> gates, ups;
    for (const float g : {0.f, 1e-30f, 0.3f, -0.3f, 2.f, -2.f, 2.5f, 7.f, -7.f, 90.f, -90.f, 1e20f, -1e20f})
        for (const float u : {0.f, 1.f, -1.f, 2.4f, -2.4f, 2.6f, -2.6f, 3e30f, -3e30f}) {
            gates.push_back(g);
            ups.push_back(u);
        }
    const int rows = int(gates.size());
    const std::vector<float> one(1, 1.f), x(kMostInputs, 1.f);
    onEveryInstructionSet([&] {
        const auto kernels = makeCpuKernels(2);
        for (const auto& [slope, limit] : {std::pair{1.702f, 2.5f}, {1.f, 7.f}})
            for (const int n : {1, 3, 20}) {
                std::vector<float> out(std::size_t(n * rows), kSentinel);
                GatedArgs args{x.data(),
                               n,
                               one.data(),
                               0.f,
                               {gates.data(), DType::F32, rows, 1},
                               {ups.data(), DType::F32, rows, 1},
                               out.data()};
                args.slope = slope;
                args.limit = limit;
                kernels->gatedLinear(args);
                for (int at = 0; at < n * rows; ++at) {
                    const auto i = std::size_t(at % rows);
                    const double g = std::min(double(gates[i]), double(limit)),
                                 u = std::clamp(double(ups[i]), -double(limit), double(limit)),
                                 part = g / (1 + std::exp(-double(slope) * g)), expected = part * (u + 1);
                    // u + 1 may cancel, and slope * g is rounded before exp.
                    const double tolerance =
                        16 * kRounding * std::abs(part) * (std::abs(u) + 1) * (1 + std::abs(double(slope) * g)) +
                        0x1p-120;
                    ASSERT_NEAR(double(out[std::size_t(at)]), expected, tolerance) << gates[i] << " and " << ups[i];
                }
            }
    });
}

TEST(GatedLinear, RejectsMatricesOfDifferentShapes) {
    const auto kernels = makeCpuKernels(1);
    const std::vector<float> data(64, 1.f);
    std::vector<float> out(64);
    const WeightMatrix matrix{data.data(), DType::F32, 4, 8}, lower{data.data(), DType::F32, 3, 8},
        narrower{data.data(), DType::F32, 4, 7};
    EXPECT_THROW(kernels->gatedLinear({data.data(), 1, data.data(), 0.f, matrix, lower, out.data()}), Error);
    EXPECT_THROW(kernels->gatedLinear({data.data(), 1, data.data(), 0.f, matrix, narrower, out.data()}), Error);
}

TEST(Embed, WidensEveryBitPatternExactly) {
    constexpr int kCols = 256, kVocabulary = 256;
    std::vector<std::uint16_t> table(kCols * kVocabulary);
    std::iota(table.begin(), table.end(), std::uint16_t(0));
    std::vector<std::int32_t> ids(kVocabulary);
    std::iota(ids.rbegin(), ids.rend(), 0);
    for (const DType type : {DType::F16, DType::BF16}) {
        std::vector<float> out(table.size());
        makeCpuKernels(3)->embed({table.data(), type, kVocabulary, kCols}, ids, out.data());
        for (int i = 0; i < kVocabulary; ++i)
            for (int c = 0; c < kCols; ++c) {
                const auto raw = std::uint16_t((kVocabulary - 1 - i) * kCols + c);
                const double expected = decode(raw, type == DType::F16 ? 10 : 7),
                             got = double(out[std::size_t(i * kCols + c)]);
                ASSERT_TRUE(std::isnan(expected) ? std::isnan(got) : got == expected) << nameOf(type) << " " << raw;
                ASSERT_TRUE(std::isnan(expected) || std::signbit(got) == std::signbit(expected)) << raw;
            }
    }
}

TEST(Embed, CopiesTheRowsOfTheIdsInOrder) {
    std::mt19937 random(3);
    constexpr int kVocabulary = 50;
    for (const DType type : kTypes)
        for (const int cols : {1, 7, 64, 385})
            for (const int n : {0, 1, 3, 63, 64, 65, 500}) {
                const Weights table(randomFloats(random, std::size_t(kVocabulary * cols)), type, kVocabulary, cols, 1);
                std::vector<std::int32_t> ids(static_cast<std::size_t>(n));
                for (auto& id : ids) id = std::int32_t(random() % kVocabulary);
                std::vector<float> out(std::size_t(n * cols) + 1, kSentinel);
                makeCpuKernels(2)->embed(table.matrix(), ids, out.data());
                for (std::size_t at = 0; at < std::size_t(n * cols); ++at) {
                    const auto i = at / std::size_t(cols), c = at % std::size_t(cols);
                    ASSERT_EQ(double(out[at]), table.values[std::size_t(ids[i]) * std::size_t(cols) + c]);
                }
                ASSERT_EQ(out.back(), kSentinel);
            }
}

TEST(Embed, WidensEveryBitPatternOfBothSixteenBitTypesExactly) {
    std::vector<std::uint16_t> patterns(65536);
    std::iota(patterns.begin(), patterns.end(), std::uint16_t(0));
    for (const DType type : {DType::F16, DType::BF16}) {
        const int mantissaBits = type == DType::F16 ? 10 : 7;
        for (const int cols : {1, 65536}) { // one by one, and whole vectors
            std::vector<std::int32_t> ids(std::size_t(65536 / cols));
            std::iota(ids.begin(), ids.end(), 0);
            onEveryInstructionSet([&] {
                std::vector<float> out(65536);
                makeCpuKernels(2)->embed({patterns.data(), type, int(ids.size()), cols}, ids, out.data());
                for (const std::uint16_t raw : patterns) {
                    const double expected = decode(raw, mantissaBits);
                    if (std::isnan(expected)) {
                        ASSERT_TRUE(std::isnan(out[raw])) << nameOf(type) << " pattern " << raw;
                    } else {
                        ASSERT_EQ(double(out[raw]), expected) << nameOf(type) << " pattern " << raw;
                        ASSERT_EQ(std::signbit(out[raw]), std::signbit(expected)) << nameOf(type) << " " << raw;
                    }
                }
            });
        }
    }
}

TEST(Rope, RotatesTheTwoHalvesOfEveryHeadByItsPosition) {
    std::mt19937 random(9);
    constexpr int kPositions = 300;
    for (const int dim : {2, 16, 64, 98, 128})
        for (const int heads : {1, 3})
            for (const int n : {0, 1, 5, 16, 17, 70}) {
                const int half = dim / 2, stride = heads * dim + 6;
                std::vector<float> cos, sin;
                for (int position = 0; position < kPositions; ++position)
                    for (int i = 0; i < half; ++i) {
                        const double angle = position * std::pow(10000., -double(i) / half);
                        cos.push_back(float(std::cos(angle)));
                        sin.push_back(float(std::sin(angle)));
                    }
                std::vector<std::int32_t> positions;
                for (int i = 0; i < n; ++i) positions.push_back(std::int32_t(random() % kPositions));
                const std::vector<float> before = randomFloats(random, std::size_t(n * stride));
                for (const int threads : {1, 3}) {
                    std::vector<float> x = before;
                    makeCpuKernels(threads)->rope(
                        {x.data(), n, heads, dim, stride, positions.data(), cos.data(), sin.data()});
                    for (int at = 0; at < n * stride; ++at) {
                        const int row = at / stride, column = at % stride;
                        if (column >= heads * dim) {
                            ASSERT_EQ(x[std::size_t(at)], before[std::size_t(at)]) << "between two rows";
                            continue;
                        }
                        const int c = column % dim, i = c % half;
                        const auto turn = std::size_t(positions[std::size_t(row)] * half + i);
                        const double co = double(cos[turn]), si = double(sin[turn]);
                        const double self = double(before[std::size_t(at)]),
                                     other = double(before[std::size_t(c < half ? at + half : at - half)]);
                        // Two products and one sum: three roundings.
                        ASSERT_NEAR(double(x[std::size_t(at)]), self * co + (c < half ? -other : other) * si,
                                    3 * kRounding * (std::abs(self * co) + std::abs(other * si)))
                            << "dim " << dim << " row " << row << " column " << column;
                    }
                }
            }
}

TEST(Rope, RejectsAnOddDimension) {
    std::vector<float> x(9), table(9);
    const std::int32_t position = 0;
    EXPECT_THROW(makeCpuKernels(1)->rope({x.data(), 1, 1, 9, 9, &position, table.data(), table.data()}), Error);
}

TEST(EvictionScore, IsGainTimesSoftplusOfADotProductOverAllHeads) {
    std::mt19937 random(17);
    for (const auto& [kvHeads, dim] : {std::pair{1, 16}, std::pair{2, 64}, std::pair{3, 5}, std::pair{8, 128}})
        for (const int n : {0, 1, 15, 40}) {
            const int width = kvHeads * dim, stride = width + 3;
            const std::vector<float> values = randomFloats(random, std::size_t(n * stride), 3.f),
                                     delta = randomFloats(random, std::size_t(kvHeads * width)),
                                     gain = randomFloats(random, std::size_t(kvHeads));
            for (const int threads : {1, 3}) {
                std::vector<float> scores(std::size_t(n * kvHeads) + 1, kSentinel);
                makeCpuKernels(threads)->evictionScore(
                    {values.data(), n, kvHeads, dim, stride, delta.data(), gain.data(), scores.data()});
                ASSERT_EQ(scores.back(), kSentinel);
                for (int at = 0; at < n * kvHeads; ++at) {
                    const int row = at / kvHeads, g = at % kvHeads;
                    double x = 0, size = 0;
                    for (int c = 0; c < width; ++c) {
                        const double term =
                            double(delta[std::size_t(g * width + c)]) * double(values[std::size_t(row * stride + c)]);
                        x += term;
                        size += std::abs(term);
                    }
                    const double soft = std::max(x, 0.) + std::log1p(std::exp(-std::abs(x))),
                                 factor = double(gain[std::size_t(g)]);
                    // softplus has a slope of at most 1, so the error of x passes through undiminished at worst.
                    ASSERT_NEAR(double(scores[std::size_t(at)]), factor * soft,
                                std::abs(factor) * kRounding * ((width + 8) * size + 8 * soft))
                        << kvHeads << " heads of " << dim << ", row " << row << " head " << g;
                }
            }
        }
}

TEST(EvictionScore, NeitherOverflowsNorLosesTinyScores) {
    const std::vector<float> values{1e4f, -1e4f, -30.f, 0.f, 88.f, 100.f};
    const float delta = 1.f, gain = 2.f;
    std::vector<float> scores(values.size());
    makeCpuKernels(1)->evictionScore({values.data(), int(values.size()), 1, 1, 1, &delta, &gain, scores.data()});
    EXPECT_FLOAT_EQ(scores[0], 2e4f);
    EXPECT_EQ(scores[1], 0.f);
    EXPECT_FLOAT_EQ(scores[2], 2.f * 9.357623e-14f);
    EXPECT_FLOAT_EQ(scores[3], 2.f * 0.6931472f);
    EXPECT_FLOAT_EQ(scores[4], 176.f);
    EXPECT_FLOAT_EQ(scores[5], 200.f);
}

TEST(Copy, MovesEveryItemWhole) {
    std::mt19937 random(29);
    std::vector<unsigned char> from(5000), to(5000, 0);
    for (auto& byte : from) byte = std::uint8_t(random());
    std::vector<CopyItem> items;
    for (std::size_t at = 0; at < from.size();) { // odd sizes, some of them 0
        const std::size_t bytes = std::min<std::size_t>(random() % 90, from.size() - at);
        items.push_back({from.data() + at, to.data() + at, bytes});
        at += bytes;
    }
    const auto kernels = makeCpuKernels(3);
    kernels->copy(items);
    EXPECT_EQ(to, from);
    kernels->copy({});
}

TEST(Copy, MovesAFewLongItemsWhole) {
    std::mt19937 random(31);
    std::vector<unsigned char> from((3 << 20) + 77), to(from.size(), 0);
    for (auto& byte : from) byte = std::uint8_t(random());
    for (const int threads : {1, 2, 5}) {
        std::fill(to.begin(), to.end(), std::uint8_t(0));
        const CopyItem items[] = {{from.data(), to.data(), 1 << 20},
                                  {nullptr, nullptr, 0},
                                  {from.data() + (1 << 20), to.data() + (1 << 20), from.size() - (1 << 20) - 5}};
        makeCpuKernels(threads)->copy(items);
        EXPECT_TRUE(std::equal(from.begin(), from.end() - 5, to.begin())) << threads << " threads";
        EXPECT_TRUE(std::all_of(to.end() - 5, to.end(), [](unsigned char byte) { return byte == 0; }));
    }
}

TEST(Kernels, RunAHostLoopOverEveryIndexOnce) {
    for (const int threads : {1, 3}) {
        const auto kernels = makeCpuKernels(threads);
        for (const int n : {0, 1, 2, 77, 4000}) {
            std::vector<int> visits(std::size_t(n), 0);
            kernels->forEach(n, [&](int i) { ++visits[std::size_t(i)]; });
            EXPECT_THAT(visits, ::testing::Each(1));
        }
    }
}

TEST(Kernels, DescribeTheirInstructionSetAndThreads) {
    EXPECT_THAT(makeCpuKernels(1)->description(), ::testing::MatchesRegex("cpu: [A-Z0-9_]+, 1 thread"));
    EXPECT_THAT(makeCpuKernels(3)->description(), ::testing::EndsWith(", 3 threads"));
    std::vector<std::string> seen;
    onEveryInstructionSet([&] { seen.push_back(makeCpuKernels(1)->description()); });
    EXPECT_EQ(seen.size(), hwy::SupportedAndGeneratedTargets().size());
    for (std::size_t i = 1; i < seen.size(); ++i) EXPECT_NE(seen[i], seen[i - 1]) << "the tests switch between them";
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
