// Packed weights on the GPU, every format, against the values their blocks stand for (float64, decoded one by one).
#include "kernels/cuda/linear/packed.h"

#include "kernels/cuda/linear/linear.h"
#include "tests/kernels/cuda/device.h"
#include "tests/kernels/quantised_fixture.h"

#include <algorithm>
#include <optional>

namespace kvscope::cuda {
namespace KVSCOPE_TEST_FILE {

using namespace test;
using kvscope::test::DecodedWeight;
using kvscope::test::kQuantised;
using kvscope::test::QuantisedWeights;

/// Rows on the device in the packed order; with `up`, its rows and those interleaved.
class OnDevicePacked {
public:
    OnDevicePacked(const Launch& launch, const QuantisedWeights& rows, const QuantisedWeights* up = nullptr)
        : low_(bytesOf(rows)), packed_(packedBytes(rows.matrix().type, rowsOf(rows, up), rows.matrix().cols)) {
        if (up != nullptr) high_.emplace(bytesOf(*up));
        const WeightMatrix& w = rows.matrix();
        packRows(launch, w.type, low_.get(), up != nullptr ? high_->get() : nullptr, rowsOf(rows, up), w.cols,
                 packed_.get());
        matrix = {nullptr, rowsOf(rows, up), w.cols, w.type, packed_.get()};
    }
    DeviceMatrix matrix;

private:
    static std::vector<std::byte> bytesOf(const QuantisedWeights& w) {
        const auto* from = static_cast<const std::byte*>(w.matrix().data);
        return {from, from + w.matrix().bytes()};
    }
    static int rowsOf(const QuantisedWeights& w, const QuantisedWeights* up) {
        return w.matrix().rows * (up != nullptr ? 2 : 1);
    }
    OnDevice<std::byte> low_;
    std::optional<OnDevice<std::byte>> high_;
    OnDevice<std::byte> packed_;
};

class CudaPacked : public CudaTest, public ::testing::WithParamInterface<DType> {
protected:
    static int unit() { return blockOf(GetParam()).weights; }
    QuantisedWeights weights(int rows, int cols) { return {random, GetParam(), rows, cols, 0}; }
    std::vector<double> product(const std::vector<DecodedWeight>& w, const std::vector<double>& x, int rows, int cols,
                                int n) {
        std::vector<double> y(std::size_t(n) * std::size_t(rows));
        for (int i = 0; i < n; ++i)
            for (int r = 0; r < rows; ++r)
                for (int c = 0; c < cols; ++c)
                    y[std::size_t(i * rows + r)] += w[std::size_t(r * cols + c)].value * x[std::size_t(i * cols + c)];
        return y;
    }
    /// What rounding in float32 may cost: every product is 128 + i times an input, with i often near 0.
    static constexpr double kFloat = 1e-4;
    static constexpr double kBf16 = 4e-3; // inputs (several) or weights (many inputs) rounded to bf16: 2^-9 each
};

TEST_P(CudaPacked, MultipliesNormalisesAccumulatesAndAddsBiases) {
    for (const auto& [rows, blocks] : {std::pair{16, 1}, {72, 3}, {200, 9}, {40, 18}})
        for (const int n : {1, 2, 8, 9, 16, 17, 40, 64, 65, 130}) {
            const int cols = blocks * unit();
            SCOPED_TRACE(::testing::Message()
                         << nameOf(GetParam()) << ", " << n << " inputs, " << rows << " x " << cols);
            const auto w = weights(rows, cols);
            const OnDevicePacked packed(launch, w);
            Linear linear(launch, n, cols, n % 2 == 0);
            const auto x = floats(std::size_t(n * cols)), norm = floats(std::size_t(cols)),
                       bias = floats(std::size_t(rows)), before = floats(std::size_t(n * rows));
            std::vector<double> normed(x.size());
            for (int i = 0; i < n; ++i) {
                double squares = 0;
                for (int c = 0; c < cols; ++c) squares += std::pow(double(x[std::size_t(i * cols + c)]), 2);
                for (int c = 0; c < cols; ++c)
                    normed[std::size_t(i * cols + c)] = double(x[std::size_t(i * cols + c)]) *
                                                        double(norm[std::size_t(c)]) / std::sqrt(squares / cols + 1e-5);
            }
            auto want = product(w.values, normed, rows, cols, n);
            std::vector<double> change = want;
            for (int i = 0; i < n; ++i)
                for (int r = 0; r < rows; ++r) {
                    change[std::size_t(i * rows + r)] += double(bias[std::size_t(r)]);
                    want[std::size_t(i * rows + r)] =
                        change[std::size_t(i * rows + r)] + double(before[std::size_t(i * rows + r)]);
                }
            const OnDevice<float> dx(x), dn(norm), db(bias), dy(before);
            linear.run(packed.matrix, dx.get(), cols, n, {dn.get(), 1e-5f}, {dy.get(), rows, true, db.get(), nullptr});
            check(cudaStreamSynchronize(launch.stream), "testing");
            EXPECT_LT(relativeError(dy.read(), want), n == 1 ? kFloat : n <= 64 ? kBf16 : 2 * kBf16);

            // bf16 input, overwriting a poisoned output
            std::vector<Half> half(x.size());
            std::vector<double> exact(x.size());
            for (std::size_t i = 0; i < x.size(); ++i) half[i] = toBf16(x[i]), exact[i] = double(toFloat(half[i]));
            const OnDevice<Half> dh(half);
            const OnDevice<float> out(std::size_t(n * rows));
            linear.run(packed.matrix, dh.bf16(), n, {out.get(), rows, false, nullptr, nullptr});
            check(cudaStreamSynchronize(launch.stream), "testing");
            EXPECT_LT(relativeError(out.read(), product(w.values, exact, rows, cols, n)), n <= 64 ? kFloat : kBf16);
        }
}

TEST_P(CudaPacked, GatesInterleavedRows) {
    const int f = 96, cols = 3 * unit();
    for (const int n : {1, 5, 16, 33, 100}) {
        SCOPED_TRACE(::testing::Message() << nameOf(GetParam()) << ", " << n << " inputs");
        const auto gate = weights(f, cols), up = weights(f, cols);
        const OnDevicePacked packed(launch, gate, &up);
        Linear linear(launch, n, cols);
        const auto x = halves(std::size_t(n * cols));
        std::vector<double> exact(x.size());
        for (std::size_t i = 0; i < x.size(); ++i) exact[i] = double(toFloat(x[i]));
        const auto g = product(gate.values, exact, f, cols, n), u = product(up.values, exact, f, cols, n);
        std::vector<double> want(g.size());
        for (std::size_t i = 0; i < g.size(); ++i) want[i] = g[i] / (1 + std::exp(-g[i])) * u[i];
        const OnDevice<Half> dx(x), out(std::size_t(n * f));
        linear.run(packed.matrix, dx.bf16(), n, {nullptr, 0, false, nullptr, out.bf16()});
        check(cudaStreamSynchronize(launch.stream), "testing");
        std::vector<float> got;
        for (const Half value : out.read()) got.push_back(toFloat(value));
        EXPECT_LT(relativeError(got, want), n <= 64 ? 3e-3 : 1e-2); // the result is bf16; many: gate and up as well
    }
}

TEST_P(CudaPacked, RowsComeBackAsTheyWere) {
    const int rows = 72, cols = 3 * unit(), first = 16, count = 50;
    const auto w = weights(rows, cols);
    const OnDevicePacked packed(launch, w);
    const OnDevice<Half> plain(std::size_t(count * cols));
    unpackRows(launch, GetParam(), packed.matrix.packed, cols, first, count, plain.bf16());
    const std::vector<std::int32_t> ids{0, 7, 8, 15, 16, 71, 33};
    const OnDevice<std::int32_t> dids(ids);
    const OnDevice<float> embedded(ids.size() * std::size_t(cols));
    embedPacked(launch, GetParam(), packed.matrix.packed, cols, dids.get(), int(ids.size()), embedded.get(), 0.5f,
                nullptr, 0, nullptr);
    check(cudaStreamSynchronize(launch.stream), "testing");
    const auto halfs = plain.read();
    for (int r = 0; r < count; ++r)
        for (int c = 0; c < cols; ++c) {
            const DecodedWeight& want = w.values[std::size_t((first + r) * cols + c)];
            ASSERT_NEAR(double(toFloat(halfs[std::size_t(r * cols + c)])), want.value,
                        0x1p-8 * std::abs(want.value) + 0x1p-20 * want.size)
                << "row " << first + r << ", column " << c;
        }
    const auto rowsRead = embedded.read();
    for (std::size_t i = 0; i < ids.size(); ++i)
        for (int c = 0; c < cols; ++c) {
            const DecodedWeight& want = w.values[std::size_t(ids[i] * cols + c)];
            ASSERT_NEAR(double(rowsRead[i * std::size_t(cols) + std::size_t(c)]), 0.5 * want.value, 0x1p-20 * want.size)
                << "row " << ids[i] << ", column " << c;
        }
}

/// Each expert's own rows, through lists as the router makes them; one expert has none, one more than a tile.
TEST_P(CudaPacked, ExpertsTakeTheirOwnTokens) {
    const int experts = 5, f = 48, cols = 2 * unit(), n = 37, used = 2, capacity = 40;
    std::vector<std::vector<std::int32_t>> lists(experts);
    for (int token = 0; token < n; ++token) {
        lists[0].push_back(token * used);
        lists[std::size_t(token % 3 + 2)].push_back(token * used + 1);
    }
    std::vector<QuantisedWeights> gates, ups;
    std::vector<std::byte> all;
    for (int e = 0; e < experts; ++e) gates.push_back(weights(f, cols)), ups.push_back(weights(f, cols));
    const std::size_t bytes = packedBytes(GetParam(), 2 * f, cols);
    const OnDevice<std::byte> packed(bytes * std::size_t(experts));
    for (int e = 0; e < experts; ++e) {
        const OnDevicePacked one(launch, gates[std::size_t(e)], &ups[std::size_t(e)]);
        check(cudaStreamSynchronize(launch.stream), "testing");
        check(cudaMemcpy(packed.get() + std::size_t(e) * bytes, one.matrix.packed, bytes, cudaMemcpyDeviceToDevice),
              "testing");
    }
    std::vector<std::int32_t> counts, pairs(std::size_t(experts * capacity), -1);
    for (int e = 0; e < experts; ++e) {
        counts.push_back(int(lists[std::size_t(e)].size()));
        std::copy(lists[std::size_t(e)].begin(), lists[std::size_t(e)].end(), pairs.begin() + e * capacity);
    }
    const auto x = halves(std::size_t(n * cols));
    std::vector<double> exact;
    for (const Half value : x) exact.push_back(double(toFloat(value)));
    const OnDevice<Half> dx(x), hidden(std::size_t(n * used * f));
    const OnDevice<std::int32_t> dcounts(counts), dpairs(pairs);
    PackedProduct p;
    p.w = packed.get();
    p.type = GetParam();
    p.rows = 2 * f;
    p.cols = cols;
    p.xHalf = dx.bf16();
    p.n = n;
    p.hidden = hidden.bf16();
    p.groups = {dcounts.get(), dpairs.get(), experts, capacity, used, false, bytes};
    multiplyPacked(launch, p);
    // And a plain product of rows that belong to pairs.
    const auto perPair = halves(std::size_t(n * used * cols));
    std::vector<double> exactPerPair;
    for (const Half value : perPair) exactPerPair.push_back(double(toFloat(value)));
    const OnDevice<Half> dPerPair(perPair);
    const OnDevice<float> y(std::size_t(n * used * 2 * f));
    p.xHalf = dPerPair.bf16();
    p.hidden = nullptr;
    p.y = y.get();
    p.stride = 2 * f;
    p.groups.inputPerPair = true;
    multiplyPacked(launch, p);
    check(cudaStreamSynchronize(launch.stream), "testing");
    std::vector<float> got, gotPlain;
    std::vector<double> want, wantPlain;
    const auto hiddenRead = hidden.read();
    const auto plainRead = y.read();
    for (int e = 0; e < experts; ++e)
        for (const std::int32_t pair : lists[std::size_t(e)])
            for (int r = 0; r < f; ++r) {
                double g = 0, u = 0, gp = 0, up = 0;
                for (int c = 0; c < cols; ++c) {
                    const double wg = gates[std::size_t(e)].values[std::size_t(r * cols + c)].value,
                                 wu = ups[std::size_t(e)].values[std::size_t(r * cols + c)].value;
                    const double token = exact[std::size_t(pair / used * cols + c)],
                                 own = exactPerPair[std::size_t(pair * cols + c)];
                    g += wg * token, u += wu * token, gp += wg * own, up += wu * own;
                }
                got.push_back(toFloat(hiddenRead[std::size_t(pair * f + r)]));
                want.push_back(g / (1 + std::exp(-g)) * u);
                gotPlain.push_back(plainRead[std::size_t(pair * 2 * f + interleavedRow(r, false))]);
                wantPlain.push_back(gp);
                gotPlain.push_back(plainRead[std::size_t(pair * 2 * f + interleavedRow(r, true))]);
                wantPlain.push_back(up);
            }
    EXPECT_LT(relativeError(got, want), 3e-3);
    EXPECT_LT(relativeError(gotPlain, wantPlain), kFloat);
}

INSTANTIATE_TEST_SUITE_P(Formats, CudaPacked, ::testing::ValuesIn(kQuantised),
                         [](const auto& tested) { return std::string(nameOf(tested.param)); });

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::cuda
