// The keys and scores of a block indexer against float64.
#include "tests/kernels/cuda/device.h"

#include "kernels/cuda/methods/indexed_blocks.h"

namespace kvscope::cuda {
namespace KVSCOPE_TEST_FILE {

using namespace test;

constexpr int kAngles = 64, kTableRows = 900;

struct IndexShape {
    int heads, dim, rotated, kvHeads, blockSize;
};
void PrintTo(const IndexShape& s, std::ostream* out) {
    *out << s.heads << " heads of " << s.dim << " for " << s.kvHeads << " KV heads, " << s.rotated
         << " channels rotated, blocks of " << s.blockSize;
}

/// Three sequences with room for 3, 20 and 5 blocks.
class IndexedBlocksOnDevice : public CudaTest, public ::testing::WithParamInterface<IndexShape> {
protected:
    void SetUp() override {
        CudaTest::SetUp();
        if (IsSkipped()) return;
        std::int64_t tokens = 0;
        for (const int blocks : kBlocks) {
            first_.push_back(tokens);
            for (int g = 0; g < s_.kvHeads; ++g)
                tokenFirst_.push_back(tokens * s_.kvHeads + std::int64_t(g) * blocks * s_.blockSize);
            tokens += blocks * s_.blockSize;
        }
        keys_ = halves(std::size_t(tokens * s_.dim));
    }
    IndexedBlocks indexOf(const OnDevice<std::int64_t>& tokenFirst, const OnDevice<Half>& keys) const {
        return {s_.heads, s_.dim, s_.kvHeads, s_.blockSize, tokenFirst.get(), keys.bf16()};
    }

    static constexpr int kBlocks[] = {3, 20, 5};
    const IndexShape s_ = GetParam();
    std::vector<std::int64_t> first_, tokenFirst_; // [sequence] first token; [sequence*kvHeads]
    std::vector<Half> keys_;
};

TEST_P(IndexedBlocksOnDevice, NormsAndRotatesWhatIsProjected) {
    const int width = (s_.heads + 1) * s_.dim;
    const std::vector<std::int32_t> ropeFirst{400, 0, 650};
    for (const bool prompt : {false, true}) {
        SCOPED_TRACE(prompt ? "tokens of one sequence" : "one token of each sequence");
        const std::vector<std::int32_t> position =
            prompt ? std::vector<std::int32_t>{30, 31, 32, 33, 34} : std::vector<std::int32_t>{2, 7, 40};
        const int n = int(position.size());
        const std::vector<std::uint8_t> active{1, 0, 1};
        const auto projected = floats(std::size_t(n * width)), queryNorm = floats(std::size_t(s_.dim)),
                   keyNorm = floats(std::size_t(s_.dim)), cosines = floats(std::size_t(kTableRows * kAngles)),
                   sines = floats(std::size_t(kTableRows * kAngles));
        const OnDevice<float> dprojected(projected), dqueryNorm(queryNorm), dkeyNorm(keyNorm), dcos(cosines),
            dsin(sines), queries(std::size_t(n * s_.heads * s_.dim));
        const OnDevice<std::int32_t> dposition(position), dropeFirst(ropeFirst);
        const OnDevice<std::uint8_t> dactive(active);
        const OnDevice<std::int64_t> dfirst(tokenFirst_);
        const OnDevice<Half> keys(keys_);
        IndexedKeysArgs a;
        a.index = indexOf(dfirst, keys);
        a.tokens = {n, dposition.get(), prompt ? nullptr : dactive.get(), prompt, prompt ? 1 : 0};
        a.projected = dprojected.get();
        a.queryNorm = dqueryNorm.get();
        a.keyNorm = dkeyNorm.get();
        a.eps = 1e-5f;
        a.rotated = s_.rotated;
        a.cos = dcos.get();
        a.sin = dsin.get();
        a.angles = kAngles;
        a.ropeFirst = dropeFirst.get();
        a.queries = queries.get();
        placeIndexedKeys(launch, a);
        check(cudaStreamSynchronize(launch.stream), "testing");
        const auto gotQueries = queries.read();
        const auto gotKeys = keys.read();
        std::vector<bool> written(gotKeys.size());
        for (int i = 0; i < n; ++i) {
            const int sequence = prompt ? 1 : i, at = position[std::size_t(i)];
            if (!prompt && active[std::size_t(i)] == 0) {
                std::uint32_t bits = 0;
                std::memcpy(&bits, &gotQueries[std::size_t(i * s_.heads * s_.dim)], 4);
                EXPECT_EQ(bits, 0xffffffffu) << "a token that is skipped is left alone";
                continue;
            }
            for (int h = 0; h <= s_.heads; ++h) {
                const float* const x = &projected[std::size_t(i * width + h * s_.dim)];
                const auto& weight = h < s_.heads ? queryNorm : keyNorm;
                double squares = 0;
                for (int c = 0; c < s_.dim; ++c) squares += double(x[c]) * double(x[c]);
                std::vector<double> want;
                for (int c = 0; c < s_.dim; ++c)
                    want.push_back(double(x[c]) * double(weight[std::size_t(c)]) / std::sqrt(squares / s_.dim + 1e-5));
                const std::vector<double> plain = want;
                const int half = s_.rotated / 2;
                for (int c = 0; c < half; ++c) {
                    const auto angle = std::size_t((ropeFirst[std::size_t(sequence)] + at) * kAngles + c);
                    const double cos = double(cosines[angle]), sin = double(sines[angle]);
                    want[std::size_t(c)] = plain[std::size_t(c)] * cos - plain[std::size_t(c + half)] * sin;
                    want[std::size_t(c + half)] = plain[std::size_t(c + half)] * cos + plain[std::size_t(c)] * sin;
                }
                for (int c = 0; c < s_.dim; ++c) {
                    const double value = want[std::size_t(c)];
                    if (h < s_.heads) {
                        EXPECT_NEAR(double(gotQueries[std::size_t((i * s_.heads + h) * s_.dim + c)]), value,
                                    1e-5 * std::abs(value) + 1e-5);
                        continue;
                    }
                    const auto key = std::size_t((first_[std::size_t(sequence)] + at) * s_.dim + c);
                    written[key] = true;
                    EXPECT_NEAR(double(toFloat(gotKeys[key])), value, 4e-3 * std::abs(value) + 1e-5);
                }
            }
        }
        for (std::size_t i = 0; i < gotKeys.size(); ++i)
            if (!written[i]) {
                ASSERT_EQ(gotKeys[i], keys_[i]) << "the keys of other tokens are left alone";
            }
    }
}

TEST_P(IndexedBlocksOnDevice, ScoresABlockByItsBestKey) {
    const int maxBlocks = 21, size = s_.blockSize;
    for (const bool prompt : {false, true}) {
        SCOPED_TRACE(prompt ? "tokens of one sequence" : "one token of each sequence");
        const std::vector<std::int32_t> position =
            prompt ? std::vector<std::int32_t>{0, 1, size - 1, size, 7 * size + 3, 20 * size - 1}
                   : std::vector<std::int32_t>{size, 13 * size + 5, 5 * size - 1};
        const int n = int(position.size());
        const std::vector<std::uint8_t> active{1, 1, 0};
        const auto queries = floats(std::size_t(n * s_.heads * s_.dim));
        const OnDevice<float> dqueries(queries), scores(std::size_t(n * s_.kvHeads * maxBlocks));
        const OnDevice<std::int32_t> dposition(position);
        const OnDevice<std::uint8_t> dactive(active);
        const OnDevice<std::int64_t> dfirst(tokenFirst_);
        const OnDevice<Half> keys(keys_);
        IndexedScoreArgs a;
        a.index = indexOf(dfirst, keys);
        a.tokens = {n, dposition.get(), prompt ? nullptr : dactive.get(), prompt, prompt ? 1 : 0};
        a.queries = dqueries.get();
        a.blocks = 20;
        a.maxBlocks = maxBlocks;
        a.scores = scores.get();
        scoreIndexedBlocks(launch, a);
        check(cudaStreamSynchronize(launch.stream), "testing");
        const auto got = scores.read();
        for (int i = 0; i < n; ++i)
            for (int g = 0; g < s_.kvHeads; ++g)
                for (int b = 0; b < maxBlocks; ++b) {
                    const float score = got[std::size_t((i * s_.kvHeads + g) * maxBlocks + b)];
                    const int sequence = prompt ? 1 : i, visible = position[std::size_t(i)] + 1;
                    if (b * size >= visible || (!prompt && active[std::size_t(i)] == 0)) {
                        std::uint32_t bits = 0;
                        std::memcpy(&bits, &score, 4);
                        ASSERT_EQ(bits, 0xffffffffu) << "token " << i << ", block " << b << " is left alone";
                        continue;
                    }
                    const int head = g / (s_.kvHeads / s_.heads);
                    double best = -1e30, most = 0;
                    for (int t = b * size; t < std::min(visible, (b + 1) * size); ++t) {
                        double sum = 0, size2 = 0;
                        for (int c = 0; c < s_.dim; ++c) {
                            const double product =
                                double(queries[std::size_t((i * s_.heads + head) * s_.dim + c)]) *
                                double(toFloat(keys_[std::size_t((first_[std::size_t(sequence)] + t) * s_.dim + c)]));
                            sum += product, size2 += std::abs(product);
                        }
                        best = std::max(best, sum), most = std::max(most, size2);
                    }
                    ASSERT_NEAR(double(score), best, 1e-5 * most)
                        << "token " << i << ", KV head " << g << ", block " << b;
                }
    }
}

INSTANTIATE_TEST_SUITE_P(Shapes, IndexedBlocksOnDevice,
                         ::testing::Values(IndexShape{1, 8, 8, 1, 16}, IndexShape{2, 64, 32, 4, 32},
                                           IndexShape{4, 128, 64, 4, 128}, IndexShape{2, 72, 16, 2, 48},
                                           IndexShape{1, 256, 128, 8, 16}));

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::cuda
