// Tokens chosen by their labels inside listed blocks and attended to, against float64.
#include "tests/kernels/cuda/device.h"

#include "kernels/cuda/methods/candidate_attention.h"

#include <algorithm>
#include <numeric>

namespace kvscope::cuda {
namespace KVSCOPE_TEST_FILE {

using namespace test;

struct Case {
    int dim, group, channels, bits, blockSize, maxTokens, listed, wanted;
    int rows = 2;
    bool clusters = true, slots = true;
};
void PrintTo(const Case& c, std::ostream* out) {
    *out << "dim " << c.dim << ", group " << c.group << ", " << c.channels << " channels of " << c.bits << " bits, "
         << c.listed << " blocks of " << c.blockSize << ", " << c.wanted << " tokens, " << c.rows << " rows"
         << (c.clusters ? "" : ", no clusters") << (c.slots ? "" : ", resident");
}

constexpr int kKvHeads = 2;

/// Random keys, values and queries of a layer, on the host and on the device, in blocks whose values lie by token.
struct Data {
    const Case c;
    const int rows = c.rows, heads = rows * kKvHeads, queryHeads = kKvHeads * c.group, bs = c.blockSize,
              perHead = (c.maxTokens + bs - 1) / bs, capacity = c.listed + 1;
    const std::size_t element = blockElements(bs, c.dim), headElements = std::size_t(perHead) * element;
    const AttentionShape shape{queryHeads, kKvHeads, c.dim, bs};
    std::vector<std::int32_t> position{}, list{}, counts{}, place{};
    std::vector<Half> blocks{}, q{};
    std::vector<float> bias{};

    std::size_t at(int head, int token, int channel) const { // of a key; its value is bs*dim further
        return std::size_t(head) * headElements + std::size_t(token / bs) * element +
               std::size_t(token % bs * c.dim + channel);
    }
    double key(int head, int token, int channel) const { return double(toFloat(blocks[at(head, token, channel)])); }
    double value(int head, int token, int channel) const {
        return double(toFloat(blocks[at(head, token, channel) + std::size_t(bs * c.dim)]));
    }
    double query(int head, int h, int channel) const {
        return double(toFloat(q[std::size_t((head * c.group + h) * c.dim + channel)]));
    }
    /// The tokens of a head's listed blocks: what places are of.
    std::vector<int> listed(int head) const {
        std::vector<int> tokens;
        const int last = position[std::size_t(head / kKvHeads)];
        for (int i = 0; i < counts[std::size_t(head)]; ++i)
            for (int t = 0; t < bs; ++t)
                if (const int token = list[std::size_t(head * capacity + i)] * bs + t; token <= last)
                    tokens.push_back(token);
        return tokens;
    }
    /// Every block in its slot, poison elsewhere.
    std::vector<Half> pool() const {
        if (!c.slots) return blocks;
        std::vector<Half> pool(blocks.size(), 0x7fc0);
        for (int head = 0; head < heads; ++head)
            for (int i = 0; i < counts[std::size_t(head)]; ++i) {
                const auto of = std::size_t(head * capacity + i);
                std::copy_n(blocks.begin() + std::ptrdiff_t(at(head, list[of] * bs, 0)), element,
                            pool.begin() + std::ptrdiff_t(at(head, place[of] * bs, 0)));
            }
        return pool;
    }
};

class CudaCandidateAttention : public CudaTest, public ::testing::WithParamInterface<Case> {
protected:
    Data draw(const Case& c) {
        Data d{c};
        d.position = {c.maxTokens - 1, std::max(1, c.maxTokens / 3)};
        while (int(d.position.size()) < c.rows) d.position.push_back(uniform(0, c.maxTokens - 1));
        d.blocks = halves(std::size_t(d.heads) * d.headElements);
        d.q = halves(std::size_t(d.heads * c.group * c.dim));
        d.bias = floats(std::size_t(d.heads * d.perHead * d.bs));
        d.list.assign(std::size_t(d.heads * d.capacity), -1);
        d.place = d.list;
        for (int head = 0; head < d.heads; ++head) {
            const auto mine = randomBlocks(c.listed, d.position[std::size_t(head / kKvHeads)] / d.bs, random);
            std::vector<std::int32_t> slots(static_cast<std::size_t>(d.perHead));
            std::iota(slots.begin(), slots.end(), 0);
            std::shuffle(slots.begin(), slots.end(), random);
            std::copy(mine.begin(), mine.end(), d.list.begin() + head * d.capacity);
            std::copy_n(slots.begin(), mine.size(), d.place.begin() + head * d.capacity);
            d.counts.push_back(std::int32_t(mine.size()));
        }
        return d;
    }

    struct Result {
        std::vector<std::int32_t> channels;
        std::vector<std::uint16_t> chosen;
        std::vector<Half> out, keptQ;
        std::vector<float> logSums;
    };
    /// Channels by the product of maxima of `promptQ`; the newest token is left to the kernel to label.
    Result run(const Data& d, const std::vector<Half>& promptQ, float biasScale,
               const std::vector<std::uint8_t>& active) {
        const Case& c = d.c;
        Launch how = launch;
        how.clusters = how.clusters && c.clusters;
        const int stride = (c.maxTokens + 31) / 32 * 32;
        const OnDevice<Half> dblocks(d.blocks), dq(d.q), dpromptQ(promptQ);
        LabelStore labels;
        labels.channels = c.channels;
        labels.bits = c.bits;
        labels.stride = stride;
        const OnDevice<std::uint32_t> codes(std::size_t(d.heads * labels.words() * stride));
        const OnDevice<float> steps(std::size_t(d.heads * stride)), lowest(std::size_t(d.heads * stride));
        const OnDevice<std::int32_t> channel(std::size_t(d.heads * c.channels));
        labels.codes = codes.get();
        labels.steps = steps.get();
        labels.lowest = lowest.get();
        labels.channel = channel.get();
        const OnDevice<float> maxima(std::size_t((d.queryHeads + kKvHeads) * c.dim));
        std::vector<Half> newKey;
        for (int head = 0; head < d.heads; ++head)
            for (int ch = 0; ch < c.dim; ++ch)
                newKey.push_back(d.blocks[d.at(head, d.position[std::size_t(head / kKvHeads)], ch)]);
        for (int row = 0; row < d.rows; ++row) {
            const int tokens = d.position[std::size_t(row)] + 1;
            const __nv_bfloat16* of = dblocks.bf16() + std::size_t(row * kKvHeads) * d.headElements;
            check(cudaMemset(maxima.get(), 0, std::size_t((d.queryHeads + kKvHeads) * c.dim) * sizeof(float)), "test");
            for (int begin = 0; begin < tokens; begin += 77) {
                ObserveArgs observe;
                observe.shape = d.shape;
                observe.n = std::min(77, tokens - begin);
                observe.first = begin;
                observe.q = dpromptQ.bf16() + std::size_t(begin) * std::size_t(d.queryHeads * c.dim);
                observe.blocks = of;
                observe.headStride = std::int64_t(d.headElements);
                observeMaxima(how, observe, maxima.get());
            }
            pickChannelsByMaxima(how, maxima.get(), d.shape, row, labels);
            labelPrompt(how, {d.shape, row, tokens - 1, of, std::int64_t(d.headElements), labels});
        }
        std::vector<std::int64_t> headFirst, biasFirst;
        for (int head = 0; head < d.heads; ++head) {
            headFirst.push_back(std::int64_t(head) * d.perHead);
            biasFirst.push_back(std::int64_t(head) * d.perHead * d.bs);
        }
        const OnDevice<Half> dpool(d.pool()), dnewKey(newKey), out(d.q.size()), keptQ(d.q.size());
        const OnDevice<std::int32_t> dlist(d.list), dcounts(d.counts), dplace(d.place), dposition(d.position);
        const OnDevice<std::int64_t> dheadFirst(headFirst), dbiasFirst(biasFirst);
        const OnDevice<std::uint8_t> dactive(active);
        const OnDevice<float> dbias(d.bias), logSums(std::size_t(d.heads * c.group)),
            logits(candidateLogitFloats(how, d.shape, d.rows, d.capacity));
        const OnDevice<std::uint16_t> chosen(std::size_t(d.heads * d.capacity * (d.bs / 16)));
        CandidateAttentionArgs args;
        DecodeAttentionArgs& attend = args.attend;
        attend.shape = d.shape;
        attend.rows = d.rows;
        attend.position = dposition.get();
        attend.active = dactive.get();
        attend.q = dq.bf16();
        attend.blocks = dpool.bf16();
        attend.headFirst = dheadFirst.get();
        attend.list.block = dlist.get();
        attend.list.slot = c.slots ? dplace.get() : nullptr;
        attend.list.count = dcounts.get();
        attend.list.capacity = d.capacity;
        attend.bias.scores = dbias.get();
        attend.bias.first = dbiasFirst.get();
        attend.scale = 1 / std::sqrt(float(c.dim));
        attend.bias.scale = biasScale;
        attend.out = out.bf16();
        attend.logSums = logSums.get();
        args.labels = labels;
        args.newKey = dnewKey.bf16();
        args.wanted = c.wanted;
        args.listedBefore = !c.slots;
        args.chosen = chosen.get();
        args.keptQ = keptQ.bf16();
        args.logits = logits.get();
        check(cudaStreamSynchronize(how.stream), "labelling"); // the lists are there before
        attendCandidates(how, args);
        check(cudaStreamSynchronize(how.stream), "attending to candidates");

        Result result{channel.read(), chosen.read(), out.read(), keptQ.read(), logSums.read()};
        // The newest token's label is what a prompt's would be.
        const auto wordsNow = codes.read();
        const auto stepsNow = steps.read(), lowestNow = lowest.read();
        for (int row = 0; row < d.rows; ++row)
            labelPrompt(how, {d.shape, row, d.position[std::size_t(row)] + 1,
                              dblocks.bf16() + std::size_t(row * kKvHeads) * d.headElements,
                              std::int64_t(d.headElements), labels});
        check(cudaStreamSynchronize(how.stream), "labelling");
        for (int head = 0; head < d.heads; ++head) {
            if (active[std::size_t(head / kKvHeads)] == 0) continue;
            const int token = d.position[std::size_t(head / kKvHeads)];
            for (int w = 0; w < labels.words(); ++w) {
                const auto of = std::size_t((head * labels.words() + w) * stride + token);
                EXPECT_EQ(wordsNow[of], codes.read()[of]) << "head " << head << ", word " << w;
            }
            if (c.bits != 4) continue;
            EXPECT_EQ(stepsNow[std::size_t(head * stride + token)], steps.read()[std::size_t(head * stride + token)]);
            EXPECT_EQ(lowestNow[std::size_t(head * stride + token)], lowest.read()[std::size_t(head * stride + token)]);
        }
        return result;
    }
    static std::vector<int> placesOf(const Data& d, const Result& got, int head, int places) {
        std::vector<int> chosen;
        const std::size_t first = std::size_t(head * d.capacity * (d.bs / 16));
        for (int i = 0; i < d.counts[std::size_t(head)] * d.bs; ++i) {
            if ((got.chosen[first + std::size_t(i / 16)] >> i % 16 & 1) == 0) continue;
            EXPECT_LT(i, places) << "a place behind the position";
            chosen.push_back(i);
        }
        return chosen;
    }
    /// Attention over some tokens in float64 against the result.
    static void compareAttention(const Data& d, const Result& got, int head, const std::vector<int>& tokens,
                                 double biasScale) {
        const int dim = d.c.dim;
        for (int h = 0; h < d.c.group; ++h) {
            std::vector<double> logits, want(std::size_t(dim), 0.0), mine;
            for (const int token : tokens) {
                double logit = 0;
                for (int ch = 0; ch < dim; ++ch) logit += d.query(head, h, ch) * d.key(head, token, ch);
                logits.push_back(logit / std::sqrt(double(dim)) +
                                 biasScale * double(d.bias[std::size_t(head * d.perHead * d.bs + token)]));
            }
            const double most = *std::max_element(logits.begin(), logits.end());
            double sum = 0;
            for (double& logit : logits) sum += logit = std::exp(logit - most);
            for (std::size_t t = 0; t < tokens.size(); ++t)
                for (int ch = 0; ch < dim; ++ch)
                    want[std::size_t(ch)] += logits[t] / sum * d.value(head, tokens[t], ch);
            const auto of = std::size_t((head * d.c.group + h) * dim);
            for (int ch = 0; ch < dim; ++ch) mine.push_back(double(toFloat(got.out[of + std::size_t(ch)])));
            ASSERT_LT(relativeError(mine, want), 1e-2) << "query head " << h; // probabilities and result are bf16
            ASSERT_NEAR(got.logSums[std::size_t(head * d.c.group + h)], most + std::log(sum), 1e-3);
        }
    }
};

/// The mean over the group of the softmax over the listed tokens of the labels' logits.
std::vector<double> scoresOf(const Data& d, int head, const std::vector<int>& tokens,
                             const std::vector<int>& channels) {
    std::vector<std::vector<double>> labels;
    for (const int token : tokens) {
        std::vector<double>& x = labels.emplace_back();
        for (const int ch : channels) x.push_back(d.key(head, token, ch));
        if (d.c.bits != 4) continue;
        const auto [low, high] = std::minmax_element(x.begin(), x.end()); // codes in float32, as the rule has them
        const float least = float(*low), range = float(*high) - least, scale = 15.f / (range == 0.f ? 1.f : range);
        for (double& value : x)
            value = std::clamp(double(std::nearbyint((float(value) - least) * scale)), 0.0, 15.0) / double(scale) +
                    double(least);
    }
    std::vector<double> scores(tokens.size(), 0.0);
    for (int h = 0; h < d.c.group; ++h) {
        std::vector<double> weights;
        for (const auto& label : labels) {
            double logit = 0;
            for (std::size_t i = 0; i < channels.size(); ++i) logit += d.query(head, h, channels[i]) * label[i];
            weights.push_back(std::exp(logit / std::sqrt(double(d.c.dim))));
        }
        const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
        for (std::size_t t = 0; t < weights.size(); ++t) scores[t] += weights[t] / sum / d.c.group;
    }
    return scores;
}

/// AsyncTLS's second level: channels by the product of maxima, labels of four bits, queries as they are, the softmax
/// over the tokens of the listed blocks alone, and attention over the best.
TEST_P(CudaCandidateAttention, AttendsToTheBestTokensOfListedBlocks) {
    const Data d = draw(GetParam());
    const Case& c = d.c;
    std::vector<std::uint8_t> active(std::size_t(d.rows), 1);
    if (d.rows > 2) active[std::size_t(uniform(2, d.rows - 1))] = 0;
    const auto promptQ = halves(std::size_t(c.maxTokens) * std::size_t(d.queryHeads * c.dim));
    const float biasScale = c.group % 2 == 0 ? 0.5f : 0.f;
    const Result got = run(d, promptQ, biasScale, active);
    for (int head = 0; head < d.heads; ++head) {
        SCOPED_TRACE(::testing::Message() << "head " << head);
        const int row = head / kKvHeads, g = head % kKvHeads, last = d.position[std::size_t(row)];
        const auto firstQ = std::size_t(head * c.group * c.dim), endQ = std::size_t((head + 1) * c.group * c.dim);
        if (active[std::size_t(row)] == 0) {
            for (std::size_t i = firstQ; i < endQ; ++i)
                ASSERT_EQ(got.out[i], 0xffff) << "an inactive row is left alone";
            continue;
        }
        for (std::size_t i = firstQ; i < endQ; ++i) ASSERT_EQ(got.keptQ[i], d.q[i]);
        std::vector<double> importance;
        for (int ch = 0; ch < c.dim; ++ch) {
            double mostK = 0, sum = 0;
            for (int t = 0; t <= last; ++t) mostK = std::max(mostK, std::abs(d.key(head, t, ch)));
            for (int h = g * c.group; h < (g + 1) * c.group; ++h) {
                double mostQ = 0;
                for (int t = 0; t <= last; ++t)
                    mostQ = std::max(
                        mostQ, std::abs(double(toFloat(promptQ[std::size_t((t * d.queryHeads + h) * c.dim + ch)]))));
                sum += mostQ;
            }
            importance.push_back(sum / c.group * mostK);
        }
        const std::vector<int> channels(got.channels.begin() + head * c.channels,
                                        got.channels.begin() + (head + 1) * c.channels);
        std::vector<double> ranked = importance;
        std::sort(ranked.rbegin(), ranked.rend());
        for (int i = 0; i < c.channels; ++i)
            ASSERT_NEAR(importance[std::size_t(channels[std::size_t(i)])], ranked[std::size_t(i)],
                        1e-6 * ranked[std::size_t(i)]);

        const std::vector<int> tokens = d.listed(head);
        const std::vector<int> places = placesOf(d, got, head, int(tokens.size()));
        ASSERT_EQ(int(places.size()), std::min(c.wanted, int(tokens.size())));
        const std::vector<double> want = scoresOf(d, head, tokens, channels);
        std::vector<double> best = want;
        std::sort(best.rbegin(), best.rend());
        const double limit = best[places.size() - 1];
        std::vector<bool> in(want.size(), false);
        std::vector<int> attended;
        for (const int place : places) {
            in[std::size_t(place)] = true;
            attended.push_back(tokens[std::size_t(place)]);
        }
        for (std::size_t t = 0; t < want.size(); ++t) { // with room for what float32 rounds
            if (in[t]) {
                ASSERT_GE(want[t], limit * (1 - 1e-4)) << t;
            } else {
                ASSERT_LE(want[t], limit * (1 + 1e-4)) << t;
            }
        }
        compareAttention(d, got, head, attended, double(biasScale));
        if (HasFatalFailure()) return;
    }
}

/// Equal keys have equal scores: the first places win, wherever they lie in the cluster.
TEST_P(CudaCandidateAttention, OfEqualScoresTheFirstPlacesAreChosen) {
    Data d = draw(GetParam());
    const Case& c = d.c;
    // Some of the last third of the listed places are better than the rest, which are all the same. Of every other head
    // a single one is: only one thread block of the cluster has it, and the others' largest logit is smaller.
    std::vector<std::set<int>> better(static_cast<std::size_t>(d.heads));
    for (int head = 0; head < d.heads; ++head) {
        const std::vector<int> tokens = d.listed(head);
        const int all = int(tokens.size()), most = std::min({c.wanted / 2, all / 3, head % 2 == 0 ? 1 : all});
        while (int(better[std::size_t(head)].size()) < most)
            better[std::size_t(head)].insert(uniform(all * 2 / 3, all - 1));
        for (std::size_t t = 0; t < tokens.size(); ++t)
            for (int ch = 0; ch < c.dim; ++ch) {
                const double q = d.query(head, 0, ch);
                const bool stands = better[std::size_t(head)].count(int(t)) != 0;
                d.blocks[d.at(head, tokens[t], ch)] = toBf16(stands        ? (q > 0 ? 1.f : -1.f)
                                                             : ch % 2 == 0 ? 0.5f
                                                                           : -0.5f);
            }
        for (int h = 1; h < c.group; ++h)
            for (int ch = 0; ch < c.dim; ++ch)
                d.q[std::size_t((head * c.group + h) * c.dim + ch)] = d.q[std::size_t(head * c.group * c.dim + ch)];
    }
    const auto promptQ = halves(std::size_t(c.maxTokens) * std::size_t(d.queryHeads * c.dim));
    const Result got = run(d, promptQ, 0.f, std::vector<std::uint8_t>(std::size_t(d.rows), 1));
    for (int head = 0; head < d.heads; ++head) {
        SCOPED_TRACE(::testing::Message() << "head " << head);
        const std::vector<int> tokens = d.listed(head);
        std::set<int> want = better[std::size_t(head)];
        for (int place = 0; place < int(tokens.size()) && int(want.size()) < c.wanted; ++place) want.insert(place);
        const std::vector<int> places = placesOf(d, got, head, int(tokens.size()));
        ASSERT_EQ(std::set<int>(places.begin(), places.end()), want);
        std::vector<int> attended;
        for (const int place : places) attended.push_back(tokens[std::size_t(place)]);
        compareAttention(d, got, head, attended, 0);
        if (HasFatalFailure()) return;
    }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, CudaCandidateAttention,
    ::testing::Values(Case{64, 8, 8, 4, 64, 1500, 6, 100}, Case{128, 4, 32, 4, 64, 9000, 128, 512},
                      Case{128, 4, 32, 4, 64, 4000, 60, 512, 2, true, false}, Case{128, 3, 13, 4, 16, 700, 11, 50},
                      Case{64, 1, 1, 4, 64, 400, 3, 1000}, Case{128, 4, 32, 16, 64, 3000, 20, 256},
                      Case{128, 10, 128, 4, 256, 2000, 4, 300}, Case{64, 20, 40, 16, 32, 1300, 30, 150},
                      Case{128, 2, 32, 4, 64, 2200, 30, 700, 40, true, false}, Case{64, 4, 16, 4, 64, 900, 9, 64, 90},
                      Case{128, 4, 32, 4, 64, 2500, 33, 333, 2, false}, // clusters of 3, 5 and 6 on an H200:
                      Case{128, 4, 32, 4, 64, 2500, 33, 333, 16}, Case{128, 10, 32, 4, 64, 2500, 33, 200, 11},
                      Case{64, 5, 16, 16, 32, 1300, 30, 150, 10}, Case{128, 31, 32, 4, 64, 9000, 130, 200, 2, false}));

TEST_F(CudaTest, TurnedValuesLieByToken) {
    for (const auto& [dim, bs, tokens] : {std::tuple{64, 16, 40}, {128, 64, 640}, {128, 256, 300}}) {
        const int kvHeads = 2, blocks = (tokens + bs - 1) / bs;
        const std::size_t element = blockElements(bs, dim);
        const auto data = halves(std::size_t(kvHeads * (blocks + 1)) * element);
        const OnDevice<Half> ddata(data);
        turnValues(
            launch,
            {{kvHeads, kvHeads, dim, bs}, tokens, ddata.bf16(), std::int64_t(blocks + 1) * std::int64_t(element)});
        check(cudaStreamSynchronize(launch.stream), "turning");
        const auto got = ddata.read();
        for (int block = 0; block < kvHeads * (blocks + 1); ++block)
            for (int t = 0; t < bs; ++t)
                for (int ch = 0; ch < dim; ++ch) {
                    const std::size_t first = std::size_t(block) * element, values = first + std::size_t(bs * dim);
                    const std::size_t byToken = std::size_t(t * dim + ch), byChannel = std::size_t(ch * bs + t);
                    ASSERT_EQ(got[first + byToken], data[first + byToken]);
                    const bool turned = block % (blocks + 1) < blocks;
                    ASSERT_EQ(got[values + byToken], data[values + (turned ? byChannel : byToken)]);
                }
    }
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::cuda
