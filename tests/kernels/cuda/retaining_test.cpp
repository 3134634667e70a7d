// Locret's perceptron against float64, lists against those of the host, and tokens that stay whatever their score.
#include "tests/kernels/cuda/device.h"

#include "kernels/cuda/methods/retained_tokens.h"
#include "kernels/cuda/methods/retaining.h"

#include <algorithm>
#include <map>

namespace kvscope::cuda {
namespace KVSCOPE_TEST_FILE {

using namespace test;

class CudaRetaining : public CudaTest {};

TEST_F(CudaRetaining, ScoresAreThePerceptrons) {
    for (const auto& [n, inputs, width, kvHeads] : {std::tuple{1, 256, 100, 2}, {37, 768, 64, 8}, {9, 6144, 33, 12}}) {
        const auto rows = floats(std::size_t(n * inputs)), in = floats(std::size_t(width * inputs), 0.05f),
                   out = floats(std::size_t(kvHeads * width));
        const OnDevice<float> drows(rows), din(in), dout(out), hidden(std::size_t(n * width)),
            scores(std::size_t(kvHeads * (n + 3)));
        scoreRetaining(launch, {n, inputs, width, kvHeads, drows.get(), din.get(), dout.get(), hidden.get(),
                                scores.get(), 1, n + 3});
        check(cudaStreamSynchronize(launch.stream), "scoring");
        const auto all = scores.read();
        std::vector<float> got;
        std::vector<double> want;
        for (int i = 0; i < n; ++i) {
            std::vector<double> units;
            for (int u = 0; u < width; ++u) {
                double x = 0;
                for (int c = 0; c < inputs; ++c)
                    x += double(rows[std::size_t(i * inputs + c)]) * double(in[std::size_t(u * inputs + c)]);
                units.push_back(x / (1 + std::exp(-x)));
            }
            for (int g = 0; g < kvHeads; ++g) {
                double x = 0;
                for (int u = 0; u < width; ++u) x += units[std::size_t(u)] * double(out[std::size_t(g * width + u)]);
                want.push_back(x);
                got.push_back(all[std::size_t(g * (n + 3) + i)]);
            }
        }
        EXPECT_LT(relativeError(got, want), 1e-5); // float32 sums of up to 6144 products
        for (int g = 0; g < kvHeads; ++g) EXPECT_TRUE(std::isnan(all[std::size_t(g * (n + 3) + n)]));
    }
}

TEST_F(CudaRetaining, ListsGrowByTokensAndByPlaces) {
    const int lists = 3, capacity = 900;
    const OnDevice<std::int32_t> a(lists * capacity), aCount(lists), b(lists * capacity), bCount(lists);
    const TokenLists first{lists, capacity, a.get(), aCount.get()}, second{lists, capacity, b.get(), bCount.get()};
    const auto scores = floats(lists * 2000);
    const OnDevice<float> dscores(scores), gathered(lists * capacity);
    appendTokens(launch, first, 0, 1000, 300);
    appendTokens(launch, first, 300, 50, 500);
    appendTokens(launch, second, 0, 7, 4);
    appendPlaces(launch, second, 4, first, 250, 100);
    gatherScores(launch, second, 104, dscores.get(), 2000, gathered.get());
    check(cudaStreamSynchronize(launch.stream), "listing");
    const auto tokens = b.read(), counts = bCount.read();
    const auto got = gathered.read();
    EXPECT_EQ(aCount.read(), std::vector<std::int32_t>(lists, 800));
    EXPECT_EQ(counts, std::vector<std::int32_t>(lists, 104));
    for (int list = 0; list < lists; ++list)
        for (int i = 0; i < 104; ++i) {
            const int token = i < 4 ? 7 + i : i - 4 + 250 < 300 ? 1250 + i - 4 : 50 + (i - 4 - 50);
            ASSERT_EQ(tokens[std::size_t(list * capacity + i)], token) << i;
            ASSERT_EQ(got[std::size_t(list * capacity + i)], scores[std::size_t(list * 2000 + token)]);
        }
}

TEST_F(CudaRetaining, TheLatestTokensStayWhateverTheirScores) {
    const int capacity = 20, stays = 6, steps = 70, block = 16, dim = 64;
    const AttentionShape shape{2, 1, dim, block};
    const OnDevice<Half> packed(2 * blockElements(block, dim)), key(halves(dim)), value(halves(dim));
    const OnDevice<std::int32_t> tokens(capacity), count(std::vector<std::int32_t>{0}),
        freePlace(std::vector<std::int32_t>{-1});
    const OnDevice<float> scores(capacity);
    const OnDevice<std::uint8_t> attended(std::vector<std::uint8_t>{0});
    std::map<int, float> want;
    for (int step = 0; step < steps; ++step) {
        const float score = float(uniform(-4, 4));
        const OnDevice<float> newScore(std::vector<float>{score});
        const OnDevice<std::int32_t> position(std::vector<std::int32_t>{step});
        RetainTokenArgs args;
        args.shape = shape;
        args.rows = 1;
        args.position = position.get();
        args.newKey = key.bf16();
        args.newValue = value.bf16();
        args.newScores = newScore.get();
        args.stays = stays;
        args.retained = {capacity, 2,       packed.bf16(), tokens.get(),    scores.get(),
                         nullptr,  nullptr, count.get(),   freePlace.get(), attended.get()};
        retainToken(launch, args);
        check(cudaStreamSynchronize(launch.stream), "keeping");
        want[step] = score;
        if (int(want.size()) > capacity) {
            auto worst = want.begin();
            for (auto it = want.begin(); it->first <= step - stays; ++it)
                if (it->second <= worst->second) worst = it;
            want.erase(worst);
        }
        const auto got = tokens.read();
        std::vector<std::int32_t> kept(got.begin(), got.begin() + count.read()[0]), expected;
        std::sort(kept.begin(), kept.end());
        for (const auto& [token, ignored] : want) expected.push_back(token);
        ASSERT_EQ(kept, expected) << "step " << step;
    }
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::cuda
