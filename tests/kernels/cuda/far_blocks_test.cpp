// Blocks beyond a local window against float64: attention received, representatives, fixed-distance queries, choice and
// the joined attention (methods 9.8).
#include "tests/kernels/cuda/device.h"

#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/choice/select.h"
#include "kernels/cuda/methods/far_blocks.h"

#include <algorithm>
#include <map>
#include <numeric>

namespace kvscope::cuda {
namespace {

using namespace test;

struct FarCase {
    int dim, kvHeads, group, size, local, prompt, chunk, steps;
    bool biased, normed, interleaved = false;
};
void PrintTo(const FarCase& c, std::ostream* out) {
    *out << "dim " << c.dim << ", group " << c.group << ", block " << c.size << ", local " << c.local << ", prompt "
         << c.prompt;
}

class CudaFarBlocks : public CudaTest, public ::testing::WithParamInterface<FarCase> {
protected:
    int firstLocal(int position) const { return std::max(0, position + 1 - GetParam().local) / GetParam().size; }
};

/// One sequence with resident blocks: a prompt in chunks, then steps; every product of the kernels on the way.
TEST_P(CudaFarBlocks, AgreeWithFloat64OverAPromptAndManySteps) {
    const FarCase c = GetParam();
    const AttentionShape shape{c.kvHeads * c.group, c.kvHeads, c.dim, c.size};
    const int heads = shape.queryHeads, tokens = c.prompt + c.steps, maxBlocks = (tokens + c.size - 1) / c.size,
              localBlocks = (c.local + c.size - 1) / c.size + 1, ring = localBlocks * c.size, init = 1, topk = 3,
              capacity = init + localBlocks + topk, half = c.dim / 2, width = (heads + 2 * c.kvHeads) * c.dim,
              representatives = 4;
    const std::size_t element = blockElements(c.size, c.dim);
    const float scale = 1.f / std::sqrt(float(c.dim)), biasScale = c.biased ? 0.7f : 0.f, eps = 1e-5f;

    // Rotated and plain keys are unrelated numbers here: each kernel must take the right ones.
    std::vector<float> qkv = floats(std::size_t(tokens) * std::size_t(width));
    const auto q = halves(std::size_t(tokens * heads * c.dim)), k = halves(std::size_t(tokens * c.kvHeads * c.dim)),
               v = halves(std::size_t(tokens * c.kvHeads * c.dim));
    const auto bias = floats(std::size_t(c.kvHeads * maxBlocks * c.size)), queryNorm = floats(std::size_t(c.dim)),
               keyNorm = floats(std::size_t(c.dim)), cos = floats(std::size_t(tokens * half)),
               sin = floats(std::size_t(tokens * half));
    const auto at = [&](const std::vector<Half>& of, int token, int head, int all) {
        return of.data() + std::size_t((token * all + head) * c.dim);
    };
    const auto dot = [&](const Half* a, const Half* b) {
        double sum = 0;
        for (int i = 0; i < c.dim; ++i) sum += double(toFloat(a[i])) * double(toFloat(b[i]));
        return sum;
    };
    const auto logit = [&](int query, int h, int key) {
        const int g = h / c.group;
        return double(scale) * dot(at(q, query, h, heads), at(k, key, g, c.kvHeads)) +
               double(biasScale) * double(bias[std::size_t(g * maxBlocks * c.size + key)]);
    };

    std::vector<Half> blocks(std::size_t(c.kvHeads * maxBlocks) * element, 0);
    for (int t = 0; t < tokens; ++t)
        for (int g = 0; g < c.kvHeads; ++g)
            for (int i = 0; i < c.dim; ++i) {
                Half* block = blocks.data() + std::size_t(g * maxBlocks + t / c.size) * element;
                block[t % c.size * c.dim + i] = at(k, t, g, c.kvHeads)[i];
                block[c.size * c.dim + i * c.size + t % c.size] = at(v, t, g, c.kvHeads)[i];
            }
    const OnDevice<Half> dblocks(blocks), dq(q);
    const OnDevice<float> dqkv(qkv), dbias(bias), dcos(cos), dsin(sin), dqueryNorm(queryNorm), dkeyNorm(keyNorm);
    std::vector<std::int64_t> first, biasFirst;
    for (int g = 0; g < c.kvHeads; ++g) {
        first.push_back(std::int64_t(g) * maxBlocks);
        biasFirst.push_back(std::int64_t(g) * maxBlocks * c.size);
    }
    const OnDevice<std::int64_t> dfirst(first), dbiasFirst(biasFirst);
    const OnDevice<Half> plainRing(std::size_t(c.kvHeads * ring * c.dim)),
        blockKeys(std::size_t(c.kvHeads * maxBlocks * c.group * c.dim)),
        promptKeys(std::size_t(c.kvHeads * c.prompt * c.dim));
    const OnDevice<float> massRing(std::size_t(heads * ring)), sums(std::size_t(heads * c.chunk)),
        promptMass(std::vector<float>(std::size_t(heads * c.prompt), 0.f));
    const FarMemory memory{shape,          c.local,          ring,        representatives, plainRing.bf16(),
                           massRing.get(), blockKeys.bf16(), dfirst.get()};

    // ---- The prompt
    for (int begin = 0; begin < c.prompt; begin += c.chunk) {
        FarPromptArgs a;
        a.memory = memory;
        a.first = begin;
        a.n = std::min(c.chunk, c.prompt - begin);
        a.qkv = dqkv.get() + std::size_t(begin) * std::size_t(width);
        a.q = dq.bf16() + std::size_t(begin * heads * c.dim);
        a.blocks = dblocks.bf16();
        a.headStride = std::int64_t(std::size_t(maxBlocks) * element);
        a.tokenBias = dbias.get();
        a.biasStride = maxBlocks * c.size;
        a.scale = scale;
        a.biasScale = biasScale;
        a.promptTokens = c.prompt;
        a.plainKeys = promptKeys.bf16();
        a.mass = promptMass.get();
        a.logSums = sums.get();
        readFarPrompt(launch, a);
    }
    ASSERT_EQ(cudaStreamSynchronize(launch.stream), cudaSuccess);
    std::vector<std::vector<double>> mass(std::size_t(heads), std::vector<double>(std::size_t(tokens), 0.0));
    const auto receive = [&](int query, int h) {
        const int begin = firstLocal(query) * c.size;
        std::vector<double> p;
        double total = 0;
        for (int key = begin; key <= query; ++key) p.push_back(std::exp(logit(query, h, key))), total += p.back();
        for (int key = begin; key <= query; ++key)
            mass[std::size_t(h)][std::size_t(key)] += p[std::size_t(key - begin)] / total;
    };
    for (int t = 0; t < c.prompt; ++t)
        for (int h = 0; h < heads; ++h) receive(t, h);
    const auto gotMass = promptMass.read();
    for (int h = 0; h < heads; ++h)
        for (int t = 0; t < c.prompt; ++t) // sums of up to some hundred probabilities in float32
            EXPECT_NEAR(gotMass[std::size_t(h * c.prompt + t)], mass[std::size_t(h)][std::size_t(t)],
                        1e-4 * (1 + mass[std::size_t(h)][std::size_t(t)]))
                << "head " << h << " token " << t;

    // ---- What a block is known by: the mean plain key of the tokens with most mass.
    std::vector<Half> plain(std::size_t(tokens * c.kvHeads * c.dim));
    const auto inverseNorm = [&](int token, int head) {
        double sum = 0;
        const float* x = qkv.data() + std::size_t(token) * std::size_t(width) + head * c.dim;
        for (int i = 0; i < c.dim; ++i) sum += double(x[i]) * double(x[i]);
        return 1 / std::sqrt(sum / c.dim + double(eps));
    };
    for (int t = 0; t < tokens; ++t)
        for (int g = 0; g < c.kvHeads; ++g)
            for (int i = 0; i < c.dim; ++i) {
                const int column = (heads + g) * c.dim + i;
                const float x = qkv[std::size_t(t) * std::size_t(width) + std::size_t(column)];
                const bool norm = c.normed && t >= c.prompt; // a prompt's were normalised before
                plain[std::size_t((t * c.kvHeads + g) * c.dim + i)] =
                    toBf16(norm ? float(double(x) * inverseNorm(t, heads + g) * double(keyNorm[std::size_t(i)])) : x);
            }
    const auto expectBlock = [&](int block, const std::vector<Half>& gotKeys, const std::vector<Half>& stored,
                                 const auto& massOf) {
        for (int h = 0; h < heads; ++h) {
            const int g = h / c.group;
            std::vector<int> order(static_cast<std::size_t>(c.size));
            std::iota(order.begin(), order.end(), block * c.size);
            std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return massOf(h, a) > massOf(h, b); });
            for (int i = 0; i < c.dim; ++i) {
                double mean = 0;
                for (int r = 0; r < representatives; ++r)
                    mean += double(toFloat(at(plain, order[std::size_t(r)], g, c.kvHeads)[i])) / representatives;
                const std::size_t place =
                    (std::size_t(g * maxBlocks + block) * std::size_t(c.group) + std::size_t(h % c.group)) *
                        std::size_t(c.dim) +
                    std::size_t(i);
                EXPECT_NEAR(toFloat(gotKeys[place]), mean, 0x1p-7 * (std::abs(mean) + 0.01)) << "block " << block;
            }
        }
        for (int g = 0; g < c.kvHeads; ++g)
            for (int t = 0; t < c.size; ++t)
                for (int i = 0; i < c.dim; ++i)
                    // the norm's sum is taken in another order: one step of bf16
                    EXPECT_NEAR(
                        toFloat(stored[std::size_t(g * maxBlocks + block) * element + std::size_t(t * c.dim + i)]),
                        toFloat(at(plain, block * c.size + t, g, c.kvHeads)[i]),
                        0x1p-7 * std::abs(toFloat(at(plain, block * c.size + t, g, c.kvHeads)[i])) + 1e-6);
    };
    FarSettleArgs settle;
    settle.memory = memory;
    settle.tokens = c.prompt;
    settle.plainKeys = promptKeys.bf16();
    settle.mass = promptMass.get();
    settle.blocks = dblocks.bf16();
    settle.headStride = std::int64_t(std::size_t(maxBlocks) * element);
    settleFarPrompt(launch, settle);
    ASSERT_EQ(cudaStreamSynchronize(launch.stream), cudaSuccess);
    for (int block = 0; block < firstLocal(c.prompt - 1); ++block)
        expectBlock(block, blockKeys.read(), dblocks.read(),
                    [&](int h, int t) { return gotMass[std::size_t(h * c.prompt + t)]; });

    // ---- Steps
    const OnDevice<std::uint8_t> active(std::vector<std::uint8_t>{1});
    const OnDevice<std::int32_t> ropeFirst(std::vector<std::int32_t>{0}), maxTokens(std::vector<std::int32_t>{tokens});
    const OnDevice<Half> farQ(std::size_t(heads * c.dim)), farOut(std::size_t(heads * c.dim)),
        out(std::size_t(heads * c.dim));
    const OnDevice<float> scores(std::size_t(c.kvHeads * maxBlocks)), chosenScores(std::size_t(c.kvHeads * capacity)),
        nearSums(static_cast<std::size_t>(heads)), farSums(static_cast<std::size_t>(heads));
    const OnDevice<PackedBlock> chosen(std::size_t(c.kvHeads * capacity));
    const OnDevice<std::uint32_t> replaced(1);
    const OnDevice<std::int32_t> chosenCount(static_cast<std::size_t>(c.kvHeads)),
        farCount(static_cast<std::size_t>(c.kvHeads));
    const OnDevice<float> partial(std::max<std::size_t>(1, attentionPartialFloats(launch, shape, 1, maxBlocks)));
    const OnDevice<std::uint32_t> arrivals(std::vector<std::uint32_t>(attentionArrivals(shape, 1), 0));
    for (int position = c.prompt; position < tokens; ++position) {
        SCOPED_TRACE(position);
        const OnDevice<std::int32_t> dposition(std::vector<std::int32_t>{position});
        const auto massBefore = massRing.read();
        FarAppendArgs append;
        append.memory = memory;
        append.rows = 1;
        append.position = dposition.get();
        append.active = active.get();
        append.qkv = dqkv.get() + std::size_t(position) * std::size_t(width);
        if (c.normed) append.norms = {dqueryNorm.get(), dkeyNorm.get(), eps};
        append.cos = dcos.get();
        append.sin = dsin.get();
        append.ropeFirst = ropeFirst.get();
        append.interleaved = c.interleaved;
        append.maxTokens = maxTokens.get();
        append.blocks = dblocks.bf16();
        append.farQ = farQ.bf16();
        append.replaced = replaced.get();
        appendToFarMemory(launch, append);
        FarChoiceArgs choice;
        choice.memory = memory;
        choice.rows = 1;
        choice.shared = c.kvHeads;
        choice.initBlocks = init;
        choice.topk = topk;
        choice.maxBlocks = maxBlocks;
        choice.capacity = capacity;
        choice.position = dposition.get();
        choice.active = active.get();
        choice.farQ = farQ.bf16();
        choice.scores = scores.get();
        choice.chosen = chosen.get();
        choice.chosenCount = chosenCount.get();
        choice.farCount = farCount.get();
        choice.chosenScores = chosenScores.get();
        chooseFarBlocks(launch, choice);
        ASSERT_EQ(cudaStreamSynchronize(launch.stream), cudaSuccess);

        const int local = firstLocal(position);
        const bool leaves = local > firstLocal(position - 1);
        EXPECT_EQ(replaced.read()[0], leaves ? std::uint32_t(c.kvHeads) : 0u);
        if (leaves)
            expectBlock(local - 1, blockKeys.read(), dblocks.read(),
                        [&](int h, int t) { return massBefore[std::size_t(h * ring + t % ring)]; });
        const auto gotQ = farQ.read();
        const int row = std::min(c.local, tokens - 1);
        for (int h = 0; h < heads; ++h)
            for (int i = 0; i < half; ++i) {
                const float* x = qkv.data() + std::size_t(position) * std::size_t(width) + h * c.dim;
                const int low = c.interleaved ? 2 * i : i, high = c.interleaved ? 2 * i + 1 : i + half;
                double a = double(x[low]), b = double(x[high]);
                if (c.normed) {
                    a *= inverseNorm(position, h) * double(queryNorm[std::size_t(low)]);
                    b *= inverseNorm(position, h) * double(queryNorm[std::size_t(high)]);
                }
                const double u = double(cos[std::size_t(row * half + i)]), w = double(sin[std::size_t(row * half + i)]);
                const double size = std::abs(a * u) + std::abs(b * w) + std::abs(b * u) + std::abs(a * w);
                EXPECT_NEAR(toFloat(gotQ[std::size_t(h * c.dim + low)]), a * u - b * w, 0x1p-8 * size + 1e-5);
                EXPECT_NEAR(toFloat(gotQ[std::size_t(h * c.dim + high)]), b * u + a * w, 0x1p-8 * size + 1e-5);
            }
        // The choice, from the device's own representatives.
        const auto keys = blockKeys.read();
        std::vector<double> want(std::size_t(maxBlocks), 0.0);
        const auto gotScores = scores.read();
        for (int b = init; b < local; ++b) {
            for (int h = 0; h < heads; ++h)
                want[std::size_t(b)] +=
                    dot(gotQ.data() + h * c.dim,
                        keys.data() + (std::size_t(h / c.group * maxBlocks + b) * std::size_t(c.group) +
                                       std::size_t(h % c.group)) *
                                          std::size_t(c.dim));
            EXPECT_NEAR(gotScores[std::size_t(b)], want[std::size_t(b)], 1e-3 * c.dim);
        }
        std::vector<int> order, expected;
        for (int b = init; b < local; ++b) order.push_back(b);
        std::stable_sort(order.begin(), order.end(),
                         [&](int a, int b) { return gotScores[std::size_t(a)] > gotScores[std::size_t(b)]; });
        for (int b = 0; b < std::min(init, local); ++b) expected.push_back(b);
        for (int i = 0; i < std::min(topk, int(order.size())); ++i) expected.push_back(order[std::size_t(i)]);
        const int far = int(expected.size());
        for (int b = local; b <= position / c.size; ++b) expected.push_back(b);
        std::sort(expected.begin(), expected.end());
        std::vector<std::int32_t> list(std::size_t(c.kvHeads * capacity), 0);
        for (int g = 0; g < c.kvHeads; ++g) {
            ASSERT_EQ(chosenCount.read()[std::size_t(g)], int(expected.size()));
            ASSERT_EQ(farCount.read()[std::size_t(g)], far);
            for (std::size_t i = 0; i < expected.size(); ++i) {
                const std::size_t place = std::size_t(g * capacity) + i;
                list[place] = chosen.read()[place].id();
                EXPECT_EQ(list[place], expected[i]);
            }
        }
        // The attention in two parts.
        const OnDevice<std::int32_t> dlist(list);
        DecodeAttentionArgs attend;
        attend.shape = shape;
        attend.rows = 1;
        attend.position = dposition.get();
        attend.active = active.get();
        attend.q = dq.bf16() + std::size_t(position * heads * c.dim);
        attend.blocks = dblocks.bf16();
        attend.headFirst = dfirst.get();
        attend.listBlock = dlist.get();
        attend.listCount = chosenCount.get();
        attend.listFirst = farCount.get();
        attend.capacity = capacity;
        attend.maxBlocks = localBlocks;
        attend.tokenBias = dbias.get();
        attend.biasFirst = dbiasFirst.get();
        attend.scale = scale;
        attend.biasScale = biasScale;
        attend.out = out.bf16();
        attend.logSums = nearSums.get();
        attend.partial = partial.get();
        attend.arrivals = arrivals.get();
        decodeAttention(launch, attend);
        DecodeAttentionArgs beyond = attend;
        beyond.q = farQ.bf16();
        beyond.listCount = farCount.get();
        beyond.listFirst = nullptr;
        beyond.out = farOut.bf16();
        beyond.logSums = farSums.get();
        beyond.maxBlocks = init + topk;
        decodeAttention(launch, beyond);
        FarMergeArgs merge;
        merge.memory = memory;
        merge.rows = 1;
        merge.position = dposition.get();
        merge.active = active.get();
        merge.q = attend.q;
        merge.blocks = dblocks.bf16();
        merge.headFirst = dfirst.get();
        merge.listBlock = dlist.get();
        merge.listCount = chosenCount.get();
        merge.farCount = farCount.get();
        merge.capacity = capacity;
        merge.localBlocks = localBlocks;
        merge.tokenBias = dbias.get();
        merge.biasFirst = dbiasFirst.get();
        merge.scale = scale;
        merge.biasScale = biasScale;
        merge.nearLogSums = nearSums.get();
        merge.farLogSums = farSums.get();
        merge.farOut = farOut.bf16();
        merge.out = out.bf16();
        mergeFarAttention(launch, merge);
        FarRankArgs rank; // as if every block lay in the slot of its number
        rank.merged = merge;
        rank.merged.listSlot = dlist.get();
        rank.shared = c.kvHeads;
        rank.initBlocks = init;
        rank.farQ = farQ.bf16();
        rank.slots = maxBlocks;
        constexpr float kUsesPerDoubling[] = {20, 44328}; // the second: a decay of 0.999, before the first step
        std::vector<std::vector<std::int32_t>> gotUses;
        for (const float usesPerDoubling : kUsesPerDoubling) {
            const OnDevice<std::int32_t> uses(std::vector<std::int32_t>(std::size_t(c.kvHeads * maxBlocks), -7));
            rank.usesPerDoubling = usesPerDoubling;
            rank.lastUse = uses.get();
            rankFarBlocks(launch, rank);
            ASSERT_EQ(cudaStreamSynchronize(launch.stream), cudaSuccess);
            gotUses.push_back(uses.read());
        }
        std::map<int, double> worth; // of a block: the attention of all heads
        const auto got = out.read();
        const auto massAfter = massRing.read();
        for (int h = 0; h < heads; ++h) {
            const int g = h / c.group;
            std::vector<double> weights, result(std::size_t(c.dim), 0.0);
            double total = 0;
            std::map<int, double> ofBlock;
            for (const int b : expected)
                for (int t = b * c.size; t <= std::min(position, (b + 1) * c.size - 1); ++t) {
                    const double l =
                        b >= local ? logit(position, h, t)
                                   : double(scale) * dot(gotQ.data() + h * c.dim, at(plain, t, g, c.kvHeads)) +
                                         double(biasScale) * double(bias[std::size_t(g * maxBlocks * c.size + t)]);
                    const double weight = std::exp(l);
                    total += weight;
                    ofBlock[b] += weight;
                    for (int i = 0; i < c.dim; ++i)
                        result[std::size_t(i)] += weight * double(toFloat(at(v, t, g, c.kvHeads)[i]));
                }
            for (double& value : result) value /= total;
            for (const auto& [b, weight] : ofBlock) worth[b] += weight / total;
            std::vector<float> mine;
            for (int i = 0; i < c.dim; ++i) mine.push_back(toFloat(got[std::size_t(h * c.dim + i)]));
            EXPECT_LT(relativeError(mine, result), 1.5e-2) << "two roundings to bf16, probabilities in bf16";
            const auto before = mass[std::size_t(h)];
            receive(position, h);
            for (int t = local * c.size; t <= position; ++t) {
                const double wanted = mass[std::size_t(h)][std::size_t(t)];
                EXPECT_NEAR(massAfter[std::size_t(h * ring + t % ring)], wanted, 2e-4 * (1 + wanted)) << "token " << t;
            }
        }
        for (std::size_t i = 0; i < gotUses.size(); ++i)
            for (int place = 0; place < c.kvHeads * maxBlocks; ++place) {
                const std::int32_t use = gotUses[i][std::size_t(place)];
                const int b = place % maxBlocks;
                if (worth.count(b) == 0) {
                    EXPECT_EQ(use, -7) << "not listed";
                } else if (b < init || b >= local) {
                    EXPECT_EQ(use, 0) << "never cached";
                } else {
                    const double each = double(kUsesPerDoubling[i]);
                    EXPECT_NEAR(use, (1 << 29) + 64.0 * position + each * std::log2(worth[b]), each / 20)
                        << "block " << b;
                }
            }
    }
}

INSTANTIATE_TEST_SUITE_P(Shapes, CudaFarBlocks,
                         ::testing::Values(FarCase{64, 2, 3, 16, 50, 203, 96, 40, true, false},
                                           FarCase{128, 2, 4, 32, 64, 300, 512, 40, false, true},
                                           FarCase{128, 2, 4, 32, 64, 300, 512, 40, false, true, true},
                                           FarCase{128, 1, 16, 128, 200, 700, 256, 30, true, true},
                                           FarCase{64, 2, 1, 16, 1, 40, 16, 20, false, false},
                                           FarCase{64, 1, 2, 64, 500, 90, 64, 80, true, false},
                                           FarCase{64, 1, 2, 64, 50, 190, 64, 20, true, false, true}));

} // namespace
} // namespace kvscope::cuda
