// InfiniGen's partial keys against float64.
#include "tests/kernels/cuda/device.h"

#include "kernels/cuda/methods/partial_keys.h"

namespace kvscope::cuda {
namespace KVSCOPE_TEST_FILE {

using namespace test;

TEST_F(CudaTest, GramOfTheGroupsMeanQueriesAddsUpOverChunks) {
    for (const auto& [dim, group] : {std::pair{64, 3}, {128, 4}}) {
        const AttentionShape shape{2 * group, 2, dim, 64};
        std::vector<double> want(std::size_t(2 * dim * dim), 0);
        const OnDevice<double> gram(want);
        for (const int tokens : {37, 8, 0, 1}) {
            const auto q = halves(std::size_t(tokens * 2 * group * dim));
            const OnDevice<Half> dq(q);
            addQueryGram(launch, {shape, dq.bf16(), tokens, gram.get()});
            check(cudaStreamSynchronize(launch.stream), "testing");
            std::vector<double> mean(static_cast<std::size_t>(dim));
            for (int token = 0; token < tokens; ++token)
                for (int g = 0; g < 2; ++g) {
                    for (int c = 0; c < dim; ++c) {
                        mean[std::size_t(c)] = 0;
                        for (int h = 0; h < group; ++h)
                            mean[std::size_t(c)] +=
                                double(toFloat(q[std::size_t(((token * 2 + g) * group + h) * dim + c)])) / group;
                    }
                    for (int a = 0; a < dim; ++a)
                        for (int b = 0; b < dim; ++b)
                            want[std::size_t((g * dim + a) * dim + b)] += mean[std::size_t(a)] * mean[std::size_t(b)];
                }
        }
        EXPECT_LT(relativeError(gram.read(), want), 1e-6) << "means are of float32, sums of float64";
    }
}

/// A prompt and then single tokens, two sequences of different length; one row rests.
TEST_F(CudaTest, PartialKeysAreKeptAndScored) {
    for (const auto& [dim, dims, bs, group] : {std::tuple{64, 20, 16, 3}, {128, 32, 64, 8}, {64, 64, 64, 1}}) {
        constexpr int kRows = 3, kKvHeads = 2, kHeads = kRows * kKvHeads;
        const int width = partialWidth(dims), maxBlocks = 12, prompt = 5 * bs - 3, room = maxBlocks * bs;
        const AttentionShape shape{kKvHeads * group, kKvHeads, dim, bs};
        const std::vector<std::uint8_t> active{1, 0, 1};
        std::vector<std::int64_t> first;
        for (int h = 0; h < kHeads; ++h) first.push_back(std::int64_t(h) * room);
        auto directions = floats(std::size_t(kHeads * dim * width), 0.3f);
        for (std::size_t i = 0; i < directions.size(); ++i)
            if (int(i % std::size_t(width)) >= dims) directions[i] = 0;
        const OnDevice<float> ddirections(directions);
        const OnDevice<Half> kept(std::size_t(kHeads * room * width));
        const OnDevice<std::int64_t> dfirst(first);
        const OnDevice<std::uint8_t> dactive(active);
        PartialKeys partial;
        partial.directions = ddirections.get();
        partial.keys = kept.bf16();
        partial.tokenFirst = dfirst.get();
        partial.width = width;
        std::vector<std::vector<double>> keys(static_cast<std::size_t>(kHeads)); // [token, width]
        const auto add = [&](int head, const Half* key) {
            for (int i = 0; i < width; ++i) {
                double sum = 0;
                for (int c = 0; c < dim; ++c)
                    sum += double(toFloat(key[c])) * double(directions[std::size_t((head * dim + c) * width + i)]);
                keys[std::size_t(head)].push_back(sum);
            }
        };
        const std::int64_t stride = std::int64_t(maxBlocks) * std::int64_t(blockElements(bs, dim));
        for (int s = 0; s < kRows; ++s) {
            const auto blocks = halves(std::size_t(kKvHeads) * std::size_t(stride));
            const OnDevice<Half> dblocks(blocks);
            keepPartialPrompt(launch, {shape, s, prompt, dblocks.bf16(), stride, partial});
            check(cudaStreamSynchronize(launch.stream), "testing");
            for (int g = 0; g < kKvHeads; ++g)
                for (int t = 0; t < prompt; ++t)
                    add(s * kKvHeads + g,
                        &blocks[std::size_t(g) * std::size_t(stride) + std::size_t(t / bs) * blockElements(bs, dim) +
                                std::size_t(t % bs * dim)]);
        }
        for (int step = 0; step < 6; ++step) { // opens a block on its way
            const int position = prompt + step;
            const std::vector<std::int32_t> positions(kRows, position);
            const auto q = halves(std::size_t(kHeads * group * dim)), newKey = halves(std::size_t(kHeads * dim));
            const OnDevice<std::int32_t> dposition(positions);
            const OnDevice<Half> dq(q), dkey(newKey);
            const OnDevice<float> scores(std::size_t(kHeads * maxBlocks));
            scorePartialKeys(
                launch, {shape, kRows, dposition.get(), dactive.get(), dq.bf16(), partial, maxBlocks, scores.get()});
            appendPartialKey(launch, {shape, kRows, dposition.get(), dactive.get(), dkey.bf16(), partial});
            check(cudaStreamSynchronize(launch.stream), "testing");
            const auto got = scores.read();
            for (int h = 0; h < kHeads; ++h) {
                if (active[std::size_t(h / kKvHeads)] == 0) {
                    EXPECT_TRUE(std::isnan(got[std::size_t(h * maxBlocks)])) << "an inactive row is left alone";
                    continue;
                }
                std::vector<double> query(std::size_t(width), 0);
                for (int i = 0; i < width; ++i)
                    for (int c = 0; c < dim; ++c)
                        for (int j = 0; j < group; ++j)
                            query[std::size_t(i)] += double(toFloat(q[std::size_t((h * group + j) * dim + c)])) *
                                                     double(directions[std::size_t((h * dim + c) * width + i)]);
                double size = 0;
                for (const double x : query) size += x * x;
                for (int b = 0; b <= position / bs; ++b) {
                    double best = -INFINITY;
                    for (int t = b * bs; t < std::min(position, (b + 1) * bs); ++t) {
                        double product = 0;
                        for (int i = 0; i < width; ++i)
                            product += query[std::size_t(i)] * keys[std::size_t(h)][std::size_t(t * width + i)];
                        best = std::max(best, product);
                    }
                    const double value = double(got[std::size_t(h * maxBlocks + b)]);
                    if (std::isinf(best)) {
                        EXPECT_EQ(value, best);
                    } else { // keys are kept in bf16: 2^-9 of each term, which add up like random numbers
                        EXPECT_NEAR(value, best, 0.01 * std::sqrt(size) * std::sqrt(double(dim)) * 0.3)
                            << "head " << h << ", block " << b;
                    }
                }
                add(h, &newKey[std::size_t(h * dim)]);
            }
        }
    }
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::cuda
