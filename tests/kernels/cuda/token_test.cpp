// A decoded token's way into the cache and the block index, against float64.
#include "tests/kernels/cuda/device.h"

#include "kernels/cuda/token.h"

#include <algorithm>

namespace kvscope::cuda {
namespace {

using namespace test;

struct TokenCase {
    int dim, group, blockSize, kernel, stride;
    bool interleaved, normed, resident;
};
void PrintTo(const TokenCase& c, std::ostream* out) {
    *out << "dim " << c.dim << ", group " << c.group << (c.interleaved ? ", interleaved" : "")
         << (c.normed ? ", normed" : "") << (c.resident ? ", resident" : "");
}

class CudaToken : public CudaTest, public ::testing::WithParamInterface<TokenCase> {};

TEST_P(CudaToken, RotatesStoresScoresAndPools) {
    const TokenCase c = GetParam();
    constexpr int kRows = 2, kKvHeads = 2, kHeads = kRows * kKvHeads, kSteps = 70;
    const int dim = c.dim, half = dim / 2, bs = c.blockSize, queryHeads = kKvHeads * c.group;
    const int width = (queryHeads + 2 * kKvHeads) * dim, most = 150, blocks = (most + bs - 1) / bs + 1;
    const auto cosines = floats(std::size_t(2 * most * half)), sines = floats(cosines.size());
    const auto delta = floats(std::size_t(kKvHeads * kKvHeads * dim), 0.1f), gain = floats(kKvHeads);
    const auto queryNorm = floats(std::size_t(dim)), keyNorm = floats(std::size_t(dim));
    std::vector<std::int64_t> windowFirst, blockFirst, tokenFirst;
    for (int h = 0; h < kHeads; ++h) {
        windowFirst.push_back(std::int64_t(h) * most);
        blockFirst.push_back(std::int64_t(h) * blocks);
        tokenFirst.push_back(std::int64_t(h) * most);
    }
    const OnDevice<float> dcos(cosines), dsin(sines), ddelta(delta), dgain(gain), dqn(queryNorm), dkn(keyNorm);
    const OnDevice<std::int64_t> dwf(windowFirst), dbf(blockFirst), dtf(tokenFirst);
    const OnDevice<Half> recent(std::vector<Half>(std::size_t(kHeads * c.kernel * dim), 0)),
        pooled(std::size_t(kHeads * most * dim)), ranges(std::size_t(kHeads * blocks * 2 * dim)),
        cache(std::size_t(kHeads * blocks) * blockElements(bs, dim)), q(std::size_t(kRows * queryHeads * dim)),
        newKey(std::size_t(kHeads * dim)), newValue(std::size_t(kHeads * dim));
    const OnDevice<float> recentScores(std::vector<float>(std::size_t(kHeads * c.kernel), 0)),
        pooledScores(std::size_t(kHeads * most)), tokenScores(std::size_t(kHeads * most));
    const std::vector<std::int32_t> ropeFirst{0, most};
    const OnDevice<std::int32_t> dropeFirst(ropeFirst);
    std::vector<std::vector<std::vector<float>>> keys(kHeads);
    std::vector<std::vector<double>> scores(kHeads);
    for (int step = 0; step < kSteps; ++step) {
        const auto qkv = floats(std::size_t(kRows * width));
        const OnDevice<float> dqkv(qkv);
        const OnDevice<std::int32_t> position(std::vector<std::int32_t>{step, step});
        AppendArgs a;
        a.shape = {queryHeads, kKvHeads, dim, bs};
        a.qkv = dqkv.get();
        a.cos = dcos.get();
        a.sin = dsin.get();
        a.interleaved = c.interleaved;
        a.eviction = {ddelta.get(), dgain.get()};
        if (c.normed) a.norms = {dqn.get(), dkn.get(), 1e-5f};
        a.q = q.bf16();
        a.index.kernel = c.kernel;
        a.index.stride = c.stride;
        a.index.recentKeys = recent.bf16();
        a.index.recentScores = recentScores.get();
        a.index.pooledKeys = pooled.bf16();
        a.index.pooledScores = pooledScores.get();
        a.index.ranges = ranges.bf16();
        a.index.tokenScores = tokenScores.get();
        a.index.windowFirst = dwf.get();
        a.index.blockFirst = dbf.get();
        a.index.tokenFirst = dtf.get();
        a.rows = kRows;
        a.position = position.get();
        a.ropeFirst = dropeFirst.get();
        if (c.resident) a.blocks = cache.bf16(), a.headFirst = dbf.get();
        a.newKey = newKey.bf16();
        a.newValue = newValue.bf16();
        rotateAndAppend(launch, a);
        check(cudaStreamSynchronize(launch.stream), "testing");
        const auto gotQ = q.read(), gotKey = newKey.read(), gotValue = newValue.read(), gotCache = cache.read();
        const auto rotated = [&](int row, const float* x, const std::vector<float>& weight) {
            double squares = 0;
            for (int i = 0; i < dim; ++i) squares += double(x[i]) * double(x[i]);
            const double inverse = 1 / std::sqrt(squares / dim + 1e-5);
            std::vector<double> y(static_cast<std::size_t>(dim));
            for (int i = 0; i < half; ++i) {
                const int low = c.interleaved ? 2 * i : i, high = c.interleaved ? 2 * i + 1 : i + half;
                const auto scaled = [&](int at) {
                    return double(x[at]) * (c.normed ? inverse * double(weight[std::size_t(at)]) : 1.0);
                };
                const std::size_t angle = std::size_t((ropeFirst[std::size_t(row)] + step) * half + i);
                y[std::size_t(low)] = scaled(low) * double(cosines[angle]) - scaled(high) * double(sines[angle]);
                y[std::size_t(high)] = scaled(high) * double(cosines[angle]) + scaled(low) * double(sines[angle]);
            }
            return y;
        };
        for (int h = 0; h < kHeads; ++h) {
            SCOPED_TRACE(::testing::Message() << "step " << step << ", head " << h);
            const int row = h / kKvHeads, g = h % kKvHeads;
            const float *in = &qkv[std::size_t(row * width)], *key = in + (queryHeads + g) * dim,
                        *values = in + (queryHeads + kKvHeads) * dim, *value = values + g * dim;
            for (int head = 0; head < c.group; ++head) {
                const int at = g * c.group + head;
                const auto want = rotated(row, in + at * dim, queryNorm);
                for (int i = 0; i < dim; ++i)
                    EXPECT_NEAR(toFloat(gotQ[std::size_t((row * queryHeads + at) * dim + i)]), want[std::size_t(i)],
                                1e-5 + std::abs(want[std::size_t(i)]) * 0x1.1p-8); // rounded to bf16
            }
            const auto want = rotated(row, key, keyNorm);
            keys[std::size_t(h)].emplace_back();
            const std::size_t block = (std::size_t(h * blocks + step / bs)) * blockElements(bs, dim);
            for (int i = 0; i < dim; ++i) {
                const Half got = gotKey[std::size_t(h * dim + i)];
                EXPECT_NEAR(toFloat(got), want[std::size_t(i)], 1e-5 + std::abs(want[std::size_t(i)]) * 0x1.1p-8);
                keys[std::size_t(h)].back().push_back(toFloat(got));
                EXPECT_EQ(gotValue[std::size_t(h * dim + i)], toBf16(value[i]));
                if (c.resident) { // as well
                    EXPECT_EQ(gotCache[block + std::size_t(bs * dim + i * bs + step % bs)], toBf16(value[i]));
                    EXPECT_EQ(gotCache[block + std::size_t(step % bs * dim + i)], got);
                }
            }
            double sum = 0;
            for (int i = 0; i < kKvHeads * dim; ++i)
                sum += double(delta[std::size_t(g * kKvHeads * dim + i)]) * double(values[i]);
            scores[std::size_t(h)].push_back(double(gain[std::size_t(g)]) * std::log1p(std::exp(sum)));
        }
    }
    // What was pooled of the keys as they are stored.
    const auto gotPooled = pooled.read(), gotRanges = ranges.read();
    const auto gotPooledScores = pooledScores.read(), gotScores = tokenScores.read();
    for (int h = 0; h < kHeads; ++h) {
        const auto& mine = keys[std::size_t(h)];
        for (int t = 0; t < kSteps; ++t)
            EXPECT_NEAR(gotScores[std::size_t(h * most + t)], scores[std::size_t(h)][std::size_t(t)], 1e-4);
        for (int w = 0; w * c.stride + c.kernel <= kSteps; ++w) {
            double score = 0;
            for (int t = 0; t < c.kernel; ++t) score += scores[std::size_t(h)][std::size_t(w * c.stride + t)];
            EXPECT_NEAR(gotPooledScores[std::size_t(h * most + w)], score / c.kernel, 1e-4);
            for (int i = 0; i < dim; ++i) {
                double sum = 0;
                for (int t = 0; t < c.kernel; ++t) sum += double(mine[std::size_t(w * c.stride + t)][std::size_t(i)]);
                EXPECT_NEAR(toFloat(gotPooled[std::size_t((h * most + w) * dim + i)]), sum / c.kernel,
                            1e-5 + std::abs(sum / c.kernel) * 0x1.1p-8);
            }
        }
        for (int b = 0; b * bs < kSteps; ++b)
            for (int i = 0; i < dim; ++i) {
                float low = INFINITY, high = -INFINITY;
                for (int t = b * bs; t < std::min((b + 1) * bs, kSteps); ++t) {
                    low = std::min(low, mine[std::size_t(t)][std::size_t(i)]);
                    high = std::max(high, mine[std::size_t(t)][std::size_t(i)]);
                }
                const std::size_t at = std::size_t((h * blocks + b) * 2 * dim + i);
                EXPECT_EQ(toFloat(gotRanges[at]), low);
                EXPECT_EQ(toFloat(gotRanges[at + std::size_t(dim)]), high);
            }
    }
}

INSTANTIATE_TEST_SUITE_P(Shapes, CudaToken,
                         ::testing::Values(TokenCase{64, 3, 64, 32, 16, false, false, false},
                                           TokenCase{128, 16, 64, 32, 16, false, false, true},
                                           TokenCase{128, 1, 16, 8, 4, true, false, true},
                                           TokenCase{64, 32, 32, 32, 16, false, true, false},
                                           TokenCase{128, 7, 16, 16, 16, true, true, true}));

} // namespace
} // namespace kvscope::cuda
