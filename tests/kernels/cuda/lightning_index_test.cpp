// The keys, queries and scores of a lightning indexer against float64.
#include "kernels/cuda/methods/lightning_index.h"

#include "tests/kernels/cuda/device.h"

namespace kvscope::cuda {
namespace KVSCOPE_TEST_FILE {

using namespace test;

constexpr int kAngles = 64, kTableRows = 1000;

struct LightningShape {
    int heads, dim, rotated;
    bool interleaved;
};
void PrintTo(const LightningShape& s, std::ostream* out) {
    *out << s.heads << " heads of " << s.dim << ", " << s.rotated << " channels rotated, "
         << (s.interleaved ? "neighbours" : "halves");
}

/// Three sequences with room for 48, 900 and 80 tokens.
class LightningIndexOnDevice : public CudaTest, public ::testing::WithParamInterface<LightningShape> {
protected:
    LightningIndex indexOf(const OnDevice<std::int64_t>& first, const OnDevice<Half>& keys) const {
        return {s_.heads, s_.dim, first.get(), keys.bf16()};
    }
    std::size_t keyOf(int sequence, int token) const {
        return std::size_t((kFirst[std::size_t(sequence)] + token) * s_.dim);
    }
    const std::vector<std::int64_t> kFirst{0, 48, 948};
    static constexpr int kTokens = 1028;
    const LightningShape s_ = GetParam();
};

/// x with its first channels rotated by the angles of this row of the tables.
std::vector<double> rotatedHead(std::vector<double> x, const LightningShape& s, const float* cos, const float* sin) {
    const std::vector<double> first(x.begin(), x.begin() + s.rotated),
        turned = rotatedPairs(first, cos, sin, s.interleaved);
    std::copy(turned.begin(), turned.end(), x.begin());
    return x;
}

TEST_P(LightningIndexOnDevice, NormsRotatesAndRoundsWhatIsProjected) {
    const std::vector<std::int32_t> ropeFirst{90, 0, 800};
    const auto before = halves(std::size_t(kTokens * s_.dim));
    for (const bool prompt : {false, true})
        for (const bool asks : {true, false}) {
            SCOPED_TRACE(::testing::Message() << (prompt ? "tokens of one sequence" : "one token of each sequence")
                                              << (asks ? ", keys and queries" : ", keys"));
            const std::vector<std::int32_t> position =
                prompt ? std::vector<std::int32_t>{896, 897, 898, 899} : std::vector<std::int32_t>{7, 77, 50};
            const int n = int(position.size()), width = s_.heads * s_.dim;
            const std::vector<std::uint8_t> active{1, 0, 1};
            const auto key = floats(std::size_t(n * s_.dim), 3), query = floats(std::size_t(n * width)),
                       norm = floats(std::size_t(s_.dim)), shift = floats(std::size_t(s_.dim)),
                       cosines = floats(std::size_t(kTableRows * kAngles)),
                       sines = floats(std::size_t(kTableRows * kAngles));
            const OnDevice<float> dkey(key), dquery(query), dnorm(norm), dshift(shift), dcos(cosines), dsin(sines);
            const OnDevice<std::int32_t> dposition(position), dropeFirst(ropeFirst);
            const OnDevice<std::uint8_t> dactive(active);
            const OnDevice<std::int64_t> dfirst(kFirst);
            const OnDevice<Half> keys(before), queries(std::size_t(n * width));
            LightningPlaceArgs a;
            a.index = indexOf(dfirst, keys);
            a.tokens = {n, dposition.get(), prompt ? nullptr : dactive.get(), prompt, prompt ? 1 : 0};
            a.key = dkey.get();
            a.query = asks ? dquery.get() : nullptr;
            a.keyNorm = dnorm.get();
            a.keyShift = dshift.get();
            a.eps = 1e-6f;
            a.rotated = s_.rotated;
            a.interleaved = s_.interleaved;
            a.cos = dcos.get();
            a.sin = dsin.get();
            a.angles = kAngles;
            a.ropeFirst = dropeFirst.get();
            a.queries = queries.bf16();
            placeInLightningIndex(launch, a);
            check(cudaStreamSynchronize(launch.stream), "testing");
            const auto gotKeys = keys.read(), gotQueries = queries.read();
            std::vector<bool> written(gotKeys.size());
            for (int i = 0; i < n; ++i) {
                const int sequence = prompt ? 1 : i, at = position[std::size_t(i)];
                const bool skipped = !prompt && active[std::size_t(i)] == 0;
                const std::size_t row = std::size_t(ropeFirst[std::size_t(sequence)] + at) * kAngles;
                for (int h = 0; h < s_.heads; ++h) {
                    const std::size_t from = std::size_t(i * width + h * s_.dim);
                    if (skipped || !asks) {
                        ASSERT_EQ(gotQueries[from], 0xffff) << "nobody asks for it";
                        continue;
                    }
                    const std::vector<double> plain(query.begin() + std::ptrdiff_t(from),
                                                    query.begin() + std::ptrdiff_t(from) + s_.dim),
                        want = rotatedHead(plain, s_, &cosines[row], &sines[row]);
                    for (int c = 0; c < s_.dim; ++c)
                        ASSERT_NEAR(double(toFloat(gotQueries[from + std::size_t(c)])), want[std::size_t(c)],
                                    4e-3 * std::abs(want[std::size_t(c)]) + 1e-5)
                            << "token " << i << ", head " << h << ", channel " << c;
                }
                if (skipped) continue;
                const float* const x = &key[std::size_t(i * s_.dim)];
                double mean = 0, variance = 0;
                for (int c = 0; c < s_.dim; ++c) mean += double(x[c]) / s_.dim;
                for (int c = 0; c < s_.dim; ++c) variance += (double(x[c]) - mean) * (double(x[c]) - mean) / s_.dim;
                std::vector<double> normed;
                for (std::size_t c = 0; c < std::size_t(s_.dim); ++c)
                    normed.push_back((double(x[c]) - mean) / std::sqrt(variance + 1e-6) * double(norm[c]) +
                                     double(shift[c]));
                const std::vector<double> want = rotatedHead(normed, s_, &cosines[row], &sines[row]);
                for (std::size_t c = 0; c < want.size(); ++c) {
                    written[keyOf(sequence, at) + c] = true;
                    ASSERT_NEAR(double(toFloat(gotKeys[keyOf(sequence, at) + c])), want[c],
                                4e-3 * std::abs(want[c]) + 1e-4)
                        << "key of token " << i << ", channel " << c;
                }
            }
            for (std::size_t i = 0; i < gotKeys.size(); ++i)
                if (!written[i]) {
                    ASSERT_EQ(gotKeys[i], before[i]) << "the keys of other tokens are left alone";
                }
        }
}

TEST_P(LightningIndexOnDevice, ScoresEveryTokenUpToTheQuerys) {
    const int stride = 907;
    for (const bool prompt : {false, true}) {
        SCOPED_TRACE(prompt ? "tokens of one sequence" : "one token of each sequence");
        std::vector<std::int32_t> position{47, 640, 79};
        if (prompt) {
            position = {0, 1, 15, 16, 63, 64, 65, 300};
            for (int token = 700; token < 900; ++token) position.push_back(token); // each thread block takes many keys
        }
        const int n = int(position.size());
        const std::vector<std::uint8_t> active{1, 1, 0};
        const auto queries = halves(std::size_t(n * s_.heads * s_.dim)), keys = halves(std::size_t(kTokens * s_.dim));
        const auto weights = floats(std::size_t(n * s_.heads));
        const OnDevice<Half> dqueries(queries), dkeys(keys);
        const OnDevice<float> dweights(weights), scores(std::size_t(n * stride));
        const OnDevice<std::int32_t> dposition(position);
        const OnDevice<std::uint8_t> dactive(active);
        const OnDevice<std::int64_t> dfirst(kFirst);
        LightningScoreArgs a;
        a.index = indexOf(dfirst, dkeys);
        a.tokens = {n, dposition.get(), prompt ? nullptr : dactive.get(), prompt, prompt ? 1 : 0};
        a.queries = dqueries.bf16();
        a.weights = dweights.get();
        a.scale = 0.037f;
        a.maxTokens = 900;
        a.scores = scores.get();
        a.stride = stride;
        scoreTokensByIndex(launch, a);
        check(cudaStreamSynchronize(launch.stream), "testing");
        const auto got = scores.read();
        for (int i = 0; i < n; i += i < 8 ? 1 : 13)
            for (int t = 0; t < stride; ++t) {
                const float score = got[std::size_t(i * stride + t)];
                const int sequence = prompt ? 1 : i;
                if (t > position[std::size_t(i)] || (!prompt && active[std::size_t(i)] == 0)) {
                    std::uint32_t bits = 0;
                    std::memcpy(&bits, &score, 4);
                    ASSERT_EQ(bits, 0xffffffffu) << "query " << i << ", token " << t << " is left alone";
                    continue;
                }
                double sum = 0, size = 0;
                for (int h = 0; h < s_.heads; ++h) {
                    double product = 0, products = 0;
                    for (int c = 0; c < s_.dim; ++c) {
                        const double one = double(toFloat(queries[std::size_t((i * s_.heads + h) * s_.dim + c)])) *
                                           double(toFloat(keys[keyOf(sequence, t) + std::size_t(c)]));
                        product += one, products += std::abs(one);
                    }
                    const double weight = double(weights[std::size_t(i * s_.heads + h)]) * double(a.scale);
                    sum += weight * std::max(0.0, product);
                    size += std::abs(weight) * products;
                }
                ASSERT_NEAR(double(score), sum, 4e-6 * size) << "query " << i << ", token " << t;
            }
    }
}

/// Heads that fill no tile of eight, more than are multiplied together, and widths of both kinds in shared memory.
INSTANTIATE_TEST_SUITE_P(Shapes, LightningIndexOnDevice,
                         ::testing::Values(LightningShape{1, 32, 32, false}, LightningShape{4, 64, 32, true},
                                           LightningShape{12, 96, 64, true}, LightningShape{64, 128, 64, false},
                                           LightningShape{72, 64, 64, false}, LightningShape{3, 256, 32, true}));

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::cuda
