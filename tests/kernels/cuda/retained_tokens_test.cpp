// The tokens that the device retains against lists on the host, and the attention tokens receive against float64.
#include "tests/kernels/cuda/device.h"

#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/methods/retained_tokens.h"
#include "kernels/cuda/methods/token_mass.h"
#include "kernels/cuda/methods/token_record.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <set>

namespace kvscope::cuda {
namespace KVSCOPE_TEST_FILE {

using namespace test;

constexpr int kDim = 64, kBlock = 16, kRows = 3, kKvHeads = 2, kHeads = kRows * kKvHeads;
const AttentionShape kShape{kKvHeads * 2, kKvHeads, kDim, kBlock};

/// Device memory of a layer's retained tokens.
struct Retained {
    Retained(int capacity, bool massed)
        : blocks((capacity + kBlock - 1) / kBlock), packed(std::size_t(kHeads * blocks) * blockElements(kBlock, kDim)),
          tokens(std::size_t(kHeads * capacity)), count(std::vector<std::int32_t>(kHeads, 0)),
          freePlace(std::vector<std::int32_t>(kHeads, -1)), scores(std::size_t(kHeads * capacity)),
          bias(std::size_t(kHeads * blocks * kBlock)), mass(std::size_t(kHeads * capacity)),
          attended(std::vector<std::uint8_t>(kHeads, 0)) {
        retained.capacity = capacity;
        retained.blocks = blocks;
        retained.packed = packed.bf16();
        retained.tokens = tokens.get();
        retained.scores = scores.get();
        retained.bias = bias.get();
        if (massed) retained.mass = mass.get();
        retained.count = count.get();
        retained.freePlace = freePlace.get();
        retained.attended = attended.get();
    }
    int blocks;
    OnDevice<Half> packed;
    OnDevice<std::int32_t> tokens, count, freePlace;
    OnDevice<float> scores, bias;
    OnDevice<double> mass;
    OnDevice<std::uint8_t> attended;
    RetainedTokens retained;
};

class CudaRetainedTokens : public CudaTest {};

TEST_F(CudaRetainedTokens, TheWorstScoreGoesAndTiesAreTheNewest) {
    const int capacity = 37, steps = 90, stride = 128;
    auto scores = floats(kHeads * stride);
    for (float& x : scores) x = std::round(x * 4) / 4; // many are equal
    scores[5] = std::nanf("");
    const auto keys = halves(std::size_t(steps * kHeads * kDim)), values = halves(keys.size());
    const OnDevice<float> dscores(scores);
    const OnDevice<Half> dkeys(keys), dvalues(values);
    std::vector<std::int64_t> first;
    for (int h = 0; h < kHeads; ++h) first.push_back(std::int64_t(h) * stride);
    const OnDevice<std::int64_t> dfirst(first);
    const OnDevice<std::uint8_t> active(std::vector<std::uint8_t>{1, 1, 0});
    Retained memory(capacity, false);
    const OnDevice<SelectionHead> heads(kHeads);
    const OnDevice<std::int32_t> recorded(std::size_t(kHeads * capacity));
    const OnDevice<float> recordedScores(std::size_t(kHeads * capacity));
    std::vector<std::map<std::int32_t, float>> want(kHeads); // token, score
    for (int step = 0; step < steps; ++step) {
        const OnDevice<std::int32_t> position(std::vector<std::int32_t>(kRows, step));
        RetainTokenArgs args;
        args.shape = kShape;
        args.rows = kRows;
        args.position = position.get();
        args.active = active.get();
        args.newKey = dkeys.bf16() + step * kHeads * kDim;
        args.newValue = dvalues.bf16() + step * kHeads * kDim;
        args.tokenScores = dscores.get();
        args.tokenFirst = dfirst.get();
        args.scored = true;
        args.exponentiates = true;
        args.retained = memory.retained;
        args.record.heads = heads.get();
        args.record.tokens = recorded.get();
        args.record.scores = recordedScores.get();
        retainToken(launch, args);
        check(cudaStreamSynchronize(launch.stream), "keeping");
        const auto count = memory.count.read(), tokens = memory.tokens.read(), list = recorded.read();
        const auto listScores = recordedScores.read();
        const auto reports = heads.read();
        for (int h = 0; h < kHeads; ++h) {
            if (h / kKvHeads == 2) {
                ASSERT_EQ(count[std::size_t(h)], 0) << "an inactive row changed";
                continue;
            }
            auto& mine = want[std::size_t(h)];
            const auto before = mine;
            mine[step] = std::exp(scores[std::size_t(h * stride + step)]);
            if (int(mine.size()) > capacity) {
                const auto value = [](float x) { return std::isnan(x) ? -std::numeric_limits<float>::infinity() : x; };
                auto worst = mine.begin(); // the lowest score leaves; of equal ones the token with the highest number
                for (auto it = mine.begin(); it != mine.end(); ++it)
                    if (value(it->second) <= value(worst->second)) worst = it;
                mine.erase(worst);
            }
            std::map<std::int32_t, float> got;
            for (int i = 0; i < count[std::size_t(h)]; ++i) {
                const std::size_t at = std::size_t(h * capacity + i);
                got[tokens[at]] = listScores[at];
                ASSERT_EQ(list[at], tokens[at]);
            }
            ASSERT_EQ(got.size(), mine.size());
            int kept = 0;
            for (const auto& [token, score] : mine) {
                ASSERT_TRUE(got.count(token)) << "head " << h << ", step " << step << ", token " << token;
                if (!std::isnan(score)) {
                    ASSERT_NEAR(got[token], score, 1e-5f * score); // expf of both libraries
                }
                kept += int(before.count(token));
            }
            const SelectionHead& report = reports[std::size_t(h)];
            ASSERT_EQ(report.selected, int(mine.size()));
            ASSERT_EQ(report.kept, step == 0 ? -1 : kept);
            ASSERT_EQ(report.hits, report.selected);
            ASSERT_EQ(report.misses, 0);
        }
    }
    // Every place holds the key, value and bias of the token it names.
    const auto packed = memory.packed.read();
    const auto bias = memory.bias.read();
    const auto tokens = memory.tokens.read();
    for (int h = 0; h < kHeads - kKvHeads; ++h)
        for (int i = 0; i < capacity; ++i) {
            const int token = tokens[std::size_t(h * capacity + i)];
            const Half* block = &packed[std::size_t(h * memory.blocks + i / kBlock) * blockElements(kBlock, kDim)];
            const std::size_t from = std::size_t((token * kHeads + h) * kDim);
            for (int c = 0; c < kDim; ++c) {
                ASSERT_EQ(block[i % kBlock * kDim + c], keys[from + std::size_t(c)]);
                ASSERT_EQ(block[kBlock * kDim + c * kBlock + i % kBlock], values[from + std::size_t(c)]);
            }
            const float want1 = scores[std::size_t(h * stride + token)];
            if (!std::isnan(want1)) {
                ASSERT_EQ(bias[std::size_t(h * memory.blocks * kBlock + i)], want1);
            }
        }
}

TEST_F(CudaRetainedTokens, ThePlaceOfLeastMassIsUsedNext) {
    const int heavy = 9, recent = 6, capacity = heavy + recent + 1, prompt = 11, steps = 60;
    Retained memory(capacity, true);
    std::vector<double> promptMass(kKvHeads * prompt);
    for (double& x : promptMass) x = uniform(0, 5);
    const OnDevice<double> dmass(promptMass);
    for (int sequence = 0; sequence < kRows; ++sequence) {
        RetainPromptArgs retain;
        retain.kvHeads = kKvHeads;
        retain.sequence = sequence;
        retain.mass = dmass.get();
        retain.massStride = prompt;
        retain.tailEnd = prompt;
        retain.retained = memory.retained;
        retainPrompt(launch, retain);
    }
    std::vector<std::map<std::int32_t, double>> want(kHeads);
    for (int h = 0; h < kHeads; ++h)
        for (int t = 0; t < prompt; ++t) want[std::size_t(h)][t] = promptMass[std::size_t(h % kKvHeads * prompt + t)];
    const OnDevice<std::int32_t> dheavy(std::vector<std::int32_t>(kRows, heavy)),
        drecent(std::vector<std::int32_t>(kRows, recent));
    const OnDevice<Half> newKey(halves(kHeads * kDim)), newValue(halves(kHeads * kDim));
    for (int step = 0; step < steps; ++step) {
        const int position = prompt + step;
        const OnDevice<std::int32_t> dposition(std::vector<std::int32_t>(kRows, position));
        RetainTokenArgs args;
        args.shape = kShape;
        args.rows = kRows;
        args.position = dposition.get();
        args.newKey = newKey.bf16();
        args.newValue = newValue.bf16();
        args.retained = memory.retained;
        args.retained.bias = nullptr;
        retainToken(launch, args);
        check(cudaStreamSynchronize(launch.stream), "keeping");
        // The attention of this step, made up: whole numbers, so that some are equal.
        auto mass = memory.mass.read();
        const auto tokens = memory.tokens.read(), count = memory.count.read();
        for (int h = 0; h < kHeads; ++h) {
            auto& mine = want[std::size_t(h)];
            mine[position] = 0;
            std::set<std::int32_t> places;
            for (int i = 0; i < count[std::size_t(h)]; ++i) {
                const std::size_t at = std::size_t(h * capacity + i);
                ASSERT_TRUE(mine.count(tokens[at])) << "head " << h << " retains " << tokens[at] << " at step " << step;
                ASSERT_EQ(mass[at], mine[tokens[at]]);
                places.insert(tokens[at]);
                mine[tokens[at]] = mass[at] += uniform(0, 2);
            }
            ASSERT_EQ(places.size(), mine.size()) << "head " << h << ", step " << step;
        }
        check(cudaMemcpy(memory.mass.get(), mass.data(), mass.size() * sizeof(double), cudaMemcpyHostToDevice), "test");
        EvictArgs evict;
        evict.rows = kRows;
        evict.kvHeads = kKvHeads;
        evict.position = dposition.get();
        evict.heavy = dheavy.get();
        evict.recent = drecent.get();
        evict.retained = memory.retained;
        evictLeastMass(launch, evict);
        check(cudaStreamSynchronize(launch.stream), "evicting");
        for (auto& mine : want) {
            if (int(mine.size()) <= heavy + recent) continue;
            auto least = mine.begin();
            for (auto it = mine.begin(); it->first <= position - recent; ++it)
                if (it->second <= least->second) least = it;
            mine.erase(least);
        }
    }
}

TEST_F(CudaRetainedTokens, ARecordedChoiceIsComparedWithTheOneBefore) {
    const int capacity = 700;
    const OnDevice<std::int32_t> previous(std::size_t(kHeads * capacity)),
        previousCount(std::vector<std::int32_t>(kHeads, 0)), recorded(std::size_t(kHeads * capacity));
    const OnDevice<SelectionHead> heads(kHeads);
    std::vector<std::set<std::int32_t>> before(kHeads);
    for (int step = 0; step < 3; ++step) {
        std::vector<std::int32_t> tokens(std::size_t(kHeads * capacity), -1), count, position;
        std::vector<std::set<std::int32_t>> now(kHeads);
        for (int row = 0; row < kRows; ++row) position.push_back(2000 + step);
        for (int h = 0; h < kHeads; ++h) {
            const int n = h == 0 ? capacity : uniform(1, capacity);
            while (int(now[std::size_t(h)].size()) < n - 1) now[std::size_t(h)].insert(uniform(0, 1400));
            now[std::size_t(h)].insert(h % 2 == 0 ? 2000 + step : 1500);
            std::copy(now[std::size_t(h)].begin(), now[std::size_t(h)].end(), tokens.begin() + h * capacity);
            count.push_back(int(now[std::size_t(h)].size()));
        }
        const OnDevice<std::int32_t> dtokens(tokens), dcount(count), dposition(position);
        RecordChoiceArgs args;
        args.rows = kRows;
        args.kvHeads = kKvHeads;
        args.position = dposition.get();
        args.tokens = dtokens.get();
        args.count = dcount.get();
        args.capacity = capacity;
        args.loads = step != 1;
        args.previous = previous.get();
        args.previousCount = previousCount.get();
        args.record.heads = heads.get();
        args.record.tokens = recorded.get();
        recordChoice(launch, args);
        check(cudaStreamSynchronize(launch.stream), "recording");
        const auto reports = heads.read();
        const auto list = recorded.read();
        for (int h = 0; h < kHeads; ++h) {
            int kept = 0;
            for (const auto token : now[std::size_t(h)]) kept += int(before[std::size_t(h)].count(token));
            const SelectionHead& report = reports[std::size_t(h)];
            EXPECT_EQ(report.selected, count[std::size_t(h)]);
            EXPECT_EQ(report.kept, step == 0 ? -1 : kept);
            EXPECT_EQ(report.hits, step == 1 ? report.selected : h % 2 == 0 ? 1 : 0);
            EXPECT_EQ(report.hits + report.misses, report.selected);
            EXPECT_TRUE(
                std::equal(now[std::size_t(h)].begin(), now[std::size_t(h)].end(), list.begin() + h * capacity));
        }
        before = now;
    }
}

/// Keys of one sequence and the causal attention of its queries, all of it on the device.
TEST_F(CudaRetainedTokens, MassIsWhatTheAttentionGave) {
    for (const auto& [dim, group, bs, bias] :
         {std::tuple{64, 4, 64, true}, {128, 3, 16, false}, {128, 16, 32, true}, {64, 1, 256, false}}) {
        SCOPED_TRACE(::testing::Message() << "dim " << dim << ", group " << group << ", block " << bs);
        const int tokens = 333, first = 200, n = tokens - first, kvHeads = 2, queryHeads = kvHeads * group;
        const int perHead = (tokens + bs - 1) / bs;
        const AttentionShape shape{queryHeads, kvHeads, dim, bs};
        const std::size_t element = blockElements(bs, dim);
        const auto q = halves(std::size_t(n * queryHeads * dim)),
                   blocks = halves(std::size_t(kvHeads * perHead) * element);
        const auto biases = floats(std::size_t(kvHeads * perHead * bs));
        const OnDevice<Half> dq(q), dblocks(blocks), out(q.size());
        const OnDevice<float> dbias(biases), logSums(std::size_t(n * queryHeads));
        const std::vector<double> zero(std::size_t(kvHeads * tokens), 1.5);
        const OnDevice<double> mass(zero);
        PrefillAttentionArgs attend;
        attend.shape = shape;
        attend.n = n;
        attend.firstPosition = first;
        attend.q = dq.bf16();
        attend.blocks = dblocks.bf16();
        attend.headStride = std::int64_t(perHead) * std::int64_t(element);
        if (bias) attend.tokenBias = dbias.get();
        attend.biasStride = perHead * bs;
        attend.scale = 0.13f;
        attend.biasScale = 0.6f;
        attend.out = out.bf16();
        attend.logSums = logSums.get();
        prefillAttention(launch, attend);
        TokenMassArgs args;
        args.shape = shape;
        args.rows = 1;
        args.q = dq.bf16();
        args.logSums = logSums.get();
        args.queries = n;
        args.firstPosition = first;
        args.blocks = dblocks.bf16();
        args.stride = perHead;
        args.maxTokens = tokens;
        args.bias = attend.tokenBias;
        args.biasStride = attend.biasStride;
        args.scale = attend.scale;
        args.biasScale = attend.biasScale;
        args.mass = mass.get();
        args.massStride = tokens;
        addTokenMass(launch, args);
        check(cudaStreamSynchronize(launch.stream), "adding up");
        const auto got = mass.read();
        std::vector<double> want = zero;
        for (int i = 0; i < n; ++i)
            for (int h = 0; h < queryHeads; ++h) {
                const int g = h / group;
                std::vector<double> weights;
                double sum = 0;
                for (int t = 0; t <= first + i; ++t) {
                    double dot = 0;
                    for (int c = 0; c < dim; ++c)
                        dot +=
                            double(toFloat(q[std::size_t((i * queryHeads + h) * dim + c)])) *
                            double(toFloat(
                                blocks[std::size_t(g * perHead + t / bs) * element + std::size_t(t % bs * dim + c)]));
                    weights.push_back(std::exp(
                        double(attend.scale) * dot +
                        (bias ? double(attend.biasScale) * double(biases[std::size_t(g * perHead * bs + t)]) : 0.0)));
                    sum += weights.back();
                }
                for (std::size_t t = 0; t < weights.size(); ++t) want[std::size_t(g * tokens) + t] += weights[t] / sum;
            }
        for (std::size_t i = 0; i < want.size(); ++i)
            ASSERT_NEAR(got[i], want[i], 1e-4 * want[i]) << i; // float32 logits and sums of float32
    }
}

TEST_F(CudaRetainedTokens, VotesArePooledOverNeighbours) {
    const int length = 700, stride = 710, lists = 2;
    std::vector<double> mass;
    for (const float x : floats(lists * stride)) mass.push_back(std::abs(double(x)));
    const OnDevice<double> dmass(mass);
    for (const auto& [kernel, average] : {std::pair{7, false}, {5, true}, {1, false}, {255, true}}) {
        const OnDevice<float> scores(static_cast<std::size_t>(lists * length));
        poolMass(launch, {lists, length, dmass.get(), stride, kernel, average, scores.get(), length});
        check(cudaStreamSynchronize(launch.stream), "pooling");
        const auto got = scores.read();
        for (int l = 0; l < lists; ++l)
            for (int i = 0; i < length; ++i) {
                double sum = 0, largest = 0;
                for (int j = std::max(0, i - kernel / 2); j <= std::min(length - 1, i + kernel / 2); ++j) {
                    sum += mass[std::size_t(l * stride + j)];
                    largest = std::max(largest, mass[std::size_t(l * stride + j)]);
                }
                ASSERT_NEAR(got[std::size_t(l * length + i)], average ? sum / kernel : largest, 1e-5 * largest);
            }
    }
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::cuda
