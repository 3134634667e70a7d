// The low-rank keys of ShadowKV against the best that a rank can do.
#include "tests/kernels/cuda/device.h"

#include "kernels/cuda/methods/shadow.h"

#include <algorithm>
#include <numeric>
#include <tuple>

namespace kvscope::cuda {
namespace KVSCOPE_TEST_FILE {

using namespace test;

/// `count` orthonormal vectors [count][size], by Gram-Schmidt in float64.
std::vector<std::vector<double>> orthonormal(int count, int size, std::mt19937& random) {
    std::normal_distribution<double> normal;
    std::vector<std::vector<double>> rows;
    for (int i = 0; i < count; ++i) {
        std::vector<double> row(static_cast<std::size_t>(size));
        for (double& value : row) value = normal(random);
        for (int pass = 0; pass < 2; ++pass)
            for (const auto& other : rows) {
                const double along = std::inner_product(row.begin(), row.end(), other.begin(), 0.0);
                for (std::size_t c = 0; c < row.size(); ++c) row[c] -= along * other[c];
            }
        const double norm = std::sqrt(std::inner_product(row.begin(), row.end(), row.begin(), 0.0));
        for (double& value : row) value /= norm;
        rows.push_back(row);
    }
    return rows;
}

using CudaShadowRank = CudaTest;

// A matrix made from its singular values: what a rank leaves out is known.
TEST_F(CudaShadowRank, HoldsAsMuchOfTheKeysAsItsRankCan) {
    for (const auto& [kvHeads, dim, tokens, rank] : {std::tuple{2, 64, 500, 40}, std::tuple{2, 128, 333, 20},
                                                     std::tuple{1, 64, 90, 64}, std::tuple{2, 64, 30, 50}}) {
        const int width = kvHeads * dim, full = std::min(width, tokens), padded = (rank + 15) / 16 * 16;
        const auto left = orthonormal(full, tokens, random), right = orthonormal(full, width, random);
        std::vector<Half> keys(std::size_t(tokens * width));
        for (int t = 0; t < tokens; ++t)
            for (int c = 0; c < width; ++c) {
                double sum = 0;
                for (int i = 0; i < full; ++i)
                    sum += 40 * std::exp(-i / 20.0) * left[std::size_t(i)][std::size_t(t)] *
                           right[std::size_t(i)][std::size_t(c)];
                keys[std::size_t(t * width + c)] = toBf16(float(sum));
            }
        const OnDevice<Half> dkeys(keys), u(std::vector<Half>(std::size_t(tokens * padded), 0)),
            basis(std::size_t(width * padded));
        const OnDevice<float> gram(std::size_t(width * width)), vectors(std::size_t(rank * width)),
            moved(std::size_t(rank * width));
        const OnDevice<double> products(std::size_t(rank * rank));
        ShadowRankArgs args;
        args.memory.shape = {kvHeads, kvHeads, dim, 64};
        args.memory.paddedRank = padded;
        args.memory.u = u.bf16();
        args.memory.basis = basis.bf16();
        args.tokens = tokens;
        args.rank = rank;
        args.keys = dkeys.bf16();
        args.gram = gram.get();
        args.vectors = vectors.get();
        args.moved = moved.get();
        args.products = products.get();
        lowerRank(launch, args);
        ASSERT_EQ(cudaStreamSynchronize(launch.stream), cudaSuccess);
        const auto gotU = u.read(), gotBasis = basis.read();
        double lost = 0, all = 0, best = 0;
        for (int t = 0; t < tokens; ++t)
            for (int c = 0; c < width; ++c) {
                double sum = 0;
                for (int r = 0; r < padded; ++r)
                    sum += double(toFloat(gotU[std::size_t(t * padded + r)])) *
                           double(toFloat(gotBasis[std::size_t(c * padded + r)]));
                const double key = double(toFloat(keys[std::size_t(t * width + c)]));
                lost += (key - sum) * (key - sum);
                all += key * key;
            }
        for (int i = rank; i < full; ++i) best += 1600 * std::exp(-i / 10.0);
        // Three roundings to bf16, of the keys and of both factors, each of relative size 2^-9 at most.
        EXPECT_LT(lost, 1.02 * best + 3 * 0x1p-17 * all) << kvHeads << " heads, rank " << rank;
    }
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::cuda
