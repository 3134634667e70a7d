// Kernels::inputsAlone: an input's products have the bits that it has as the only one, whoever is multiplied with it.
#include "tests/kernels/quantised_fixture.h"

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using namespace kvscope::test;

constexpr int kMost = 19;

/// Products of all inputs in one call and one by one; n goes from few inputs to more than are multiplied in tiles.
void expectSameBits(const WeightMatrix& weight, const std::vector<float>& x, const std::vector<float>& norm) {
    const int rows = weight.rows, cols = weight.cols;
    for (const int threads : {1, 3}) {
        const auto kernels = makeCpuKernels(threads);
        const auto times = [&](int first, int n) {
            std::vector<float> y(std::size_t(n * rows), 1.f), gated(y.size()), heads(y.size());
            const LinearTarget target{weight, nullptr, y.data(), rows, true};
            const float* from = x.data() + std::ptrdiff_t(first) * cols;
            kernels->linear({from, n, cols, norm.data(), 1e-5f, {&target, 1}});
            kernels->gatedLinear({from, n, norm.data(), 1e-5f, weight, weight, gated.data(), nullptr, nullptr});
            kernels->headLinear({n, 1, from, cols, cols, weight, 0, heads.data(), rows, rows});
            y.insert(y.end(), gated.begin(), gated.end());
            y.insert(y.end(), heads.begin(), heads.end());
            return y;
        };
        std::vector<std::vector<float>> alone;
        for (int i = 0; i < kMost; ++i) alone.push_back(times(i, 1));
        kernels->inputsAlone(true);
        for (const int n : {1, 2, 3, 4, 7, 8, 9, kMost}) {
            const std::vector<float> together = times(0, n);
            for (int i = 0; i < n; ++i)
                for (int part = 0; part < 3; ++part)
                    ASSERT_EQ(std::memcmp(together.data() + std::ptrdiff_t(part * n + i) * rows,
                                          alone[std::size_t(i)].data() + std::ptrdiff_t(part) * rows,
                                          std::size_t(rows) * sizeof(float)),
                              0)
                        << nameOf(weight.type) << " " << rows << "x" << cols << ", " << n << " inputs, " << threads
                        << " threads, input " << i << ", product " << part;
        }
    }
}

TEST(InputsAlone, HaveTheirBitsWithWeightsOfEveryType) {
    for (const auto& [rows, cols] : {std::pair{7, 5}, {33, 17}, {100, 384}, {70, 2112}}) {
        std::mt19937 random(unsigned(rows * 31 + cols));
        const std::vector<float> x = randomFloats(random, std::size_t(kMost * cols)),
                                 norm = randomFloats(random, std::size_t(cols));
        onEveryInstructionSet([&, rows = rows, cols = cols] {
            for (const DType type : {DType::F32, DType::F16, DType::BF16})
                expectSameBits(Weights(randomFloats(random, std::size_t(rows * cols)), type, rows, cols, 2).matrix(), x,
                               norm);
        });
    }
}

TEST(InputsAlone, HaveTheirBitsWithQuantisedWeights) {
    for (const auto& [rows, cols] : {std::pair{19, 256}, {70, 768}}) {
        std::mt19937 random(unsigned(rows * 31 + cols));
        const std::vector<float> x = randomFloats(random, std::size_t(kMost * cols)),
                                 norm = randomFloats(random, std::size_t(cols));
        onEveryInstructionSet([&, rows = rows, cols = cols] {
            for (const DType type : kQuantised)
                expectSameBits(QuantisedWeights(random, type, rows, cols, 0).matrix(), x, norm);
        });
    }
}

/// Otherwise the test above would compare one way with itself.
TEST(InputsAlone, IsNotWhatHappensAnyway) {
    std::mt19937 random(5);
    constexpr int kRows = 64, kCols = 1024;
    const Weights weights(randomFloats(random, kRows * kCols), DType::BF16, kRows, kCols, 0);
    const std::vector<float> x = randomFloats(random, 2 * kCols);
    const auto kernels = makeCpuKernels(1);
    std::vector<float> alone(kRows), together(2 * kRows);
    const LinearTarget one{weights.matrix(), nullptr, alone.data(), kRows, false},
        two{weights.matrix(), nullptr, together.data(), kRows, false};
    kernels->linear({x.data(), 1, kCols, nullptr, 0.f, {&one, 1}});
    kernels->linear({x.data(), 2, kCols, nullptr, 0.f, {&two, 1}});
    EXPECT_NE(std::memcmp(alone.data(), together.data(), kRows * sizeof(float)), 0);
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
