// The sanitized build finds a product that leaves its arrays, whether its loops or its exported functions are checked.
#include "kernels/cpu/simd.h"
#include "tests/kernels/kernel_fixture.h"

#include <gtest/gtest.h>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

#ifdef __SANITIZE_ADDRESS__

/// `count` floats in an allocation of their own, so that the byte behind them is poisoned.
std::unique_ptr<float[]> floats(int count) { return std::make_unique<float[]>(std::size_t(count)); }

constexpr const char* kOverflow = "heap-buffer-overflow";

class ExtentCheckDeathTest : public ::testing::Test {
protected:
    static constexpr int kInputs = 3, kDepth = 20;
    const int outputs_ = cpu::panelRows();

    void multiply(int inputs, int panel, int results) const {
        const auto x = floats(inputs), packed = floats(panel), y = floats(results);
        cpu::panelMultiply(x.get(), kDepth, kInputs, packed.get(), kDepth, y.get(), outputs_, outputs_, false);
    }
};

TEST_F(ExtentCheckDeathTest, PanelMultiplyStaysInsideItsArrays) {
    const int inputs = kInputs * kDepth, panel = kDepth * outputs_, results = kInputs * outputs_;
    multiply(inputs, panel, results);
    EXPECT_DEATH(multiply(inputs - 1, panel, results), kOverflow);
    EXPECT_DEATH(multiply(inputs, panel - 1, results), kOverflow);
    EXPECT_DEATH(multiply(inputs, panel, results - 1), kOverflow);
}

TEST_F(ExtentCheckDeathTest, SmallBatchStaysInsideItsArrays) {
    const auto multiply = [](int weights, int inputs, int results) {
        const auto w = floats(weights), x = floats(inputs), y = floats(results);
        const LinearTarget target{.weight = {w.get(), DType::F32, 5, kDepth}, .y = y.get(), .stride = 5};
        cpu::smallBatchRows(target, x.get(), 2, 1, 5);
    };
    const int inputs = int(cpu::arrangedStride(DType::F32, kDepth)) + kDepth;
    multiply(5 * kDepth, inputs, 10);
    EXPECT_DEATH(multiply(5 * kDepth - 1, inputs, 10), kOverflow);
    EXPECT_DEATH(multiply(5 * kDepth, inputs - 1, 10), kOverflow);
    EXPECT_DEATH(multiply(5 * kDepth, inputs, 9), kOverflow);
}

TEST_F(ExtentCheckDeathTest, PackPanelStaysInsideItsArrays) {
    const auto pack = [this](int weights, int panel) {
        const auto w = floats(weights), packed = floats(panel);
        cpu::packPanel({w.get(), DType::F32, 2, kDepth}, 0, 0, kDepth, packed.get());
    };
    pack(2 * kDepth, kDepth * outputs_);
    EXPECT_DEATH(pack(2 * kDepth - 1, kDepth * outputs_), kOverflow);
    EXPECT_DEATH(pack(2 * kDepth, kDepth * outputs_ - 1), kOverflow);
}

TEST_F(ExtentCheckDeathTest, ProductsOfAttentionStayInsideTheirArrays) {
    const auto multiply = [](int left, int right, int results) {
        const auto a = floats(left), b = floats(right), out = floats(results);
        cpu::multiplyRows(a.get(), 7, 4, b.get(), 33, 7, 33, out.get(),
                          40); // 4 x 7 x 33; rows of the result lie 40 apart
        cpu::addMultipliedRows(a.get(), 7, 4, b.get(), 33, 7, 33, out.get(), 40);
    };
    const int results = 3 * 40 + 33;
    multiply(4 * 7, 7 * 33, results);
    EXPECT_DEATH(multiply(4 * 7 - 1, 7 * 33, results), kOverflow);
    EXPECT_DEATH(multiply(4 * 7, 7 * 33 - 1, results), kOverflow);
    EXPECT_DEATH(multiply(4 * 7, 7 * 33, results - 1), kOverflow);
}

TEST_F(ExtentCheckDeathTest, RowsStayInsideTheirArrays) {
    const auto row = floats(kDepth), shorter = floats(kDepth - 1), out = floats(kDepth);
    EXPECT_DEATH(cpu::siluMultiply(row.get(), shorter.get(), kDepth, out.get()), kOverflow);
    EXPECT_DEATH(cpu::rmsNormRow(row.get(), row.get(), 1e-6F, kDepth, shorter.get()), kOverflow);
    EXPECT_DEATH(cpu::widenRow(DType::F32, shorter.get(), kDepth, out.get()), kOverflow);
    EXPECT_DEATH(cpu::arrangeInput(DType::F32, shorter.get(), kDepth, out.get()), kOverflow);
}

#else

TEST(ExtentCheckDeathTest, NeedsAddressSanitizer) { GTEST_SKIP() << "this build has no AddressSanitizer"; }

#endif

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
