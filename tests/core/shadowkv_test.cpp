// ShadowKV against a plain reference written from its paper (methods 9.10), in float64.
#include "tests/core/method_run.h"

#include "core/math/symmetric_eigen.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <set>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using test::expectBest;
using test::MethodRun;
constexpr int kDim = MethodRun::kDim, kGroup = MethodRun::kGroup, kWidth = MethodRun::kKvHeads * kDim;

TEST(SymmetricEigen, VectorsAreOrthonormalAndTheMatrixMovesThemByTheirValue) {
    std::mt19937 random(31);
    std::normal_distribution<double> normal;
    for (const int n : {1, 2, 7, 40}) {
        const auto size = std::size_t(n);
        std::vector<double> matrix(size * size);
        for (std::size_t i = 0; i < size; ++i)
            for (std::size_t j = 0; j <= i; ++j) matrix[i * size + j] = matrix[j * size + i] = normal(random);
        const auto eigen = symmetricEigen(matrix, n);
        EXPECT_TRUE(std::is_sorted(eigen.values.rbegin(), eigen.values.rend()));
        for (std::size_t a = 0; a < size; ++a) {
            const double* v = eigen.vectors.data() + a * size;
            for (std::size_t b = 0; b < size; ++b)
                EXPECT_NEAR(std::inner_product(v, v + n, eigen.vectors.data() + b * size, 0.0), a == b ? 1.0 : 0.0,
                            1e-12);
            for (std::size_t i = 0; i < size; ++i)
                EXPECT_NEAR(std::inner_product(v, v + n, matrix.data() + i * size, 0.0), eigen.values[a] * v[i],
                            1e-11 * n);
        }
    }
}

TEST(SymmetricEigen, ADiagonalComesBackSorted) {
    const auto eigen = symmetricEigen(std::vector<double>{1, 0, 0, 0, 5, 0, 0, 0, 3}, 3);
    EXPECT_EQ(eigen.values, (std::vector<double>{5, 3, 1}));
}

TEST(ShadowKv, AtFullRankWithAllChunksIsDense) {
    for (const char* chunk : {"8", "64"}) {
        const MethodRun run("shadowkv", {{"chunk_tokens", chunk}, {"rank", "128"}, {"outlier_tokens", "16"}},
                            {330, 80, 32});
        for (std::size_t step = 0; step < run.steps().size(); ++step)
            for (int g = 0; g < MethodRun::kKvHeads; ++g) {
                std::vector<std::int32_t> all(std::size_t(run.position(step) + 1));
                std::iota(all.begin(), all.end(), 0);
                // Values are of size 1; keys went through 128 float32 products.
                EXPECT_LT(run.outputError(step, g, all), 2e-5);
            }
    }
}

struct ShadowReference {
    int chunk, rank, budget, outliers, local; // budget, outliers, local in chunks
};

class ShadowCheck {
public:
    ShadowCheck(const ShadowReference& want, unsigned seed, int promptTokens = 331, int steps = 90)
        : want_(want), run_("shadowkv",
                            {{"chunk_tokens", std::to_string(want.chunk)},
                             {"rank", std::to_string(want.rank)},
                             {"budget_tokens", std::to_string(want.budget * want.chunk)},
                             {"outlier_tokens", std::to_string(want.outliers * want.chunk)},
                             {"local_chunks", std::to_string(want.local)}},
                            {promptTokens, steps, seed}) {
        std::vector<double> gram(std::size_t(kWidth * kWidth), 0.0);
        for (int t = 0; t < run_.promptTokens(); ++t)
            for (int i = 0; i < kWidth; ++i)
                for (int j = 0; j < kWidth; ++j)
                    gram[std::size_t(i * kWidth + j)] += double(run_.plainK(t, 0)[i]) * double(run_.plainK(t, 0)[j]);
        basis_ = symmetricEigen(gram, kWidth).vectors; // the heads of a token lie side by side
    }

    void check() const {
        for (int g = 0; g < MethodRun::kKvHeads; ++g) {
            std::vector<std::vector<double>> rebuilt;
            for (int t = 0; t < run_.promptTokens(); ++t) rebuilt.push_back(rebuild(t, g));
            const int chunks = run_.promptTokens() / want_.chunk - want_.local;
            const std::set<std::int32_t> outliers = outliersOf(g, chunks);
            std::vector<std::int32_t> before;
            for (std::size_t step = 0; step < run_.steps().size(); ++step) {
                SCOPED_TRACE(testing::Message() << "step " << step << " head " << g);
                const int position = run_.position(step);
                const auto& head = run_.steps()[step].heads[std::size_t(g)];
                std::vector<std::int32_t> landmarks, chosen;
                for (int c = 0; c < chunks; ++c)
                    if (!outliers.count(c)) landmarks.push_back(c);
                for (std::size_t i = 0; i < head.units.size(); ++i) {
                    const bool isChosen = head.origins[i] == Origin::QueryAware;
                    if (isChosen) chosen.push_back(head.units[i]);
                    EXPECT_EQ(head.origins[i] == Origin::QueryAgnostic, outliers.count(head.units[i]) > 0);
                    const bool loaded =
                        isChosen && step > 0 && !std::count(before.begin(), before.end(), head.units[i]);
                    if (step > 0 || !isChosen) {
                        EXPECT_EQ(head.hit[i], loaded ? 0 : 1);
                    }
                }
                expectBest(chosen, landmarks, scores(position, g, landmarks), want_.budget, 1e-7);
                const int tail = (position + want_.chunk) / want_.chunk - chunks;
                EXPECT_EQ(int(head.units.size()), int(chosen.size() + outliers.size()) + tail)
                    << "and all that follows";
                expectOutput(step, g, chosen, outliers, chunks, rebuilt);
                before = chosen;
            }
        }
        for (const auto& step : run_.steps())
            EXPECT_EQ(step.layer.h2dBytes, std::int64_t(step.layer.misses) * want_.chunk * kDim * 4) << "values only";
    }

private:
    std::vector<double> rebuild(int t, int g) const {
        std::vector<float> key(kDim, 0.f);
        for (int r = 0; r < want_.rank; ++r) {
            const double* v = basis_.data() + r * kWidth;
            const double weight = std::inner_product(v, v + kWidth, run_.plainK(t, 0), 0.0);
            for (int c = 0; c < kDim; ++c) key[std::size_t(c)] += float(weight * v[g * kDim + c]);
        }
        return run_.rotated(key.data(), t);
    }

    std::vector<double> mean(int chunk, int g) const {
        std::vector<double> result(kDim, 0.0);
        for (int t = chunk * want_.chunk; t < (chunk + 1) * want_.chunk; ++t)
            for (int c = 0; c < kDim; ++c) result[std::size_t(c)] += double(run_.k(t, g)[c]) / want_.chunk;
        return result;
    }

    std::set<std::int32_t> outliersOf(int g, int chunks) const {
        std::vector<std::pair<double, std::int32_t>> order;
        for (int chunk = 0; chunk < chunks; ++chunk) {
            const auto landmark = mean(chunk, g);
            const double norm = std::sqrt(std::inner_product(landmark.begin(), landmark.end(), landmark.begin(), 0.0));
            double least = 1;
            for (int t = chunk * want_.chunk; t < (chunk + 1) * want_.chunk; ++t) {
                const float* k = run_.k(t, g);
                least = std::min(least, std::inner_product(landmark.begin(), landmark.end(), k, 0.0) / norm /
                                            std::sqrt(std::inner_product(k, k + kDim, k, 0.0)));
            }
            order.push_back({least, chunk});
        }
        std::sort(order.begin(), order.end());
        std::set<std::int32_t> result;
        for (int i = 0; i < want_.outliers; ++i) result.insert(order[std::size_t(i)].second);
        return result;
    }

    std::vector<double> scores(int position, int g, const std::vector<std::int32_t>& landmarks) const {
        std::vector<double> best(landmarks.size(), 0.0);
        for (int h = g * kGroup; h < (g + 1) * kGroup; ++h) {
            std::vector<double> p;
            for (const std::int32_t chunk : landmarks) {
                const auto landmark = mean(chunk, g);
                p.push_back(run_.scale() *
                            std::inner_product(landmark.begin(), landmark.end(), run_.q(position, h), 0.0));
            }
            p = test::softmax(p);
            for (std::size_t i = 0; i < p.size(); ++i) best[i] = std::max(best[i], p[i]);
        }
        return best;
    }

    void expectOutput(std::size_t step, int g, const std::vector<std::int32_t>& chosen,
                      const std::set<std::int32_t>& outliers, int chunks,
                      const std::vector<std::vector<double>>& rebuilt) const {
        const int position = run_.position(step);
        for (int h = g * kGroup; h < (g + 1) * kGroup; ++h) {
            std::vector<double> logits;
            std::vector<int> tokens;
            for (int t = 0; t <= position; ++t) {
                const int chunk = t / want_.chunk;
                const bool low = std::count(chosen.begin(), chosen.end(), chunk) > 0;
                if (!low && !outliers.count(chunk) && chunk < chunks) continue;
                tokens.push_back(t);
                const float* q = run_.q(position, h);
                logits.push_back(run_.scale() *
                                 (low ? std::inner_product(q, q + kDim, rebuilt[std::size_t(t)].begin(), 0.0)
                                      : std::inner_product(q, q + kDim, run_.k(t, g), 0.0)));
            }
            logits = test::softmax(logits);
            for (int c = 0; c < kDim; ++c) {
                double expected = 0;
                for (std::size_t i = 0; i < tokens.size(); ++i) expected += logits[i] * double(run_.v(tokens[i], g)[c]);
                EXPECT_NEAR(run_.steps()[step].heads[std::size_t(g)].out[std::size_t((h % kGroup) * kDim + c)],
                            expected, 2e-5);
            }
        }
    }

    const ShadowReference want_;
    const MethodRun run_;
    std::vector<double> basis_;
};

TEST(ShadowKv, RebuildsKeysAndFetchesTheValuesOfTheBestChunks) {
    ShadowCheck({8, 20, 10, 4, 4}, 33).check();
    ShadowCheck({16, 50, 5, 2, 1}, 34).check();
}

// The variants of the NOSA comparison: rank 40 at chunks of 8 and of 64 tokens.
TEST(ShadowKv, ChunksOf8AndOf64Tokens) {
    ShadowCheck({8, 40, 16, 6, 4}, 35, 420, 40).check();
    ShadowCheck({64, 40, 3, 1, 2}, 36, 650, 40).check();
}

// The repository stops at 128 generated tokens, the paper at 1024: here all are kept and attended.
TEST(ShadowKv, GeneratesBeyond1024Tokens) { ShadowCheck({8, 20, 10, 4, 4}, 37, 200, 1100).check(); }

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
