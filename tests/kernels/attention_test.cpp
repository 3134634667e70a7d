// Attention, pooled-key scores and range bounds against double precision.
//
// Tolerances. A logit is a dot product of `dim` terms, a scale and a bias: its error is below
// (dim + 8) 2^-24 (scale sum |q k| + |bias|), call the largest of a row e. All weights exp(logit - max) then carry a
// relative error of at most 2 e plus a few roundings of exp, and summing T of them or T weighted values adds at most
// T 2^-24 of the sum of magnitudes. A mean of |v| weighted by the softmax therefore bounds the error of an output as
// (4 e + (2 T + 32) 2^-24) sum p |v|, and e + (T + 32) 2^-24 that of the log-sum-exp.
#include "base/error.h"
#include "tests/kernels/kernel_fixture.h"

#include <algorithm>
#include <array>
#include <deque>
#include <gmock/gmock.h>
#include <numeric>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using namespace kvscope::test;

constexpr std::array kGroups{1, 3, 8, 16, 64};
constexpr std::array kDims{16, 64, 128, 256};
constexpr std::array kBlockSizes{16, 32, 64, 128};

/// The keys and values of one KV head, token by token, and the same cut into blocks. What lies past the last token is
/// finite but enormous, so that any use of it would show.
class Cache {
public:
    Cache(std::mt19937& random, int tokenCount, int headDim, int blockTokens)
        : tokens(tokenCount), dim(headDim), blockSize(blockTokens),
          keys(randomFloats(random, std::size_t(tokenCount) * std::size_t(headDim))),
          values(randomFloats(random, std::size_t(tokenCount) * std::size_t(headDim))),
          bias(randomFloats(random, std::size_t(tokenCount), 2.f)) {
        for (int first = 0; first < tokens; first += blockSize) {
            const int held = std::min(blockSize, tokens - first);
            const auto floats = std::size_t(dim) * std::size_t(blockSize);
            std::vector<float>& k = memory_.emplace_back(floats, 1e15f);
            std::vector<float>& v = memory_.emplace_back(floats, -1e30f);
            std::vector<float>& b = memory_.emplace_back(std::size_t(blockSize), 1e20f);
            for (int t = 0; t < held; ++t) {
                for (int c = 0; c < dim; ++c) {
                    k[std::size_t(c * blockSize + t)] = keys[std::size_t((first + t) * dim + c)];
                    v[std::size_t(t * dim + c)] = values[std::size_t((first + t) * dim + c)];
                }
                b[std::size_t(t)] = bias[std::size_t(first + t)];
            }
            blocks.push_back({k.data(), v.data(), b.data(), held});
        }
    }
    Cache(const Cache&) = delete;
    Cache& operator=(const Cache&) = delete;

    int tokens, dim, blockSize;
    std::vector<float> keys, values, bias; // [tokens, dim], [tokens, dim], [tokens]
    std::vector<KvBlockView> blocks;

private:
    std::deque<std::vector<float>> memory_;
};

struct Reference {
    std::vector<double> out, tolerance; // [dim]
    double lse = 0, lseTolerance = 0;
};

/// One query head over the given tokens.
Reference attend(const float* q, const Cache& cache, const std::vector<int>& tokens, double scale, double biasScale) {
    std::vector<double> logits;
    double worst = 0;
    for (const int t : tokens) {
        double dot = 0, size = 0;
        for (int c = 0; c < cache.dim; ++c) {
            const double term = double(q[c]) * double(cache.keys[std::size_t(t * cache.dim + c)]);
            dot += term;
            size += std::abs(term);
        }
        const double bias = biasScale * double(cache.bias[std::size_t(t)]);
        logits.push_back(scale * dot + bias);
        worst = std::max(worst, (cache.dim + 8) * kRounding * (std::abs(scale) * size + std::abs(bias)));
    }
    const double top = *std::max_element(logits.begin(), logits.end());
    double sum = 0;
    for (double& logit : logits) sum += logit = std::exp(logit - top);
    Reference reference;
    reference.lse = top + std::log(sum);
    const auto count = double(tokens.size());
    reference.lseTolerance = worst + (count + 32 + std::abs(reference.lse)) * kRounding;
    reference.out.assign(std::size_t(cache.dim), 0.);
    std::vector<double> size = reference.out;
    for (std::size_t i = 0; i < tokens.size(); ++i)
        for (int c = 0; c < cache.dim; ++c) {
            const double term = logits[i] / sum * double(cache.values[std::size_t(tokens[i] * cache.dim + c)]);
            reference.out[std::size_t(c)] += term;
            size[std::size_t(c)] += std::abs(term);
        }
    for (const double s : size) reference.tolerance.push_back((4 * worst + (2 * count + 32) * kRounding) * s + 1e-30);
    return reference;
}

void expectNear(const float* out, const Reference& reference) {
    for (std::size_t c = 0; c < reference.out.size(); ++c)
        ASSERT_NEAR(double(out[c]), reference.out[c], reference.tolerance[c]) << "channel " << c;
}

std::vector<int> tokensOf(const Cache& cache, const std::vector<int>& blocks) {
    std::vector<int> tokens;
    for (const int b : blocks)
        for (int t = 0; t < cache.blocks[std::size_t(b)].tokens; ++t) tokens.push_back(b * cache.blockSize + t);
    return tokens;
}

/// Items with different block lists over one cache, and what they must give.
struct BlockCase {
    BlockCase(std::mt19937& random, int heads, int dim, int blockSize, std::vector<std::vector<int>> lists, int tokens,
              float biasFactor)
        : group(heads), qStride(dim + 3), outStride(dim + 2), cache(random, tokens, dim, blockSize),
          scale(1.f / std::sqrt(float(dim))), biasScale(biasFactor) {
        for (const auto& list : lists) {
            q.push_back(randomFloats(random, std::size_t(group * qStride), 2.f));
            views.emplace_back();
            for (const int b : list) views.back().push_back(cache.blocks[std::size_t(b)]);
            for (int h = 0; h < group; ++h)
                references.push_back(attend(q.back().data() + h * qStride, cache, tokensOf(cache, list), double(scale),
                                            double(biasScale)));
        }
    }

    /// Runs, checks every output and that nothing else was written. @return outputs and log-sum-exps
    std::vector<float> check(Kernels& kernels, bool withLse = true) const {
        const auto perItem = std::size_t(group * outStride);
        std::vector<float> out(perItem * q.size(), kSentinel), lse(std::size_t(group) * q.size(), kSentinel);
        std::vector<AttentionItem> items;
        for (std::size_t i = 0; i < q.size(); ++i)
            items.push_back({q[i].data(), views[i].data(), std::int32_t(views[i].size()), out.data() + i * perItem,
                             withLse ? lse.data() + i * std::size_t(group) : nullptr});
        AttentionArgs args;
        args.group = group;
        args.dim = cache.dim;
        args.blockSize = cache.blockSize;
        args.qStride = qStride;
        args.outStride = outStride;
        args.scale = scale;
        args.biasScale = biasScale;
        args.items = items;
        kernels.blockAttention(args);
        [&] {
            for (std::size_t row = 0; row < references.size(); ++row) {
                const float* at = out.data() + row * std::size_t(outStride);
                ASSERT_NO_FATAL_FAILURE(expectNear(at, references[row])) << "item and head " << row;
                for (int c = cache.dim; c < outStride; ++c) ASSERT_EQ(at[c], kSentinel) << "between two rows";
                if (withLse) {
                    ASSERT_NEAR(double(lse[row]), references[row].lse, references[row].lseTolerance)
                        << "item and head " << row;
                } else {
                    ASSERT_EQ(lse[row], kSentinel);
                }
            }
        }();
        out.insert(out.end(), lse.begin(), lse.end());
        return out;
    }

    int group, qStride, outStride;
    Cache cache;
    float scale, biasScale;
    std::vector<std::vector<float>> q;           // [item][group, dim]
    std::vector<std::vector<KvBlockView>> views; // [item][block]
    std::vector<Reference> references;           // [item, group]
};

std::string shapeName(int group, int dim, int blockSize) {
    return "group " + std::to_string(group) + ", dim " + std::to_string(dim) + ", blocks of " +
           std::to_string(blockSize);
}

TEST(BlockAttention, MatchesDoublePrecisionForEveryShapeWithAPartialLastBlock) {
    std::mt19937 random(41);
    for (const int group : kGroups)
        for (const int dim : kDims)
            for (const int blockSize : kBlockSizes) {
                SCOPED_TRACE(shapeName(group, dim, blockSize));
                const int tokens = 3 * blockSize + 1 + int(random() % unsigned(blockSize - 1));
                const float biasScale = random() % 2 ? 0.75f : 0.f;
                const BlockCase test(random, group, dim, blockSize, {{0, 2, 3}, {3}, {1}}, tokens, biasScale);
                onEveryInstructionSet([&] { test.check(*makeCpuKernels(1), group % 2 == 1); });
                if (HasFailure()) return;
            }
}

TEST(BlockAttention, IgnoresTheBiasAtScaleZeroAndManagesWithoutOne) {
    std::mt19937 random(43);
    for (const float biasScale : {0.f, 1.f, -2.5f}) {
        BlockCase test(random, 3, 64, 32, {{0, 1, 2}, {2, 0}}, 75, biasScale);
        if (biasScale == 0.f)
            for (auto& list : test.views)
                for (auto& view : list) view.bias = nullptr;
        onEveryInstructionSet([&] { test.check(*makeCpuKernels(2)); });
    }
}

TEST(BlockAttention, TreatsABlockWithoutBiasAsZeroBias) {
    std::mt19937 random(47);
    BlockCase with(random, 2, 32, 16, {{0, 1}}, 30, 1.f);
    std::vector<float> zeros(16, 0.f);
    for (auto& view : with.views[0]) view.bias = zeros.data();
    std::fill(with.cache.bias.begin(), with.cache.bias.end(), 0.f);
    for (std::size_t h = 0; h < 2; ++h)
        with.references[h] = attend(with.q[0].data() + std::ptrdiff_t(h) * with.qStride, with.cache,
                                    tokensOf(with.cache, {0, 1}), double(with.scale), 1.);
    const std::vector<float> explicitZero = with.check(*makeCpuKernels(1));
    for (auto& view : with.views[0]) view.bias = nullptr;
    EXPECT_EQ(with.check(*makeCpuKernels(1)), explicitZero);
}

TEST(BlockAttention, GivesTheSameWhenManyBlocksAreSplitOverThreads) {
    std::mt19937 random(53);
    for (const auto& [group, blocks] : {std::pair{1, 200}, std::pair{8, 49}, std::pair{16, 97}, std::pair{64, 33}}) {
        SCOPED_TRACE(std::to_string(blocks) + " blocks");
        std::vector<int> list(static_cast<std::size_t>(blocks));
        for (int b = 0; b < blocks; ++b) list[std::size_t(b)] = b;
        std::shuffle(list.begin(), list.end(), random);
        const BlockCase test(random, group, 64, 16, {list}, blocks * 16 - 5, 0.5f);
        onEveryInstructionSet([&] {
            for (const int threads : {1, 2, 3, 5}) {
                const auto kernels = makeCpuKernels(threads);
                const std::vector<float> first = test.check(*kernels);
                ASSERT_EQ(test.check(*kernels), first) << "bitwise repeatable, " << threads << " threads";
            }
        });
    }
}

TEST(BlockAttention, SplitsItemsOfVeryDifferentLengths) {
    std::mt19937 random(59);
    std::vector<int> all(80);
    for (int b = 0; b < 80; ++b) all[std::size_t(b)] = b;
    const BlockCase test(random, 4, 32, 16, {all, {79}, {5, 6}}, 80 * 16 - 3, 1.f); // fewer blocks than parts
    onEveryInstructionSet([&] {
        for (const int threads : {1, 3, 8}) test.check(*makeCpuKernels(threads));
    });
}

TEST(BlockAttention, SurvivesLogitsFarApart) {
    // One key wins by hundreds: the others must vanish without a trace of NaN or overflow.
    constexpr int kDim = 16, kBlock = 16, kBlocks = 2500; // long enough to be done in several parts even on one thread
    std::vector<float> keys(kDim * kBlock, 0.f), values(kBlock * kDim, 1.f), winner(kDim * kBlock, 0.f),
        best(kBlock * kDim, 7.f), q(kDim, 0.f), out(kDim);
    q[0] = 1.f;
    for (int t = 0; t < kBlock; ++t) keys[std::size_t(t)] = -2000.f + float(t);
    for (int t = 0; t < kBlock; ++t) winner[std::size_t(t)] = t == 3 ? 3000.f : -3000.f;
    for (const int place : {0, 17, 1024, kBlocks - 1}) {
        std::vector<KvBlockView> blocks(kBlocks, {keys.data(), values.data(), nullptr, kBlock});
        blocks[std::size_t(place)] = {winner.data(), best.data(), nullptr, kBlock};
        onEveryInstructionSet([&] {
            for (const int threads : {1, 3}) {
                float lse = 0;
                const AttentionItem item{q.data(), blocks.data(), kBlocks, out.data(), &lse};
                makeCpuKernels(threads)->blockAttention({1, kDim, kBlock, kDim, kDim, 1.f, 0.f, {&item, 1}});
                EXPECT_THAT(out, ::testing::Each(7.f));
                EXPECT_EQ(lse, 3000.f);
            }
        });
    }
}

TEST(BlockAttention, GivesBlocksAtMinusInfinityNoWeight) {
    // A bias of minus infinity removes a token; whole blocks of it must not turn the others into NaN, wherever the work
    // is cut into parts.
    std::mt19937 random(60);
    constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
    std::vector<int> seen, all(90);
    std::iota(all.begin(), all.end(), 0);
    for (const int b : all)
        if (b >= 40 && b % 5 != 0) seen.push_back(b); // the first parts see nothing at all
    BlockCase test(random, 3, 32, 16, {all}, 90 * 16, 1.f);
    const std::vector<float> gone(16, kMinusInfinity);
    for (const int b : all)
        if (!std::binary_search(seen.begin(), seen.end(), b)) test.views[0][std::size_t(b)].bias = gone.data();
    for (std::size_t h = 0; h < 3; ++h)
        test.references[h] = attend(test.q[0].data() + std::ptrdiff_t(h) * test.qStride, test.cache,
                                    tokensOf(test.cache, seen), double(test.scale), 1.);
    onEveryInstructionSet([&] {
        for (const int threads : {1, 3, 5}) test.check(*makeCpuKernels(threads));
    });

    // The same through the chunked path: the last token attends to all blocks.
    std::vector<float> out(3 * 32);
    const KvBlockView* blocks = test.views[0].data();
    std::vector<float> q;
    for (int h = 0; h < 3; ++h)
        q.insert(q.end(), test.q[0].begin() + h * test.qStride, test.q[0].begin() + h * test.qStride + 32);
    onEveryInstructionSet([&] {
        makeCpuKernels(1)->prefillAttention(
            {q.data(), 1, 3 * 32, 90 * 16 - 1, 1, 3, 32, 16, &blocks, test.scale, 1.f, out.data(), 3 * 32});
        for (int h = 0; h < 3; ++h) expectNear(out.data() + h * 32, test.references[std::size_t(h)]);
    });
}

TEST(BlockAttention, RejectsShapesOutsideItsLimits) {
    const auto kernels = makeCpuKernels(1);
    std::vector<float> memory(64 * 1024, 0.f), out(64 * 1024, kSentinel);
    const KvBlockView block{memory.data(), memory.data(), nullptr, 1};
    const auto run = [&](int group, int dim, int blockSize, int blocks) {
        const AttentionItem item{memory.data(), &block, blocks, out.data(), nullptr};
        kernels->blockAttention({group, dim, blockSize, dim, dim, 1.f, 0.f, {&item, 1}});
    };
    for (const int group : {-1, 0, 129}) EXPECT_THROW(run(group, 64, 64, 1), Error) << group;
    for (const int dim : {-8, 0, 1025, 4096}) EXPECT_THROW(run(1, dim, 64, 1), Error) << dim;
    for (const int blockSize : {0, 1, 8, 40, 272}) EXPECT_THROW(run(1, 64, blockSize, 1), Error) << blockSize;
    EXPECT_THROW(run(1, 64, 64, 0), Error);
    for (const int tokens : {-1, 0, 65, 1 << 30}) {
        const KvBlockView views[] = {block, {memory.data(), memory.data(), nullptr, tokens}};
        const AttentionItem item{memory.data(), views, 2, out.data(), nullptr};
        EXPECT_THROW(kernels->blockAttention({1, 64, 64, 64, 64, 1.f, 0.f, {&item, 1}}), Error) << tokens;
    }
    try {
        run(1, 1030, 64, 1);
        FAIL() << "no error";
    } catch (const Error& error) {
        EXPECT_EQ(error.kind, ErrorKind::BadInput);
        EXPECT_THAT(oneLine(error), ::testing::HasSubstr("1030 dimensions")) << "the message names the number";
    }
    EXPECT_THAT(out, ::testing::Each(kSentinel));
    kernels->blockAttention({}); // no items: nothing to check, nothing to do
}

struct PrefillShape {
    int group, dim, blockSize, kvHeads, firstPosition, n;
};

void checkPrefill(const PrefillShape& shape, float biasScale, const std::vector<int>& threadCounts) {
    SCOPED_TRACE(shapeName(shape.group, shape.dim, shape.blockSize) + ", first position " +
                 std::to_string(shape.firstPosition) + ", " + std::to_string(shape.n) + " tokens");
    std::mt19937 random(unsigned(shape.group * 1000 + shape.dim + shape.firstPosition * 7 + shape.n));
    const int tokens = shape.firstPosition + shape.n, heads = shape.kvHeads * shape.group;
    const int qStride = heads * shape.dim + 5, outStride = heads * shape.dim + 7;
    const float scale = 1.f / std::sqrt(float(shape.dim));
    std::deque<Cache> caches;
    std::vector<const KvBlockView*> blocks;
    for (int g = 0; g < shape.kvHeads; ++g) {
        caches.emplace_back(random, tokens, shape.dim, shape.blockSize);
        if (biasScale == 0.f)
            for (auto& view : caches.back().blocks) view.bias = nullptr;
        blocks.push_back(caches.back().blocks.data());
    }
    const std::vector<float> q = randomFloats(random, std::size_t(shape.n) * std::size_t(qStride), 2.f);
    std::vector<Reference> references;
    for (int i = 0; i < shape.n; ++i) {
        std::vector<int> visible(std::size_t(shape.firstPosition + i) + 1);
        for (std::size_t t = 0; t < visible.size(); ++t) visible[t] = int(t);
        for (int head = 0; head < heads; ++head)
            references.push_back(attend(q.data() + i * qStride + head * shape.dim,
                                        caches[std::size_t(head / shape.group)], visible, double(scale),
                                        double(biasScale)));
    }
    onEveryInstructionSet([&] {
        for (const int threads : threadCounts) {
            std::vector<float> out(std::size_t(shape.n) * std::size_t(outStride), kSentinel);
            PrefillAttentionArgs args;
            args.q = q.data();
            args.n = shape.n;
            args.qStride = qStride;
            args.firstPosition = shape.firstPosition;
            args.kvHeads = shape.kvHeads;
            args.group = shape.group;
            args.dim = shape.dim;
            args.blockSize = shape.blockSize;
            args.blocks = blocks.data();
            args.scale = scale;
            args.biasScale = biasScale;
            args.out = out.data();
            args.outStride = outStride;
            makeCpuKernels(threads)->prefillAttention(args);
            for (int i = 0; i < shape.n; ++i) {
                const float* row = out.data() + i * outStride;
                for (int head = 0; head < heads; ++head)
                    ASSERT_NO_FATAL_FAILURE(
                        expectNear(row + head * shape.dim, references[std::size_t(i * heads + head)]))
                        << "token " << i << " head " << head << ", " << threads << " threads";
                for (int c = heads * shape.dim; c < outStride; ++c) ASSERT_EQ(row[c], kSentinel) << "between two rows";
            }
        }
    });
}

TEST(PrefillAttention, MatchesDoublePrecisionForEveryShape) {
    for (const int group : kGroups)
        for (const int dim : kDims)
            for (const int blockSize : kBlockSizes) {
                const int n = group == 64 || dim == 256 ? 7 : 23;
                checkPrefill({group, dim, blockSize, 1, blockSize + 5, n}, dim == 64 ? 0.f : 0.5f, {1});
                if (HasFailure()) return;
            }
}

TEST(PrefillAttention, StartsAndEndsAnywhere) {
    for (const int firstPosition : {0, 1, 15, 16, 17, 31, 37, 64, 100})
        for (const int n : {1, 2, 16, 17, 61, 131}) {
            checkPrefill({3, 16, 16, 2, firstPosition, n}, 1.f, {1, 3});
            if (HasFailure()) return;
        }
}

TEST(PrefillAttention, AgreesWithBlockAttentionTokenByToken) {
    std::mt19937 random(61);
    constexpr int kGroup = 4, kDim = 32, kBlock = 32, kTokens = 77;
    const Cache cache(random, kTokens, kDim, kBlock);
    const std::vector<float> q = randomFloats(random, kTokens * kGroup * kDim);
    std::vector<float> together(q.size()), alone(kGroup * kDim);
    const KvBlockView* blocks = cache.blocks.data();
    const auto kernels = makeCpuKernels(2);
    kernels->prefillAttention({q.data(), kTokens, kGroup * kDim, 0, 1, kGroup, kDim, kBlock, &blocks, 0.2f, 1.f,
                               together.data(), kGroup * kDim});
    for (int i = 0; i < kTokens; ++i) {
        std::vector<KvBlockView> views(cache.blocks.begin(), cache.blocks.begin() + i / kBlock + 1);
        views.back().tokens = i % kBlock + 1;
        const AttentionItem item{q.data() + i * kGroup * kDim, views.data(), std::int32_t(views.size()), alone.data(),
                                 nullptr};
        kernels->blockAttention({kGroup, kDim, kBlock, kDim, kDim, 0.2f, 1.f, {&item, 1}});
        for (int at = 0; at < kGroup * kDim; ++at)
            ASSERT_NEAR(together[std::size_t(i * kGroup * kDim + at)], alone[std::size_t(at)], 2e-6f) << "token " << i;
    }
}

TEST(PrefillAttention, RejectsShapesOutsideItsLimitsAndIgnoresAnEmptyChunk) {
    const auto kernels = makeCpuKernels(1);
    std::vector<float> memory(64 * 1024, 0.f);
    const KvBlockView block{memory.data(), memory.data(), nullptr, 1};
    const KvBlockView* blocks = &block;
    const auto run = [&](int n, int group, int dim, int blockSize) {
        kernels->prefillAttention(
            {memory.data(), n, 4096, 0, 1, group, dim, blockSize, &blocks, 1.f, 0.f, memory.data() + 32 * 1024, 4096});
    };
    EXPECT_THROW(run(1, 0, 64, 64), Error);
    EXPECT_THROW(run(1, 129, 64, 64), Error);
    EXPECT_THROW(run(1, 1, 0, 64), Error);
    EXPECT_THROW(run(1, 1, 1032, 64), Error);
    EXPECT_THROW(run(1, 1, 64, 20), Error);
    EXPECT_THROW(run(1, 1, 64, 512), Error);
    EXPECT_NO_THROW(run(0, 1, 64, 64));
}

TEST(GroupScores, AreSumsOfSoftmaxesOverTheVisibleWindows) {
    std::mt19937 random(67);
    for (const int group : kGroups)
        for (const int dim : kDims)
            for (const int tile : kBlockSizes) {
                SCOPED_TRACE(shapeName(group, dim, tile));
                const float scale = 1.5f / std::sqrt(float(dim));
                const int qStride = dim + 4;
                // Items see different numbers of windows of the same pooled keys.
                const int windows[] = {0, 1, tile - 1, tile, 2 * tile + 1 + int(random() % unsigned(tile - 1))};
                const Cache cache(random, windows[4], dim, tile);
                std::vector<const float*> tiles;
                for (const auto& view : cache.blocks) tiles.push_back(view.keys);
                std::vector<std::vector<float>> q;
                std::vector<std::vector<double>> expected, tolerance;
                for (const int visible : windows) {
                    q.push_back(randomFloats(random, std::size_t(group * qStride), 2.f));
                    expected.emplace_back(std::size_t(visible), 0.);
                    tolerance.emplace_back(std::size_t(visible), 0.);
                    for (int h = 0; h < group && visible > 0; ++h) {
                        std::vector<double> weights;
                        double worst = 0, sum = 0;
                        for (int w = 0; w < visible; ++w) {
                            double dot = 0, size = 0;
                            for (int c = 0; c < dim; ++c) {
                                const double term = double(q.back()[std::size_t(h * qStride + c)]) *
                                                    double(cache.keys[std::size_t(w * dim + c)]);
                                dot += term;
                                size += std::abs(term);
                            }
                            weights.push_back(double(scale) * dot);
                            worst = std::max(worst, (dim + 8) * kRounding * double(scale) * size);
                        }
                        const double top = *std::max_element(weights.begin(), weights.end());
                        for (double& weight : weights) sum += weight = std::exp(weight - top);
                        for (int w = 0; w < visible; ++w) {
                            const double p = weights[std::size_t(w)] / sum;
                            expected.back()[std::size_t(w)] += p;
                            tolerance.back()[std::size_t(w)] +=
                                p * (4 * worst + (visible + group + 32) * kRounding) + 1e-30;
                        }
                    }
                }
                onEveryInstructionSet([&] {
                    std::vector<std::vector<float>> scores;
                    std::vector<GroupScoreItem> items;
                    for (const int visible : windows) scores.emplace_back(std::size_t(visible) + 1, kSentinel);
                    for (std::size_t i = 0; i < std::size(windows); ++i)
                        items.push_back({q[i].data(), tiles.data(), windows[i], scores[i].data()});
                    makeCpuKernels(dim == 64 ? 3 : 1)->groupScores({group, dim, tile, qStride, scale, items});
                    for (std::size_t i = 0; i < std::size(windows); ++i) {
                        ASSERT_EQ(scores[i].back(), kSentinel) << "past the last visible window";
                        double total = 0;
                        for (std::size_t w = 0; w < expected[i].size(); ++w) {
                            ASSERT_NEAR(double(scores[i][w]), expected[i][w], tolerance[i][w])
                                << windows[i] << " windows, window " << w;
                            total += double(scores[i][w]);
                        }
                        if (windows[i] > 0) {
                            ASSERT_NEAR(total, double(group), group * (windows[i] + group + 32) * kRounding);
                        }
                    }
                });
                if (HasFailure()) return;
            }
}

TEST(GroupScores, RejectShapesOutsideTheirLimits) {
    const auto kernels = makeCpuKernels(1);
    std::vector<float> memory(4096, 0.f);
    const float* tile = memory.data();
    const GroupScoreItem item{memory.data(), &tile, 1, memory.data() + 2048};
    EXPECT_THROW(kernels->groupScores({0, 16, 16, 16, 1.f, {&item, 1}}), Error);
    EXPECT_THROW(kernels->groupScores({129, 16, 16, 16, 1.f, {&item, 1}}), Error);
    EXPECT_THROW(kernels->groupScores({1, 1025, 16, 16, 1.f, {&item, 1}}), Error);
    EXPECT_THROW(kernels->groupScores({1, 16, 24, 16, 1.f, {&item, 1}}), Error);
    EXPECT_NO_THROW(kernels->groupScores({}));
}

TEST(RangeBound, MatchesDoublePrecisionAndBoundsEveryKeyOfTheBlock) {
    std::mt19937 random(71);
    for (const int group : kGroups)
        for (const int dim : {16, 20, 64, 128, 256})
            for (const GroupReduce reduce : {GroupReduce::Sum, GroupReduce::Max}) {
                SCOPED_TRACE(shapeName(group, dim, 32));
                constexpr int kBlock = 32, kBlocks = 5;
                const int qStride = dim + 1;
                const std::vector<float> keys = randomFloats(random, std::size_t(kBlocks * kBlock * dim)),
                                         q = randomFloats(random, std::size_t(group * qStride));
                std::vector<float> ranges;
                for (int b = 0; b < kBlocks; ++b)
                    for (const bool high : {false, true})
                        for (int c = 0; c < dim; ++c) {
                            float edge = keys[std::size_t(b * kBlock * dim + c)];
                            for (int t = 1; t < kBlock; ++t) {
                                const float key = keys[std::size_t((b * kBlock + t) * dim + c)];
                                edge = high ? std::max(edge, key) : std::min(edge, key);
                            }
                            ranges.push_back(edge);
                        }
                onEveryInstructionSet([&] {
                    std::vector<float> scores(2 * kBlocks + 1, kSentinel);
                    const RangeBoundItem items[] = {{q.data(), ranges.data(), kBlocks, scores.data()},
                                                    {q.data(), ranges.data(), 0, nullptr},
                                                    {q.data(), ranges.data(), kBlocks, scores.data() + kBlocks}};
                    makeCpuKernels(3)->rangeBound({group, dim, qStride, reduce, items});
                    ASSERT_EQ(scores.back(), kSentinel);
                    for (int b = 0; b < kBlocks; ++b) {
                        double bound = 0, size = 0, most = -1e300;
                        for (int h = 0; h < group; ++h) {
                            double sum = 0;
                            for (int c = 0; c < dim; ++c) {
                                const double value = double(q[std::size_t(h * qStride + c)]);
                                const double term =
                                    std::max(value * double(ranges[std::size_t(b * 2 * dim + c)]),
                                             value * double(ranges[std::size_t((b * 2 + 1) * dim + c)]));
                                sum += term;
                                size += std::abs(term);
                            }
                            bound += sum;
                            most = std::max(most, sum);
                        }
                        const double expected = reduce == GroupReduce::Sum ? bound : most,
                                     tolerance = (dim + group + 8) * kRounding * size;
                        ASSERT_NEAR(double(scores[std::size_t(b)]), expected, tolerance) << "block " << b;
                        ASSERT_EQ(scores[std::size_t(b)], scores[std::size_t(kBlocks + b)]);
                        for (int t = 0; t < kBlock; ++t) {
                            double total = 0, best = -1e300;
                            for (int h = 0; h < group; ++h) {
                                double dot = 0;
                                for (int c = 0; c < dim; ++c)
                                    dot += double(q[std::size_t(h * qStride + c)]) *
                                           double(keys[std::size_t((b * kBlock + t) * dim + c)]);
                                total += dot;
                                best = std::max(best, dot);
                            }
                            ASSERT_GE(double(scores[std::size_t(b)]) + tolerance,
                                      reduce == GroupReduce::Sum ? total : best)
                                << "block " << b << " token " << t;
                        }
                    }
                });
                if (HasFailure()) return;
            }
}

TEST(RangeBound, GivesTheSameForManyBlocksAsOneByOne) {
    std::mt19937 random(79);
    constexpr int kGroup = 3, kDim = 64;
    for (const int blocks : {255, 256, 257, 1000}) {
        const std::vector<float> ranges = randomFloats(random, std::size_t(blocks * 2 * kDim)),
                                 q = randomFloats(random, kGroup * kDim);
        std::vector<float> alone(std::size_t(blocks), kSentinel);
        const auto one = makeCpuKernels(1);
        for (int b = 0; b < blocks; ++b) {
            const RangeBoundItem item{q.data(), ranges.data() + b * 2 * kDim, 1, alone.data() + b};
            one->rangeBound({kGroup, kDim, kDim, GroupReduce::Sum, {&item, 1}});
        }
        for (const int threads : {1, 2, 3}) {
            std::vector<float> scores(std::size_t(blocks) + 301, kSentinel);
            const RangeBoundItem items[] = {{q.data(), ranges.data(), blocks, scores.data()},
                                            {q.data(), ranges.data(), 0, nullptr},
                                            {q.data(), ranges.data(), 200, scores.data() + blocks + 1}};
            makeCpuKernels(threads)->rangeBound({kGroup, kDim, kDim, GroupReduce::Sum, items});
            for (int b = 0; b < blocks; ++b) ASSERT_EQ(scores[std::size_t(b)], alone[std::size_t(b)]) << b;
            for (int b = 0; b < 200; ++b) ASSERT_EQ(scores[std::size_t(blocks + 1 + b)], alone[std::size_t(b)]) << b;
            ASSERT_EQ(scores[std::size_t(blocks)], kSentinel);
            ASSERT_EQ(scores[std::size_t(blocks) + 201], kSentinel);
        }
    }
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
