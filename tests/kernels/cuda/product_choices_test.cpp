// Every way in which a product can be multiplied against float64, and that the table is followed.
#include "tests/kernels/cuda/device.h"

#include "kernels/cuda/linear/linear.h"

#include <map>
#include <memory>

namespace kvscope::cuda {
namespace KVSCOPE_TEST_FILE {

using namespace test;

constexpr int kRows = 640, kCols = 384;
constexpr float kEps = 1e-5f;

class CudaProductChoices : public CudaTest, public ::testing::WithParamInterface<int> {
protected:
    void SetUp() override {
        CudaTest::SetUp();
        if (IsSkipped()) return;
        n = GetParam();
        w = halves(std::size_t(kRows * kCols), 0.1f);
        x = floats(std::size_t(n * kCols));
        norm = floats(std::size_t(kCols));
        for (const float value : x) half.push_back(toBf16(value));
        linear = std::make_unique<Linear>(launch, n, kCols);
        weights = std::make_unique<OnDevice<Half>>(w);
        dx = std::make_unique<OnDevice<float>>(x);
        dh = std::make_unique<OnDevice<Half>>(half);
        dn = std::make_unique<OnDevice<float>>(norm);
    }
    DeviceMatrix matrix() const { return {weights->bf16(), kRows, kCols}; }

    /// Inputs as the chain multiplies them.
    std::vector<double> inputs(bool normed) const {
        std::vector<double> out;
        for (int i = 0; i < n; ++i) {
            double squares = 0;
            for (int c = 0; c < kCols; ++c) squares += double(x[at(i, c)]) * double(x[at(i, c)]);
            const double scale = 1 / std::sqrt(squares / kCols + double(kEps));
            for (int c = 0; c < kCols; ++c)
                out.push_back(normed ? double(x[at(i, c)]) * double(norm[std::size_t(c)]) * scale
                                     : double(toFloat(half[at(i, c)])));
        }
        return out;
    }
    std::vector<double> products(const std::vector<double>& from) const {
        std::vector<double> out;
        for (int i = 0; i < n; ++i)
            for (int r = 0; r < kRows; ++r) {
                double sum = 0;
                for (int c = 0; c < kCols; ++c) sum += double(toFloat(w[at(r, c)])) * from[at(i, c)];
                out.push_back(sum);
            }
        return out;
    }
    /// What the chain has computed, as floats.
    std::vector<float> run(ProductFinish finish) {
        const OnDevice<float> y(std::vector<float>(std::size_t(n * kRows), 0.5f));
        const OnDevice<Half> hidden(std::size_t(n * kRows / 2));
        const LinearOutput floatsTo{y.get(), kRows, finish == ProductFinish::Plain, nullptr, nullptr};
        if (finish == ProductFinish::Plain)
            linear->run(matrix(), dh->bf16(), n, floatsTo);
        else if (finish == ProductFinish::Normed)
            linear->run(matrix(), dx->get(), kCols, n, {dn->get(), kEps}, floatsTo);
        else
            linear->run(matrix(), dx->get(), kCols, n, {dn->get(), kEps}, {nullptr, 0, false, nullptr, hidden.bf16()});
        check(cudaStreamSynchronize(launch.stream), "testing");
        if (finish != ProductFinish::Gated) return y.read();
        std::vector<float> out;
        for (const Half value : hidden.read()) out.push_back(toFloat(value));
        return out;
    }
    std::vector<double> wanted(ProductFinish finish) const {
        const auto all = products(inputs(finish != ProductFinish::Plain));
        if (finish == ProductFinish::Normed) return all;
        std::vector<double> out;
        if (finish == ProductFinish::Plain) {
            for (const double value : all) out.push_back(value + 0.5);
            return out;
        }
        for (int i = 0; i < n; ++i)
            for (int f = 0; f < kRows / 2; ++f) {
                const double gate = all[std::size_t(i * kRows + interleavedRow(f, false))],
                             up = all[std::size_t(i * kRows + interleavedRow(f, true))];
                out.push_back(gate / (1 + std::exp(-gate)) * up);
            }
        return out;
    }
    static std::size_t at(int row, int col) { return std::size_t(row * kCols + col); }

    int n = 0;
    std::vector<Half> w, half;
    std::vector<float> x, norm;
    std::unique_ptr<Linear> linear;
    std::unique_ptr<OnDevice<Half>> weights, dh;
    std::unique_ptr<OnDevice<float>> dx, dn;
};

constexpr ProductFinish kFinishes[] = {ProductFinish::Plain, ProductFinish::Normed, ProductFinish::Gated};

TEST_P(CudaProductChoices, AllMultiplyRight) {
    const int proposals = linear->proposals(matrix(), n, {nullptr, kRows, false, nullptr, nullptr});
    auto choices = possibleChoices({"", 0, proposals > 0 ? 1 : 0}, n, 16);
    choices.push_back({ProductKernel::ManyInputs, 0});
    for (const ProductFinish finish : kFinishes) {
        const auto want = wanted(finish);
        for (const ProductChoice choice : choices) {
            SCOPED_TRACE(::testing::Message() << n << " inputs, " << nameOf(finish) << ", " << wordOf(choice));
            linear->force(choice);
            EXPECT_LT(relativeError(run(finish), want), finish == ProductFinish::Plain ? 1e-5 : 1e-2);
        }
    }
}

TEST_P(CudaProductChoices, AreThoseOfTheTable) {
    const int proposals = linear->proposals(matrix(), n, {nullptr, kRows, false, nullptr, nullptr});
    const ProductMachine machine{"", 0, proposals > 0 ? 1 : 0};
    const ProductTable rule = ProductTable::builtIn(machine);
    for (const ProductChoice choice : possibleChoices(machine, n, 2)) {
        SCOPED_TRACE(::testing::Message() << n << " inputs, " << wordOf(choice));
        std::map<ProductShape, ProductTable::Choices> rows;
        for (const ProductFinish finish : kFinishes)
            rows[{kRows, kCols, finish}] =
                measureProduct(rule, {kRows, kCols, finish}, 2, [&](const ProductShape&, int, ProductChoice timed) {
                    return timed == choice ? 0.5 : 1.0;
                });
        for (const ProductFinish finish : kFinishes) {
            linear->force(choice);
            const auto forced = run(finish);
            linear->force({});
            linear->chooseBy(std::make_shared<const ProductTable>(rule.with(rows)));
            EXPECT_EQ(run(finish), forced) << nameOf(finish);
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Inputs, CudaProductChoices, ::testing::Values(1, 2, 4, 8, 9, 12, 16, 17, 24, 64, 200, 256));

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::cuda
