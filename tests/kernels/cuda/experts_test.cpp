// The choice of experts on the GPU against a plain reading of the rule, and what surrounds it against float64.
#include "kernels/cuda/linear/experts.h"
#include "kernels/cuda/linear/packed.h"
#include "tests/kernels/cuda/device.h"

#include <algorithm>
#include <numeric>

namespace kvscope::cuda {
namespace KVSCOPE_TEST_FILE {

using namespace test;

using CudaExperts = CudaTest;

struct Choice {
    std::vector<int> experts;            // best first
    std::vector<double> scores, ranking; // of all experts
    double factor = 1;                   // weight = factor * score
};

Choice chooseAsTold(const ExpertRule& rule, const float* logits, const float* bias) {
    const auto count = std::size_t(rule.count);
    std::vector<double> scores(count), ranking(count);
    double sum = 0;
    for (std::size_t e = 0; e < count; ++e)
        sum += scores[e] = rule.sigmoid ? 1 / (1 + std::exp(-double(logits[e]))) : std::exp(double(logits[e]));
    for (std::size_t e = 0; e < count; ++e) {
        if (!rule.sigmoid) scores[e] /= sum;
        ranking[e] = scores[e] + (bias != nullptr ? double(bias[e]) : 0.);
    }
    const std::size_t size = count / std::size_t(rule.groups);
    if (rule.groupsUsed < rule.groups) {
        std::vector<std::pair<double, int>> groups;
        for (std::size_t g = 0; g < std::size_t(rule.groups); ++g) {
            std::vector<double> sorted(ranking.begin() + std::ptrdiff_t(g * size),
                                       ranking.begin() + std::ptrdiff_t((g + 1) * size));
            std::sort(sorted.rbegin(), sorted.rend());
            groups.emplace_back(-(rule.bestTwo && size > 1 ? sorted[0] + sorted[1] : sorted[0]), int(g));
        }
        std::sort(groups.begin(), groups.end());
        for (std::size_t i = std::size_t(rule.groupsUsed); i < groups.size(); ++i)
            for (std::size_t k = 0; k < size; ++k) ranking[std::size_t(groups[i].second) * size + k] = -INFINITY;
    }
    std::vector<int> order(count);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int a, int b) { return ranking[std::size_t(a)] > ranking[std::size_t(b)]; });
    Choice choice;
    double chosenSum = 0;
    for (int i = 0; i < rule.used; ++i) {
        choice.experts.push_back(order[std::size_t(i)]);
        chosenSum += scores[std::size_t(order[std::size_t(i)])];
    }
    choice.factor = rule.normalise ? double(rule.scale) / chosenSum : double(rule.scale);
    choice.scores = scores;
    choice.ranking = ranking;
    return choice;
}

TEST_F(CudaExperts, ChoosesByTheRuleAndListsEveryExpertsTokens) {
    const ExpertRule rules[] = {{8, 2},
                                {64, 6, 1, 1, false, false, false, 1.f},
                                {128, 8, 1, 1, false, false, true, 1.f},
                                {160, 6, 8, 3, false, false, false, 16.f},
                                {256, 8, 8, 4, true, true, true, 2.5f},
                                {6, 3, 3, 2, true, false, true, 1.8f},
                                {5, 5, 1, 1, true, true, false, 1.f}};
    for (const ExpertRule& rule : rules)
        for (const int n : {1, 3, 70})
            for (const bool biased : {false, true}) {
                SCOPED_TRACE(::testing::Message() << rule.used << " of " << rule.count << ", " << n << " tokens");
                const int stride = rule.count + 1, capacity = n + 2;
                const auto logits = floats(std::size_t(n * stride)), bias = floats(std::size_t(rule.count), 0.1f);
                const OnDevice<float> dlogits(logits), dbias(bias), weights(std::size_t(n * rule.used));
                const OnDevice<std::int32_t> chosen(std::size_t(n * rule.used)), counts(std::size_t(rule.count)),
                    pairs(std::size_t(rule.count * capacity));
                ChooseArgs args;
                args.rule = rule;
                args.n = n;
                args.stride = stride;
                args.logits = dlogits.get();
                args.choiceBias = biased ? dbias.get() : nullptr;
                args.chosen = chosen.get();
                args.weights = weights.get();
                args.counts = counts.get();
                args.pairs = pairs.get();
                args.capacity = capacity;
                chooseExpertsOnDevice(launch, args);
                check(cudaStreamSynchronize(launch.stream), "testing");
                const auto gotChosen = chosen.read(), gotCounts = counts.read(), gotPairs = pairs.read();
                const auto gotWeights = weights.read();
                std::vector<std::vector<std::int32_t>> lists(std::size_t(rule.count));
                for (int token = 0; token < n; ++token) {
                    const Choice want =
                        chooseAsTold(rule, &logits[std::size_t(token * stride)], biased ? bias.data() : nullptr);
                    for (int i = 0; i < rule.used; ++i) {
                        const std::int32_t pair = token * rule.used + i;
                        const auto got = std::size_t(gotChosen[std::size_t(pair)]);
                        ASSERT_LT(got, std::size_t(rule.count));
                        // Another one of a score that float32 cannot tell apart would do as well.
                        if (int(got) != want.experts[std::size_t(i)]) {
                            ASSERT_NEAR(want.ranking[got], want.ranking[std::size_t(want.experts[std::size_t(i)])],
                                        1e-6)
                                << "token " << token << ", choice " << i;
                        }
                        ASSERT_NEAR(double(gotWeights[std::size_t(pair)]), want.factor * want.scores[got],
                                    1e-5 * want.factor * want.scores[got]);
                        lists[got].push_back(pair);
                    }
                }
                for (int e = 0; e < rule.count; ++e) {
                    const auto& list = lists[std::size_t(e)];
                    ASSERT_EQ(gotCounts[std::size_t(e)], int(list.size())) << "expert " << e;
                    EXPECT_TRUE(std::equal(list.begin(), list.end(), gotPairs.begin() + e * capacity))
                        << "expert " << e;
                }
            }
}

TEST_F(CudaExperts, EqualAndMissingScoresStillGiveDifferentExperts) {
    const ExpertRule rule{8, 3};
    std::vector<float> logits(16, 1.f);
    std::fill_n(logits.begin() + 8, 8, NAN);
    const OnDevice<float> dlogits(logits), weights(6);
    const OnDevice<std::int32_t> chosen(6), counts(8), pairs(16);
    ChooseArgs args;
    args.rule = rule;
    args.n = 2;
    args.stride = 8;
    args.logits = dlogits.get();
    args.chosen = chosen.get();
    args.weights = weights.get();
    args.counts = counts.get();
    args.pairs = pairs.get();
    args.capacity = 2;
    chooseExpertsOnDevice(launch, args);
    check(cudaStreamSynchronize(launch.stream), "testing");
    EXPECT_EQ(chosen.read(), (std::vector<std::int32_t>{0, 1, 2, 0, 1, 2}));
}

TEST_F(CudaExperts, RoutesNormedTokensAndAddsTheResults) {
    for (const int n : {1, 5, 40, 67}) {
        SCOPED_TRACE(n);
        const int hidden = 260, rows = 13, used = 3;
        const auto x = floats(std::size_t(n * hidden)), norm = floats(std::size_t(hidden)),
                   router = floats(std::size_t(rows * hidden), 0.1f), results = floats(std::size_t(n * used * hidden)),
                   weights = floats(std::size_t(n * used)), shared = floats(std::size_t(n * hidden));
        const OnDevice<float> dx(x), dn(norm), dr(router), logits(std::size_t(n * rows)), dresults(results),
            dweights(weights), dshared(shared);
        routeTokens(launch, {dx.get(), n, hidden, {dn.get(), 1e-5f}, dr.get(), rows, logits.get()});
        const auto plain = OnDevice<float>(x);
        combineExperts(launch, {dx.get(), n, hidden, used, dresults.get(), dweights.get(), dshared.get(),
                                logits.get() + rows - 1, rows});
        combineExperts(launch, {plain.get(), n, hidden, used, dresults.get(), dweights.get(), nullptr, nullptr, 0});
        check(cudaStreamSynchronize(launch.stream), "testing");
        std::vector<double> want, sums, sumsPlain;
        for (int i = 0; i < n; ++i) {
            double squares = 0;
            for (int c = 0; c < hidden; ++c) squares += std::pow(double(x[std::size_t(i * hidden + c)]), 2);
            for (int e = 0; e < rows; ++e) {
                double dot = 0;
                for (int c = 0; c < hidden; ++c)
                    dot += double(x[std::size_t(i * hidden + c)]) * double(norm[std::size_t(c)]) *
                           double(router[std::size_t(e * hidden + c)]);
                want.push_back(dot / std::sqrt(squares / hidden + 1e-5));
            }
            const double gate = 1 / (1 + std::exp(-want.back()));
            for (int c = 0; c < hidden; ++c) {
                double sum = double(x[std::size_t(i * hidden + c)]);
                for (int k = 0; k < used; ++k)
                    sum += double(weights[std::size_t(i * used + k)]) *
                           double(results[std::size_t((i * used + k) * hidden + c)]);
                sumsPlain.push_back(sum);
                sums.push_back(sum + gate * double(shared[std::size_t(i * hidden + c)]));
            }
        }
        EXPECT_LT(relativeError(logits.read(), want), 1e-5);
        EXPECT_LT(relativeError(dx.read(), sums), 1e-5);
        EXPECT_LT(relativeError(plain.read(), sumsPlain), 1e-6);
    }
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::cuda
