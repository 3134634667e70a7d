// Orthonormal rows: lengths and angles, spans, and rows that others span.
#include "tests/kernels/cuda/device.h"

#include "kernels/cuda/methods/orthonormal.h"

#include <tuple>

namespace kvscope::cuda {
namespace KVSCOPE_TEST_FILE {

using namespace test;

class CudaOrthonormal : public CudaTest {
protected:
    std::vector<float> orthonormal(const std::vector<float>& rows, int count, Lost lost) {
        const OnDevice<float> x(rows);
        const OnDevice<double> products(std::size_t(count * count));
        orthonormalRows(launch, x.get(), count, int(rows.size()) / count, products.get(), lost);
        check(cudaStreamSynchronize(launch.stream), "testing");
        return x.read();
    }
    static double product(const float* a, const float* b, int width) {
        double sum = 0;
        for (int c = 0; c < width; ++c) sum += double(a[c]) * double(b[c]);
        return sum;
    }
};

TEST_F(CudaOrthonormal, SpansWhatTheFirstRowsSpan) {
    // The last is beyond what shared memory holds.
    for (const auto& [count, width] :
         {std::tuple{1, 7}, std::tuple{20, 256}, std::tuple{64, 70}, std::tuple{160, 1024}, std::tuple{260, 300}}) {
        SCOPED_TRACE(::testing::Message() << count << " rows of " << width);
        auto rows = floats(std::size_t(count * width), 1);
        for (int i = 0; i < count; ++i) // of very different lengths
            for (int c = 0; c < width; ++c) rows[std::size_t(i * width + c)] *= std::exp(-float(i % 10));
        const auto got = orthonormal(rows, count, Lost::Zero);
        const auto row = [width = width](const std::vector<float>& all, int i) { return &all[std::size_t(i * width)]; };
        for (int i = 0; i < count; ++i) {
            // Elements are rounded to float32: 2^-24 each of what they are.
            for (int j = 0; j <= i; ++j)
                ASSERT_NEAR(product(row(got, i), row(got, j), width), i == j ? 1 : 0, 1e-6) << i << ", " << j;
            // Row i is made of the first i + 1 results, with a positive share of the last.
            double found = 0, last = 0;
            for (int j = 0; j <= i; ++j) {
                const double along = product(row(rows, i), row(got, j), width);
                found += along * along;
                last = along;
            }
            EXPECT_GT(last, 0) << "row " << i;
            const double all = product(row(rows, i), row(rows, i), width);
            EXPECT_NEAR(found / all, 1, 1e-5) << "row " << i;
        }
    }
}

TEST_F(CudaOrthonormal, RowsThatOthersSpanBecomeZeroOrNew) {
    constexpr int kCount = 6, kWidth = 40;
    auto rows = floats(std::size_t(kCount * kWidth), 1);
    for (int c = 0; c < kWidth; ++c) { // exact in float32: nothing is left but rounding
        rows[std::size_t(2 * kWidth + c)] = rows[std::size_t(c)] * 2;
        rows[std::size_t(4 * kWidth + c)] = 0;
    }
    const auto zero = orthonormal(rows, kCount, Lost::Zero), redrawn = orthonormal(rows, kCount, Lost::Redrawn);
    for (int i = 0; i < kCount; ++i) {
        const bool lost = i == 2 || i == 4;
        const float* mine = &zero[std::size_t(i * kWidth)];
        EXPECT_NEAR(product(mine, mine, kWidth), lost ? 0 : 1, 1e-6) << "row " << i;
        const float* again = &redrawn[std::size_t(i * kWidth)];
        if (lost) {
            EXPECT_GT(product(again, again, kWidth), 0.1) << "row " << i;
        } else {
            EXPECT_TRUE(std::equal(mine, mine + kWidth, again)) << "row " << i;
        }
    }
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::cuda
