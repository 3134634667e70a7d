// Block scores whose softmax divides by coarser keys' sums, against float64 from the keys' means.
#include "tests/kernels/cuda/device.h"

#include "kernels/cuda/methods/coarse_sums.h"

#include <algorithm>

namespace kvscope::cuda {
namespace KVSCOPE_TEST_FILE {

using namespace test;

struct Case {
    int dim, group, blockSize, kernel, stride, tokens;
};
void PrintTo(const Case& c, std::ostream* out) {
    *out << "dim " << c.dim << ", group " << c.group << ", blocks of " << c.blockSize << ", windows of " << c.kernel
         << '/' << c.stride << ", " << c.tokens << " tokens";
}

class CudaCoarseSums : public CudaTest, public ::testing::WithParamInterface<Case> {};

TEST_P(CudaCoarseSums, BlocksHaveTheirBestWindowsScore) {
    const Case c = GetParam();
    const int kvHeads = 2, rows = 3, queryHeads = kvHeads * c.group, maxBlocks = c.tokens / c.blockSize + 3,
              maxWindows = c.tokens / c.stride + 2;
    const AttentionShape shape{queryHeads, kvHeads, c.dim, c.blockSize};
    const std::vector<std::int32_t> position{c.tokens - 1, std::max(0, c.tokens / 2 - 1), c.tokens - 1};
    const std::vector<std::uint8_t> active{1, 1, 0};
    const auto pooled = halves(std::size_t(rows * kvHeads * maxWindows * c.dim)),
               q = halves(std::size_t(rows * queryHeads * c.dim));
    std::vector<std::int64_t> first;
    for (int item = 0; item < rows * kvHeads; ++item) first.push_back(std::int64_t(item) * maxWindows);
    const OnDevice<Half> dpooled(pooled), dq(q);
    const OnDevice<std::int32_t> dposition(position);
    const OnDevice<std::uint8_t> dactive(active);
    const OnDevice<std::int64_t> dfirst(first);
    const OnDevice<float> logits(std::size_t(rows * queryHeads * maxWindows)),
        logSums(static_cast<std::size_t>(rows * queryHeads)), scores(std::size_t(rows * kvHeads * maxBlocks));
    CoarseScoreArgs args;
    args.shape = shape;
    args.rows = rows;
    args.maxBlocks = maxBlocks;
    args.maxWindows = maxWindows;
    args.position = dposition.get();
    args.active = dactive.get();
    args.q = dq.bf16();
    args.index.kernel = c.kernel;
    args.index.stride = c.stride;
    args.index.pooledKeys = dpooled.bf16();
    args.index.windowFirst = dfirst.get();
    args.scale = 0.3f / std::sqrt(float(c.dim));
    args.logits = logits.get();
    args.logSums = logSums.get();
    args.scores = scores.get();
    scoreByCoarseSums(launch, args);
    check(cudaStreamSynchronize(launch.stream), "scoring");
    const auto got = scores.read();
    for (int item = 0; item < rows * kvHeads; ++item) {
        SCOPED_TRACE(item);
        const int tokens = position[std::size_t(item / kvHeads)] + 1, blocks = (tokens - 1) / c.blockSize + 1;
        if (active[std::size_t(item / kvHeads)] == 0) {
            EXPECT_TRUE(std::isnan(got[std::size_t(item * maxBlocks)])) << "an inactive row is left alone";
            continue;
        }
        std::vector<double> windows;
        for (int h = 0; h < c.group; ++h) {
            const auto logit = [&](const std::vector<int>& keys) { // of the mean of some pooled keys
                double sum = 0;
                for (const int w : keys)
                    for (int ch = 0; ch < c.dim; ++ch)
                        sum += double(toFloat(q[std::size_t((item * c.group + h) * c.dim + ch)])) *
                               double(toFloat(pooled[std::size_t((item * maxWindows + w) * c.dim + ch)]));
                return double(args.scale) * sum / double(keys.size());
            };
            std::vector<double> fine;
            for (int at = 0; at + c.kernel <= tokens; at += c.stride) fine.push_back(logit({at / c.stride}));
            double sum = 0;
            int coarse = 0; // tokens pooled four at a time and four times as far apart
            for (int at = 0; at + 4 * c.kernel <= tokens; at += 4 * c.stride, ++coarse) {
                std::vector<int> parts;
                for (int part = 0; part < 4; ++part) parts.push_back((at + part * c.kernel) / c.stride);
                sum += std::exp(logit(parts));
            }
            if (coarse == 0)
                for (const double x : fine) sum += std::exp(x);
            windows.resize(fine.size(), 0.0);
            for (std::size_t w = 0; w < fine.size(); ++w) windows[w] += std::exp(fine[w]) / sum;
        }
        for (int b = 0; b < blocks; ++b) {
            double best = -INFINITY;
            for (std::size_t w = 0; w < windows.size(); ++w) {
                const int begin = int(w) * c.stride;
                if (begin < (b + 1) * c.blockSize && begin + c.kernel > b * c.blockSize)
                    best = std::max(best, windows[w]);
            }
            const double mine = double(got[std::size_t(item * maxBlocks + b)]);
            if (best == -INFINITY) {
                EXPECT_EQ(mine, best) << "block " << b;
            } else {
                EXPECT_NEAR(mine, best, 2e-5 * best) << "block " << b;
            }
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Shapes, CudaCoarseSums,
                         ::testing::Values(Case{128, 16, 64, 32, 16, 5000}, Case{64, 3, 16, 8, 4, 333},
                                           Case{128, 9, 32, 16, 16, 1000}, Case{64, 1, 64, 32, 16, 90},
                                           Case{64, 2, 64, 32, 16, 20}));

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::cuda
