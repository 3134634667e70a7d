// Blocks beyond a local window against float64: attention received, representatives, fixed-distance queries, choice and
// the joined attention (methods 9.8).
#include "tests/kernels/cuda/device.h"

#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/choice/select.h"
#include "kernels/cuda/methods/far_blocks.h"

#include "base/extents.h"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <optional>

namespace kvscope::cuda {
namespace KVSCOPE_TEST_FILE {

using namespace test;

struct FarCase {
    int dim, kvHeads, group, size, local, prompt, chunk, steps;
    bool biased, normed, interleaved = false;
};
void PrintTo(const FarCase& c, std::ostream* out) {
    *out << "dim " << c.dim << ", group " << c.group << ", block " << c.size << ", local " << c.local << ", prompt "
         << c.prompt;
}

constexpr int kInit = 1, kTopk = 3, kRepresentatives = 4;
constexpr float kEps = 1e-5f;

/// The numbers of one sequence on the host, and what float64 makes of them.
struct FarInputs {
    FarInputs(const FarCase& testCase, const std::function<std::vector<float>(std::size_t)>& floats,
              const std::function<std::vector<Half>(std::size_t)>& halves)
        : c(testCase), qkv(floats(Extents<int, int>(tokens, width).size())), q(halves(queryAt.size())),
          k(halves(keyAt.size())), v(halves(keyAt.size())), bias(floats(biasAt.size())),
          queryNorm(floats(std::size_t(c.dim))), keyNorm(floats(std::size_t(c.dim))), cos(floats(angleAt.size())),
          sin(floats(angleAt.size())), mass(std::size_t(heads), std::vector<double>(std::size_t(tokens), 0.0)),
          plain(plainKeys()) {}

    int firstLocal(int position) const { return std::max(0, position + 1 - c.local) / c.size; }
    int groupOf(int head) const { return head / c.group; }
    const Half* query(int token, int head) const { return &q[queryAt.offset(token, head, 0)]; }
    const Half* key(int token, int group) const { return &k[keyAt.offset(token, group, 0)]; }
    const Half* value(int token, int group) const { return &v[keyAt.offset(token, group, 0)]; }
    const Half* plainKey(int token, int group) const { return &plain[keyAt.offset(token, group, 0)]; }
    /// A row of queries, keys or values before norm and rotation; column: of queryHeads + 2 * kvHeads heads.
    const float* row(int token, int column) const {
        return &qkv[Extents<int, int>(tokens, width).offset(token, column * c.dim)];
    }
    double dot(const Half* a, const Half* b) const {
        double sum = 0;
        for (int i = 0; i < c.dim; ++i) sum += double(toFloat(a[i])) * double(toFloat(b[i]));
        return sum;
    }
    double biasOf(int group, int token) const { return double(biasScale) * double(bias[biasAt.offset(group, token)]); }
    double logit(int token, int head, int other) const {
        return double(scale) * dot(query(token, head), key(other, groupOf(head))) + biasOf(groupOf(head), other);
    }
    double inverseNorm(int token, int column) const {
        double sum = 0;
        for (int i = 0; i < c.dim; ++i) sum += double(row(token, column)[i]) * double(row(token, column)[i]);
        return 1 / std::sqrt(sum / c.dim + double(kEps));
    }
    /// Adds what the tokens of the local window receive of a query's attention to their mass.
    void receive(int token, int head) {
        const int begin = firstLocal(token) * c.size;
        std::vector<double> p;
        double total = 0;
        for (int other = begin; other <= token; ++other)
            p.push_back(std::exp(logit(token, head, other))), total += p.back();
        for (int other = begin; other <= token; ++other)
            mass[std::size_t(head)][std::size_t(other)] += p[std::size_t(other - begin)] / total;
    }
    /// Keys and values as blocks in the store, [KV head][block].
    std::vector<Half> blocks() const {
        std::vector<Half> all(std::size_t(c.kvHeads * maxBlocks) * element, 0);
        for (int t = 0; t < tokens; ++t)
            for (int g = 0; g < c.kvHeads; ++g)
                putToken(all.data() + std::size_t(g * maxBlocks + t / c.size) * element, c.size, c.dim, t % c.size,
                         key(t, g), value(t, g));
        return all;
    }

    const FarCase c;
    const AttentionShape shape{c.kvHeads * c.group, c.kvHeads, c.dim, c.size};
    const int heads = shape.queryHeads, tokens = c.prompt + c.steps, maxBlocks = (tokens + c.size - 1) / c.size,
              localBlocks = (c.local + c.size - 1) / c.size + 1, ring = localBlocks * c.size,
              capacity = kInit + localBlocks + kTopk, half = c.dim / 2, width = (heads + 2 * c.kvHeads) * c.dim;
    const std::size_t element = blockElements(c.size, c.dim);
    const float scale = 1.f / std::sqrt(float(c.dim)), biasScale = c.biased ? 0.7f : 0.f;
    const Extents<int, int, int> queryAt{tokens, heads, c.dim}, keyAt{tokens, c.kvHeads, c.dim};
    const Extents<int, int> biasAt{c.kvHeads, maxBlocks*c.size}, angleAt{tokens, half};
    // Rotated and plain keys are unrelated numbers here: each kernel must take the right ones.
    const std::vector<float> qkv;
    const std::vector<Half> q, k, v;
    const std::vector<float> bias, queryNorm, keyNorm, cos, sin;
    std::vector<std::vector<double>> mass; // [query head][token] attention received so far
    const std::vector<Half> plain;         // keys before rotation, normalised where the model has norms

private:
    std::vector<Half> plainKeys() const {
        std::vector<Half> keys(keyAt.size());
        for (int t = 0; t < tokens; ++t)
            for (int g = 0; g < c.kvHeads; ++g)
                for (int i = 0; i < c.dim; ++i) {
                    const float x = row(t, heads + g)[i];
                    const bool norm = c.normed && t >= c.prompt; // a prompt's were normalised before
                    keys[keyAt.offset(t, g, i)] = toBf16(
                        norm ? float(double(x) * inverseNorm(t, heads + g) * double(keyNorm[std::size_t(i)])) : x);
                }
        return keys;
    }
};

std::vector<std::int64_t> multiples(int count, std::int64_t stride) {
    std::vector<std::int64_t> values;
    for (int i = 0; i < count; ++i) values.push_back(i * stride);
    return values;
}

/// The same on the GPU, and what the kernels remember and write.
struct FarDevice {
    FarDevice(const FarInputs& in, const Launch& launch)
        : blocks(in.blocks()), q(in.q), qkv(in.qkv), bias(in.bias), cos(in.cos), sin(in.sin), queryNorm(in.queryNorm),
          keyNorm(in.keyNorm), first(multiples(in.c.kvHeads, in.maxBlocks)),
          biasFirst(multiples(in.c.kvHeads, std::int64_t(in.maxBlocks) * in.c.size)),
          plainRing(Extents<int, int, int>(in.c.kvHeads, in.ring, in.c.dim).size()),
          blockKeys(Extents<int, int, int, int>(in.c.kvHeads, in.maxBlocks, in.c.group, in.c.dim).size()),
          promptKeys(Extents<int, int, int>(in.c.kvHeads, in.c.prompt, in.c.dim).size()),
          farQ(std::size_t(in.heads * in.c.dim)), farOut(std::size_t(in.heads * in.c.dim)),
          out(std::size_t(in.heads * in.c.dim)), massRing(std::size_t(in.heads * in.ring)),
          sums(std::size_t(in.heads * in.c.chunk)),
          promptMass(std::vector<float>(std::size_t(in.heads * in.c.prompt), 0.f)),
          scores(std::size_t(in.c.kvHeads * in.maxBlocks)), chosenScores(std::size_t(in.c.kvHeads * in.capacity)),
          nearSums(std::size_t(in.heads)), farSums(std::size_t(in.heads)),
          partial(std::max<std::size_t>(1, attentionPartialFloats(launch, in.shape, 1, in.maxBlocks))),
          chosen(std::size_t(in.c.kvHeads * in.capacity)), chosenCount(std::size_t(in.c.kvHeads)),
          farCount(std::size_t(in.c.kvHeads)), maxTokens(std::vector<std::int32_t>{in.tokens}),
          arrivals(std::vector<std::uint32_t>(attentionArrivals(in.shape, 1), 0)),
          memory{in.shape,         in.c.local,     in.ring,          kRepresentatives,
                 plainRing.bf16(), massRing.get(), blockKeys.bf16(), first.get()} {}

    const OnDevice<Half> blocks, q;
    const OnDevice<float> qkv, bias, cos, sin, queryNorm, keyNorm;
    const OnDevice<std::int64_t> first, biasFirst;
    const OnDevice<Half> plainRing, blockKeys, promptKeys, farQ, farOut, out;
    const OnDevice<float> massRing, sums, promptMass, scores, chosenScores, nearSums, farSums, partial;
    const OnDevice<PackedBlock> chosen;
    const OnDevice<std::int32_t> chosenCount, farCount, maxTokens;
    const OnDevice<std::uint32_t> arrivals;
    const OnDevice<std::int32_t> ropeFirst{std::vector<std::int32_t>{0}};
    const OnDevice<std::uint8_t> active{std::vector<std::uint8_t>{1}};
    const OnDevice<std::uint32_t> replaced{1};
    const FarMemory memory;
};

/// What a step chose: the same blocks for every KV head, ascending; the first `far` of them lie beyond the local
/// window.
struct FarChoice {
    std::vector<int> blocks;
    int far = 0;
};

/// One sequence with resident blocks: a prompt in chunks, then steps; every product of the kernels on the way.
class CudaFarBlocks : public CudaTest, public ::testing::WithParamInterface<FarCase> {
protected:
    void SetUp() override {
        CudaTest::SetUp();
        if (IsSkipped()) return;
        in.emplace(
            GetParam(), [this](std::size_t count) { return floats(count); },
            [this](std::size_t count) { return halves(count); });
        device.emplace(*in, launch);
    }
    void wait() { ASSERT_EQ(cudaStreamSynchronize(launch.stream), cudaSuccess); }

    void readPrompt();
    void expectPromptMass();
    void settlePrompt();
    template <class MassOf> void expectBlock(int block, const MassOf& massOf);
    void append(int position, const OnDevice<std::int32_t>& dposition);
    void choose(const OnDevice<std::int32_t>& dposition);
    std::vector<Half> expectFarQueries(int position);
    FarChoice expectChoice(int position, const std::vector<Half>& farQ);
    FarMergeArgs attend(int position, const OnDevice<std::int32_t>& dposition, const OnDevice<std::int32_t>& list);
    std::map<int, double> expectAttention(int position, const FarChoice& choice, const std::vector<Half>& farQ);
    void expectUses(int position, const FarMergeArgs& merge, const std::map<int, double>& worth);

    std::optional<FarInputs> in;
    std::optional<FarDevice> device;
};

void CudaFarBlocks::readPrompt() {
    const FarCase& c = in->c;
    for (int begin = 0; begin < c.prompt; begin += c.chunk) {
        FarPromptArgs a;
        a.memory = device->memory;
        a.first = begin;
        a.n = std::min(c.chunk, c.prompt - begin);
        a.qkv = device->qkv.get() + Extents<int, int>(in->tokens, in->width).offset(begin, 0);
        a.q = device->q.bf16() + in->queryAt.offset(begin, 0, 0);
        a.blocks = device->blocks.bf16();
        a.headStride = std::int64_t(std::size_t(in->maxBlocks) * in->element);
        a.tokenBias = device->bias.get();
        a.biasStride = in->maxBlocks * c.size;
        a.scale = in->scale;
        a.biasScale = in->biasScale;
        a.promptTokens = c.prompt;
        a.plainKeys = device->promptKeys.bf16();
        a.mass = device->promptMass.get();
        a.logSums = device->sums.get();
        readFarPrompt(launch, a);
    }
    wait();
}

void CudaFarBlocks::expectPromptMass() {
    const int prompt = in->c.prompt;
    for (int t = 0; t < prompt; ++t)
        for (int h = 0; h < in->heads; ++h) in->receive(t, h);
    const auto got = device->promptMass.read();
    for (int h = 0; h < in->heads; ++h)
        for (int t = 0; t < prompt; ++t) { // sums of up to some hundred probabilities in float32
            const double wanted = in->mass[std::size_t(h)][std::size_t(t)];
            EXPECT_NEAR(got[std::size_t(h * prompt + t)], wanted, 1e-4 * (1 + wanted))
                << "head " << h << " token " << t;
        }
}

/// What a block is known by: the mean plain key of the tokens with most mass. The block's keys are the plain ones now.
template <class MassOf> void CudaFarBlocks::expectBlock(int block, const MassOf& massOf) {
    const FarCase& c = in->c;
    const auto gotKeys = device->blockKeys.read(), stored = device->blocks.read();
    const Extents<int, int, int, int> blockKeyAt(c.kvHeads, in->maxBlocks, c.group, c.dim);
    for (int h = 0; h < in->heads; ++h) {
        const int g = in->groupOf(h);
        std::vector<int> order(static_cast<std::size_t>(c.size));
        std::iota(order.begin(), order.end(), block * c.size);
        std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return massOf(h, a) > massOf(h, b); });
        for (int i = 0; i < c.dim; ++i) {
            double mean = 0;
            for (int r = 0; r < kRepresentatives; ++r)
                mean += double(toFloat(in->plainKey(order[std::size_t(r)], g)[i])) / kRepresentatives;
            EXPECT_NEAR(toFloat(gotKeys[blockKeyAt.offset(g, block, h % c.group, i)]), mean,
                        0x1p-7 * (std::abs(mean) + 0.01))
                << "block " << block;
        }
    }
    for (int g = 0; g < c.kvHeads; ++g)
        for (int t = 0; t < c.size; ++t)
            for (int i = 0; i < c.dim; ++i) { // the norm's sum is taken in another order: one step of bf16
                const float wanted = toFloat(in->plainKey(block * c.size + t, g)[i]);
                const Half* const inStore = &stored[std::size_t(g * in->maxBlocks + block) * in->element];
                EXPECT_NEAR(toFloat(inStore[t * c.dim + i]), wanted, 0x1p-7 * std::abs(wanted) + 1e-6);
            }
}

void CudaFarBlocks::settlePrompt() {
    const int prompt = in->c.prompt;
    FarSettleArgs settle;
    settle.memory = device->memory;
    settle.tokens = prompt;
    settle.plainKeys = device->promptKeys.bf16();
    settle.mass = device->promptMass.get();
    settle.blocks = device->blocks.bf16();
    settle.headStride = std::int64_t(std::size_t(in->maxBlocks) * in->element);
    settleFarPrompt(launch, settle);
    wait();
    const auto mass = device->promptMass.read();
    for (int block = 0; block < in->firstLocal(prompt - 1); ++block)
        expectBlock(block, [&](int h, int t) { return mass[std::size_t(h * prompt + t)]; });
}

void CudaFarBlocks::append(int position, const OnDevice<std::int32_t>& dposition) {
    FarAppendArgs a;
    a.memory = device->memory;
    a.rows = 1;
    a.position = dposition.get();
    a.active = device->active.get();
    a.qkv = device->qkv.get() + Extents<int, int>(in->tokens, in->width).offset(position, 0);
    if (in->c.normed) a.norms = {device->queryNorm.get(), device->keyNorm.get(), kEps};
    a.cos = device->cos.get();
    a.sin = device->sin.get();
    a.ropeFirst = device->ropeFirst.get();
    a.interleaved = in->c.interleaved;
    a.maxTokens = device->maxTokens.get();
    a.blocks = device->blocks.bf16();
    a.farQ = device->farQ.bf16();
    a.replaced = device->replaced.get();
    appendToFarMemory(launch, a);
}

void CudaFarBlocks::choose(const OnDevice<std::int32_t>& dposition) {
    FarChoiceArgs a;
    a.memory = device->memory;
    a.rows = 1;
    a.shared = in->c.kvHeads;
    a.initBlocks = kInit;
    a.topk = kTopk;
    a.maxBlocks = in->maxBlocks;
    a.capacity = in->capacity;
    a.position = dposition.get();
    a.active = device->active.get();
    a.farQ = device->farQ.bf16();
    a.scores = device->scores.get();
    a.chosen = device->chosen.get();
    a.chosenCount = device->chosenCount.get();
    a.farCount = device->farCount.get();
    a.chosenScores = device->chosenScores.get();
    chooseFarBlocks(launch, a);
    wait();
}

/// Queries rotated as if every far token were one local window away. Returns the device's.
std::vector<Half> CudaFarBlocks::expectFarQueries(int position) {
    const FarCase& c = in->c;
    const auto got = device->farQ.read();
    const int distance = std::min(c.local, in->tokens - 1);
    for (int h = 0; h < in->heads; ++h)
        for (int i = 0; i < in->half; ++i) {
            const float* x = in->row(position, h);
            const int low = c.interleaved ? 2 * i : i, high = c.interleaved ? 2 * i + 1 : i + in->half;
            double a = double(x[low]), b = double(x[high]);
            if (c.normed) {
                a *= in->inverseNorm(position, h) * double(in->queryNorm[std::size_t(low)]);
                b *= in->inverseNorm(position, h) * double(in->queryNorm[std::size_t(high)]);
            }
            const double u = double(in->cos[in->angleAt.offset(distance, i)]),
                         w = double(in->sin[in->angleAt.offset(distance, i)]);
            const double size = std::abs(a * u) + std::abs(b * w) + std::abs(b * u) + std::abs(a * w);
            EXPECT_NEAR(toFloat(got[std::size_t(h * c.dim + low)]), a * u - b * w, 0x1p-8 * size + 1e-5);
            EXPECT_NEAR(toFloat(got[std::size_t(h * c.dim + high)]), b * u + a * w, 0x1p-8 * size + 1e-5);
        }
    return got;
}

/// The choice, from the device's own representatives and queries.
FarChoice CudaFarBlocks::expectChoice(int position, const std::vector<Half>& farQ) {
    const FarCase& c = in->c;
    const int local = in->firstLocal(position);
    const auto keys = device->blockKeys.read();
    const auto scores = device->scores.read();
    const Extents<int, int, int, int> blockKeyAt(c.kvHeads, in->maxBlocks, c.group, c.dim);
    std::vector<int> order;
    for (int b = kInit; b < local; ++b) {
        order.push_back(b);
        double want = 0;
        for (int h = 0; h < in->heads; ++h)
            want += in->dot(farQ.data() + h * c.dim, &keys[blockKeyAt.offset(in->groupOf(h), b, h % c.group, 0)]);
        EXPECT_NEAR(scores[std::size_t(b)], want, 1e-3 * c.dim);
    }
    std::stable_sort(order.begin(), order.end(),
                     [&](int a, int b) { return scores[std::size_t(a)] > scores[std::size_t(b)]; });
    FarChoice choice;
    for (int b = 0; b < std::min(kInit, local); ++b) choice.blocks.push_back(b);
    for (int i = 0; i < std::min(kTopk, int(order.size())); ++i) choice.blocks.push_back(order[std::size_t(i)]);
    choice.far = int(choice.blocks.size());
    for (int b = local; b <= position / c.size; ++b) choice.blocks.push_back(b);
    std::sort(choice.blocks.begin(), choice.blocks.end());
    const auto chosen = device->chosen.read();
    for (int g = 0; g < c.kvHeads; ++g) {
        EXPECT_EQ(device->chosenCount.read()[std::size_t(g)], int(choice.blocks.size()));
        EXPECT_EQ(device->farCount.read()[std::size_t(g)], choice.far);
        for (std::size_t i = 0; i < choice.blocks.size(); ++i)
            EXPECT_EQ(chosen[std::size_t(g * in->capacity) + i].id(), choice.blocks[i]);
    }
    return choice;
}

/// The attention in two parts, joined. list: the chosen blocks, [KV head][capacity].
FarMergeArgs CudaFarBlocks::attend(int position, const OnDevice<std::int32_t>& dposition,
                                   const OnDevice<std::int32_t>& list) {
    DecodeAttentionArgs near;
    near.shape = in->shape;
    near.rows = 1;
    near.position = dposition.get();
    near.active = device->active.get();
    near.q = device->q.bf16() + in->queryAt.offset(position, 0, 0);
    near.blocks = device->blocks.bf16();
    near.headFirst = device->first.get();
    near.list.block = list.get();
    near.list.count = device->chosenCount.get();
    near.list.first = device->farCount.get();
    near.list.capacity = in->capacity;
    near.maxBlocks = in->localBlocks;
    near.bias.scores = device->bias.get();
    near.bias.first = device->biasFirst.get();
    near.scale = in->scale;
    near.bias.scale = in->biasScale;
    near.out = device->out.bf16();
    near.logSums = device->nearSums.get();
    near.scratch.partial = device->partial.get();
    near.scratch.arrivals = device->arrivals.get();
    decodeAttention(launch, near);
    DecodeAttentionArgs beyond = near;
    beyond.q = device->farQ.bf16();
    beyond.list.count = device->farCount.get();
    beyond.list.first = nullptr;
    beyond.out = device->farOut.bf16();
    beyond.logSums = device->farSums.get();
    beyond.maxBlocks = kInit + kTopk;
    decodeAttention(launch, beyond);
    FarMergeArgs merge;
    merge.memory = device->memory;
    merge.rows = 1;
    merge.position = dposition.get();
    merge.active = device->active.get();
    merge.q = near.q;
    merge.blocks = device->blocks.bf16();
    merge.headFirst = device->first.get();
    merge.listBlock = list.get();
    merge.listCount = device->chosenCount.get();
    merge.farCount = device->farCount.get();
    merge.capacity = in->capacity;
    merge.localBlocks = in->localBlocks;
    merge.tokenBias = device->bias.get();
    merge.biasFirst = device->biasFirst.get();
    merge.scale = in->scale;
    merge.biasScale = in->biasScale;
    merge.nearLogSums = device->nearSums.get();
    merge.farLogSums = device->farSums.get();
    merge.farOut = device->farOut.bf16();
    merge.out = device->out.bf16();
    mergeFarAttention(launch, merge);
    return merge;
}

/// Output and mass of a step. Returns what each block was worth: the attention of all heads.
std::map<int, double> CudaFarBlocks::expectAttention(int position, const FarChoice& choice,
                                                     const std::vector<Half>& farQ) {
    const FarCase& c = in->c;
    const int local = in->firstLocal(position);
    std::map<int, double> worth;
    const auto got = device->out.read();
    const auto mass = device->massRing.read();
    for (int h = 0; h < in->heads; ++h) {
        const int g = in->groupOf(h);
        std::vector<double> result(std::size_t(c.dim), 0.0);
        double total = 0;
        std::map<int, double> ofBlock;
        for (const int b : choice.blocks)
            for (int t = b * c.size; t <= std::min(position, (b + 1) * c.size - 1); ++t) {
                const double far =
                    double(in->scale) * in->dot(farQ.data() + h * c.dim, in->plainKey(t, g)) + in->biasOf(g, t);
                const double weight = std::exp(b >= local ? in->logit(position, h, t) : far);
                total += weight;
                ofBlock[b] += weight;
                for (int i = 0; i < c.dim; ++i) result[std::size_t(i)] += weight * double(toFloat(in->value(t, g)[i]));
            }
        for (double& value : result) value /= total;
        for (const auto& [b, weight] : ofBlock) worth[b] += weight / total;
        std::vector<float> mine;
        for (int i = 0; i < c.dim; ++i) mine.push_back(toFloat(got[std::size_t(h * c.dim + i)]));
        EXPECT_LT(relativeError(mine, result), 1.5e-2) << "two roundings to bf16, probabilities in bf16";
        in->receive(position, h);
        for (int t = local * c.size; t <= position; ++t) {
            const double wanted = in->mass[std::size_t(h)][std::size_t(t)];
            EXPECT_NEAR(mass[std::size_t(h * in->ring + t % in->ring)], wanted, 2e-4 * (1 + wanted)) << "token " << t;
        }
    }
    return worth;
}

/// Compares the times of last use, by which slots are given up, where every block lies in the slot of its own number.
/// Reads the step's attention from the device.
void CudaFarBlocks::expectUses(int position, const FarMergeArgs& merge, const std::map<int, double>& worth) {
    const int places = in->c.kvHeads * in->maxBlocks;
    FarRankArgs rank;
    rank.merged = merge;
    rank.merged.listSlot = merge.listBlock;
    rank.shared = in->c.kvHeads;
    rank.initBlocks = kInit;
    rank.farQ = device->farQ.bf16();
    rank.slots = in->maxBlocks;
    for (const float usesPerDoubling : {20.f, 44328.f}) { // the second: a decay of 0.999, before the first step
        const OnDevice<std::int32_t> uses(std::vector<std::int32_t>(std::size_t(places), -7));
        rank.usesPerDoubling = usesPerDoubling;
        rank.lastUse = uses.get();
        rankFarBlocks(launch, rank);
        wait();
        const auto got = uses.read();
        for (int place = 0; place < places; ++place) {
            const std::int32_t use = got[std::size_t(place)];
            const int b = place % in->maxBlocks;
            if (worth.count(b) == 0) {
                EXPECT_EQ(use, -7) << "not listed";
            } else if (b < kInit || b >= in->firstLocal(position)) {
                EXPECT_EQ(use, 0) << "never cached";
            } else {
                const double each = double(usesPerDoubling);
                EXPECT_NEAR(use, (1 << 29) + 64.0 * position + each * std::log2(worth.at(b)), each / 20)
                    << "block " << b;
            }
        }
    }
}

TEST_P(CudaFarBlocks, AgreeWithFloat64OverAPromptAndManySteps) {
    readPrompt();
    expectPromptMass();
    settlePrompt();
    const int kvHeads = in->c.kvHeads;
    for (int position = in->c.prompt; position < in->tokens; ++position) {
        SCOPED_TRACE(position);
        const OnDevice<std::int32_t> dposition(std::vector<std::int32_t>{position});
        const auto massBefore = device->massRing.read();
        append(position, dposition);
        choose(dposition);
        const int local = in->firstLocal(position);
        const bool leaves = local > in->firstLocal(position - 1);
        EXPECT_EQ(device->replaced.read()[0], leaves ? std::uint32_t(kvHeads) : 0u);
        if (leaves)
            expectBlock(local - 1, [&](int h, int t) { return massBefore[std::size_t(h * in->ring + t % in->ring)]; });
        const std::vector<Half> farQ = expectFarQueries(position);
        const FarChoice choice = expectChoice(position, farQ);
        if (HasFailure()) return; // the rest follows from the choice
        std::vector<std::int32_t> list(std::size_t(kvHeads * in->capacity), 0);
        for (int g = 0; g < kvHeads; ++g)
            std::copy(choice.blocks.begin(), choice.blocks.end(), list.begin() + g * in->capacity);
        const OnDevice<std::int32_t> dlist(list);
        const FarMergeArgs merge = attend(position, dposition, dlist);
        wait();
        const std::map<int, double> worth = expectAttention(position, choice, farQ);
        expectUses(position, merge, worth);
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

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::cuda
