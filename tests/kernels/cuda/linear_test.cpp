// CUDA linear layers against float64, over all three paths and both sides of their borders.
#include "tests/kernels/cuda/device.h"

#include "kernels/cuda/linear/linear.h"
#include "kernels/cuda/linear/linear_few.h"

#include <utility>

namespace kvscope::cuda {
namespace KVSCOPE_TEST_FILE {

using namespace test;

class CudaLinear : public CudaTest, public ::testing::WithParamInterface<int> {
protected:
    static std::vector<double> product(const std::vector<Half>& w, const std::vector<double>& x, int rows, int cols,
                                       int n) {
        const auto inputs = std::size_t(n), height = std::size_t(rows), width = std::size_t(cols);
        std::vector<double> columns(x.size()), sums(inputs), y(inputs * height);
        for (std::size_t i = 0; i < inputs; ++i)
            for (std::size_t c = 0; c < width; ++c) columns[c * inputs + i] = x[i * width + c];
        for (std::size_t r = 0; r < height; ++r) {
            std::fill(sums.begin(), sums.end(), 0.0);
            for (std::size_t c = 0; c < width; ++c) {
                const double weight = double(toFloat(w[r * width + c]));
                for (std::size_t i = 0; i < inputs; ++i) sums[i] += weight * columns[c * inputs + i];
            }
            for (std::size_t i = 0; i < inputs; ++i) y[i * height + r] = sums[i];
        }
        return y;
    }
    struct Gates;
};

struct Shape {
    int rows, cols;
};
constexpr Shape kShapes[] = {{16, 32}, {640, 384}, {72, 1024}, {1000, 2560}, {4608, 96}, {200, 5120}};

TEST_P(CudaLinear, MultipliesNormalisesAccumulatesAndAddsBiases) {
    const int n = GetParam();
    for (const bool library : {true, false})
        for (const auto [rows, cols] : kShapes) {
            SCOPED_TRACE(::testing::Message()
                         << n << " inputs, " << rows << " x " << cols << (library ? "" : ", own kernels"));
            Linear linear(launch, std::max(n, 1), cols, library);
            const auto w = halves(std::size_t(rows * cols), 0.05f);
            const auto x = floats(std::size_t(n * cols)), norm = floats(std::size_t(cols)),
                       bias = floats(std::size_t(rows)), before = floats(std::size_t(n * rows));
            std::vector<double> normed(x.size());
            for (int i = 0; i < n; ++i) {
                double squares = 0;
                for (int c = 0; c < cols; ++c)
                    squares += double(x[std::size_t(i * cols + c)]) * double(x[std::size_t(i * cols + c)]);
                for (int c = 0; c < cols; ++c)
                    normed[std::size_t(i * cols + c)] =
                        x[std::size_t(i * cols + c)] * norm[std::size_t(c)] / std::sqrt(squares / cols + 1e-5);
            }
            auto want = product(w, normed, rows, cols, n);
            for (int i = 0; i < n; ++i)
                for (int r = 0; r < rows; ++r)
                    want[std::size_t(i * rows + r)] += bias[std::size_t(r)] + before[std::size_t(i * rows + r)];
            const OnDevice<Half> dw(w);
            const OnDevice<float> dx(x), dn(norm), db(bias), dy(before);
            linear.run({dw.bf16(), rows, cols}, dx.get(), cols, n, {dn.get(), 1e-5f},
                       {dy.get(), rows, true, db.get(), nullptr});
            check(cudaStreamSynchronize(launch.stream), "testing");
            EXPECT_LT(relativeError(dy.read(), want), 4e-3); // inputs rounded to bf16: 2^-9 each

            // bf16 input, overwriting a poisoned output
            std::vector<Half> half(x.size());
            std::vector<double> exact(x.size());
            for (std::size_t i = 0; i < x.size(); ++i) half[i] = toBf16(x[i]), exact[i] = double(toFloat(half[i]));
            const OnDevice<Half> dh(half);
            const OnDevice<float> out(std::size_t(n * rows));
            linear.run({dw.bf16(), rows, cols}, dh.bf16(), n, {out.get(), rows, false, nullptr, nullptr});
            check(cudaStreamSynchronize(launch.stream), "testing");
            EXPECT_LT(relativeError(out.read(), product(w, exact, rows, cols, n)), 1e-5);
        }
}

/// The warps of a thread block follow the width of a single input.
/// The same bits as of a product of its own, also where the run before had other inputs, another norm or no float
/// inputs.
TEST_P(CudaLinear, ARunBehindAnotherUsesItsNormalisedInputs) {
    const int n = GetParam(), cols = 384, rows = 256;
    if (n == 0) GTEST_SKIP() << "nothing is multiplied";
    for (const bool library : {true, false}) {
        SCOPED_TRACE(::testing::Message() << n << " inputs" << (library ? "" : ", own kernels"));
        Linear linear(launch, n, cols, library), other(launch, n, cols, library);
        const OnDevice<Half> w(halves(std::size_t(rows * cols), 0.05f)), before(halves(std::size_t(640 * cols), 0.05f)),
            half(halves(std::size_t(n * cols)));
        const OnDevice<float> x(floats(std::size_t(n * cols))), norm(floats(std::size_t(cols))),
            otherNorm(floats(std::size_t(cols))), first(std::size_t(n * 640)), got(std::size_t(n * rows)),
            want(std::size_t(n * rows));
        const DeviceMatrix matrix{w.bf16(), rows, cols}, matrixBefore{before.bf16(), 640, cols};
        const Norm mine{norm.get(), 1e-5f};
        const auto same = [&](const char* what) {
            linear.runAgain(matrix, x.get(), cols, n, mine, {got.get(), rows, false, nullptr, nullptr});
            other.run(matrix, x.get(), cols, n, mine, {want.get(), rows, false, nullptr, nullptr});
            check(cudaStreamSynchronize(launch.stream), "testing");
            EXPECT_EQ(got.read(), want.read()) << what;
        };
        const LinearOutput firstOut{first.get(), 640, false, nullptr, nullptr};
        same("behind no other");
        linear.run(matrixBefore, x.get(), cols, n, mine, firstOut);
        same("behind a product of the same inputs");
        linear.run(matrixBefore, x.get(), cols, n, {otherNorm.get(), 1e-5f}, firstOut);
        same("behind another norm");
        linear.run(matrixBefore, x.get(), cols, n, mine, firstOut);
        const auto changed = floats(std::size_t(n * cols));
        check(cudaMemcpy(x.get(), changed.data(), changed.size() * 4, cudaMemcpyHostToDevice), "testing");
        linear.run(matrixBefore, half.bf16(), n, firstOut);
        same("behind a product of other inputs, to which x was added");
    }
}

TEST_P(CudaLinear, TakesOneInputOfEveryWidth) {
    if (GetParam() != 1) GTEST_SKIP() << "one input";
    for (const int cols : {2048, 2560, 2592, 3072, 4096, 5120, 6144, 8192, 10240, 14336, 16384}) {
        SCOPED_TRACE(::testing::Message() << cols << " columns");
        constexpr int kRows = 600;
        Linear linear(launch, 1, cols);
        const auto w = halves(std::size_t(kRows * cols), 0.05f), x = halves(std::size_t(cols));
        std::vector<double> exact;
        std::vector<float> asFloat;
        double squares = 0;
        for (const Half value : x) {
            exact.push_back(double(toFloat(value)));
            asFloat.push_back(toFloat(value));
            squares += exact.back() * exact.back();
        }
        auto want = product(w, exact, kRows, cols, 1);
        const OnDevice<Half> dw(w), dx(x);
        const OnDevice<float> df(asFloat), ones(std::vector<float>(std::size_t(cols), 1.f)),
            out(static_cast<std::size_t>(kRows));
        linear.run({dw.bf16(), kRows, cols}, dx.bf16(), 1, {out.get(), kRows, false, nullptr, nullptr});
        check(cudaStreamSynchronize(launch.stream), "testing");
        EXPECT_LT(relativeError(out.read(), want), 1e-5);
        for (double& value : want) value /= std::sqrt(squares / cols + 1e-5);
        check(cudaMemset(out.get(), 0xff, kRows * sizeof(float)), "poisoning a test's output");
        linear.run({dw.bf16(), kRows, cols}, df.get(), cols, 1, {ones.get(), 1e-5f},
                   {out.get(), kRows, false, nullptr, nullptr});
        check(cudaStreamSynchronize(launch.stream), "testing");
        EXPECT_LT(relativeError(out.read(), want), 1e-5);
    }
}

/// The warps split the columns of a few inputs; rows of inputs and outputs may lie apart. On few processors a thread
/// block takes several passes over its rows, each in several steps or phases. Tiles of 9 to 16 inputs fit into the
/// shared memory of small GPUs.
TEST_P(CudaLinear, TakesAFewInputsOfEveryWidth) {
    const int n = GetParam();
    if (n == 1 || n > 16) GTEST_SKIP() << "a few inputs";
    for (const int cols : {64, 2048, 2560, 2592, 4096, 10240, 16384}) {
        constexpr int kRows = 299, kStride = kRows + 3;
        const int xStride = cols + 4;
        const auto w = halves(std::size_t(kRows * cols), 0.05f), x = halves(std::size_t(n * cols));
        std::vector<double> exact, normed;
        std::vector<float> apart(std::size_t(n * xStride), 1e9f), weight = floats(std::size_t(cols));
        for (const Half value : x) exact.push_back(double(toFloat(value)));
        for (int i = 0; i < n; ++i) {
            const double* row = &exact[std::size_t(i * cols)];
            double squares = 0;
            for (int c = 0; c < cols; ++c)
                squares += row[c] * row[c], apart[std::size_t(i * xStride + c)] = float(row[c]);
            for (int c = 0; c < cols; ++c)
                normed.push_back(row[c] * double(weight[std::size_t(c)]) / std::sqrt(squares / cols + 1e-5));
        }
        const OnDevice<Half> dw(w), dx(x);
        const OnDevice<float> df(apart), dn(weight), out(std::size_t(n * kStride));
        const auto plain = product(w, exact, kRows, cols, n), scaled = product(w, normed, kRows, cols, n);
        const auto expect = [&](const std::vector<double>& want, double allowed) {
            check(cudaStreamSynchronize(launch.stream), "testing");
            std::vector<float> got;
            const auto all = out.read();
            for (int i = 0; i < n; ++i) {
                const float* row = &all[std::size_t(i * kStride)];
                got.insert(got.end(), row, row + kRows);
                for (int r = kRows; r < kStride; ++r) EXPECT_TRUE(std::isnan(row[r])) << "wrote past a row";
            }
            EXPECT_LT(relativeError(got, want), allowed);
            check(cudaMemset(out.get(), 0xff, all.size() * sizeof(float)), "poisoning a test's output");
        };
        std::vector<std::pair<int, std::size_t>> sizes{{launch.multiprocessors, launch.blockShared},
                                                       {4, launch.blockShared}};
        if (n > 8) sizes.emplace_back(4, std::size_t(99) << 10); // a desktop's; fewer inputs do not ask for it
        for (const auto& [processors, shared] : sizes) {
            SCOPED_TRACE(::testing::Message() << n << " inputs, " << cols << " columns, " << processors
                                              << " processors, " << shared << " bytes of shared memory");
            Launch how = launch;
            how.multiprocessors = processors;
            how.blockShared = shared;
            Linear linear(how, n, cols);
            const LinearOutput to{out.get(), kStride, false, nullptr, nullptr};
            linear.run({dw.bf16(), kRows, cols}, dx.bf16(), n, to);
            expect(plain, 1e-5);
            linear.run({dw.bf16(), kRows, cols}, df.get(), xStride, n, {dn.get(), 1e-5f}, to);
            expect(scaled, 4e-3);
            linear.run({dw.bf16(), kRows, cols}, df.get(), xStride, n, {}, to);
            expect(plain, 1e-5);
        }
    }
}

TEST(CudaFewInputs, NormsFloatsWhereTheInputsFitInRegistersAtOnce) {
    EXPECT_TRUE(fewTakeFloats(2, 64));
    EXPECT_TRUE(fewTakeFloats(8, 4096));
    EXPECT_FALSE(fewTakeFloats(8, 4128)) << "a second phase of columns";
    EXPECT_FALSE(fewTakeFloats(9, 64)) << "two tiles of inputs";
    EXPECT_FALSE(fewTakeFloats(1, 64)) << "one input has its own kernel";
}

/// Two matrices whose products are gated, and their rows in the order of the kernels.
struct CudaLinear::Gates {
    std::vector<Half> gate, up;
    int rows, cols;
    GateRule rule = {};
    std::vector<Half> interleaved() const {
        std::vector<Half> both(gate.size() * 2);
        for (int r = 0; r < rows; ++r) {
            std::copy_n(&gate[std::size_t(r * cols)], cols, &both[std::size_t(interleavedRow(r, false) * cols)]);
            std::copy_n(&up[std::size_t(r * cols)], cols, &both[std::size_t(interleavedRow(r, true) * cols)]);
        }
        return both;
    }
    std::vector<double> of(const std::vector<double>& x, int n) const {
        const auto g = product(gate, x, rows, cols, n), u = product(up, x, rows, cols, n);
        std::vector<double> y(g.size());
        const double limit = double(rule.limit), slope = double(rule.slope);
        for (std::size_t i = 0; i < g.size(); ++i) {
            const double bounded = std::min(g[i], limit);
            y[i] = rule.limit == 0 ? g[i] / (1 + std::exp(-g[i])) * u[i]
                                   : (std::clamp(u[i], -limit, limit) + 1) * bounded / (1 + std::exp(-slope * bounded));
        }
        return y;
    }
};

struct GatedShape {
    int outputs, cols, processors; // 0: all
};

/// So many rows that a thread block takes them in several passes, in one step or several; by float inputs that are
/// normed on the way, and by bf16 ones.
TEST_P(CudaLinear, GatesManyInterleavedRows) {
    const int n = GetParam();
    if (n == 1 || n > 16) GTEST_SKIP() << "a few inputs";
    for (const auto [f, cols, processors] :
         {GatedShape{8 * 1101, 96, 0}, {8 * 21, 2048, 2}, {8 * 21, 2560, 4}, {8 * 21, 2592, 4}, {8 * 21, 8192, 2}}) {
        SCOPED_TRACE(::testing::Message() << n << " inputs, " << f << " outputs, " << cols << " columns");
        Launch how = launch;
        if (processors > 0) how.multiprocessors = processors;
        Linear linear(how, n, cols);
        const float deviation = 2 / std::sqrt(float(cols));
        const GateRule rule = cols % 64 == 0 ? GateRule{} : GateRule{1.702f, 1.5f};
        const Gates gates{halves(std::size_t(f * cols), deviation), halves(std::size_t(f * cols), deviation), f, cols,
                          rule};
        const auto x = floats(std::size_t(n * cols)), weight = floats(std::size_t(cols));
        std::vector<double> normed, exact;
        std::vector<Half> half;
        for (int i = 0; i < n; ++i) {
            const float* row = &x[std::size_t(i * cols)];
            double squares = 0;
            for (int c = 0; c < cols; ++c) squares += double(row[c]) * double(row[c]);
            for (int c = 0; c < cols; ++c) {
                normed.push_back(double(row[c]) * double(weight[std::size_t(c)]) / std::sqrt(squares / cols + 1e-5));
                half.push_back(toBf16(row[c]));
                exact.push_back(double(toFloat(half.back())));
            }
        }
        const OnDevice<Half> dw(gates.interleaved()), dh(half), out(std::size_t(n * f));
        const OnDevice<float> dx(x), dn(weight);
        const auto expect = [&](const std::vector<double>& want, double allowed) {
            check(cudaStreamSynchronize(launch.stream), "testing");
            std::vector<float> got;
            for (const Half value : out.read()) got.push_back(toFloat(value));
            EXPECT_LT(relativeError(got, want), allowed);
            check(cudaMemset(out.get(), 0xff, got.size() * sizeof(Half)), "poisoning a test's output");
        };
        const LinearOutput to{nullptr, 0, false, nullptr, out.bf16(), rule};
        linear.run({dw.bf16(), 2 * f, cols}, dx.get(), cols, n, {dn.get(), 1e-5f}, to);
        expect(gates.of(normed, n), 1e-2); // inputs and results rounded to bf16
        linear.run({dw.bf16(), 2 * f, cols}, dh.bf16(), n, to);
        expect(gates.of(exact, n), 4e-3); // the results
    }
}

TEST_P(CudaLinear, GatesInterleavedRows) {
    const int n = GetParam(), f = 320, cols = 384;
    for (const auto& [library, rule] : {std::pair{true, GateRule{}},
                                        {false, GateRule{}},
                                        {true, GateRule{1.702f, 1.5f}},
                                        {false, GateRule{1.702f, 1.5f}}}) {
        SCOPED_TRACE(::testing::Message()
                     << n << " inputs" << (library ? "" : ", own kernels") << ", limit " << rule.limit);
        Linear linear(launch, n, cols, library);
        const Gates gates{halves(std::size_t(f * cols), 0.1f), halves(std::size_t(f * cols), 0.1f), f, cols, rule};
        const auto x = halves(std::size_t(n * cols));
        std::vector<double> exact(x.size());
        for (std::size_t i = 0; i < x.size(); ++i) exact[i] = double(toFloat(x[i]));
        const auto want = gates.of(exact, n);
        const OnDevice<Half> dw(gates.interleaved()), dx(x), out(std::size_t(n * f));
        linear.run({dw.bf16(), 2 * f, cols}, dx.bf16(), n, {nullptr, 0, false, nullptr, out.bf16(), rule});
        check(cudaStreamSynchronize(launch.stream), "testing");
        std::vector<float> got;
        for (const Half value : out.read()) got.push_back(toFloat(value));
        EXPECT_LT(relativeError(got, want),
                  8e-3); // gate, up and the result are each rounded to bf16 on the library's path
    }
}

INSTANTIATE_TEST_SUITE_P(Inputs, CudaLinear, ::testing::Values(1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 100, 300));

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::cuda
