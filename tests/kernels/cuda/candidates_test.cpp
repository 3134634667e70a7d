// Tokens chosen inside listed blocks, and what becomes of the blocks, against brute force in float64.
#include "tests/kernels/cuda/device.h"

#include "kernels/cuda/candidates.h"
#include "kernels/cuda/labels.h"
#include "kernels/cuda/token_pack.h"

#include <algorithm>
#include <numeric>
#include <set>

namespace kvscope::cuda {
namespace {

using namespace test;

/// Ascending random numbers below `limit`, with `last` as the last.
std::vector<std::int32_t> randomBlocks(int count, int last, std::mt19937& random) {
    std::set<std::int32_t> chosen{last};
    while (int(chosen.size()) < std::min(count, last + 1)) chosen.insert(std::int32_t(random() % unsigned(last + 1)));
    return {chosen.begin(), chosen.end()};
}

struct Case {
    int dim, group, channels, bits, blockSize, maxTokens, listed, wanted;
};
void PrintTo(const Case& c, std::ostream* out) {
    *out << "dim " << c.dim << ", group " << c.group << ", " << c.channels << " channels of " << c.bits << " bits, "
         << c.listed << " blocks of " << c.blockSize << ", " << c.wanted << " tokens";
}

class CudaCandidates : public CudaTest, public ::testing::WithParamInterface<Case> {};

/// AsyncTLS's second level: channels by the product of maxima, labels of four bits, queries as they are, the softmax
/// over the tokens of the listed blocks alone; then the chosen ones packed from slots.
TEST_P(CudaCandidates, TokensOfListedBlocksAreChosenAndPacked) {
    const Case c = GetParam();
    const int kvHeads = 2, rows = 2, heads = rows * kvHeads, queryHeads = kvHeads * c.group, bs = c.blockSize,
              perHead = (c.maxTokens + bs - 1) / bs, stride = (c.maxTokens + 31) / 32 * 32, capacity = c.listed + 1;
    const AttentionShape shape{queryHeads, kvHeads, c.dim, bs};
    const std::size_t element = blockElements(bs, c.dim), headElements = std::size_t(perHead) * element;
    const std::vector<std::int32_t> position{c.maxTokens - 1, std::max(1, c.maxTokens / 3)};
    const auto blocks = halves(std::size_t(heads) * headElements), q = halves(std::size_t(rows * queryHeads * c.dim));
    const auto promptQ = halves(std::size_t(c.maxTokens) * std::size_t(queryHeads * c.dim));
    const auto key = [&](int head, int token, int ch) {
        return double(toFloat(blocks[std::size_t(head) * headElements + std::size_t(token / bs) * element +
                                     std::size_t(token % bs * c.dim + ch)]));
    };
    const OnDevice<Half> dblocks(blocks), dq(q), dpromptQ(promptQ);
    LabelStore labels;
    labels.channels = c.channels;
    labels.bits = c.bits;
    labels.stride = stride;
    const OnDevice<std::uint32_t> codes(std::size_t(heads * labels.words() * stride));
    const OnDevice<float> steps(std::size_t(heads * stride)), lowest(std::size_t(heads * stride));
    const OnDevice<std::int32_t> channel(std::size_t(heads * c.channels));
    labels.codes = codes.get();
    labels.steps = steps.get();
    labels.lowest = lowest.get();
    labels.channel = channel.get();
    const OnDevice<float> maxima(std::vector<float>(std::size_t((queryHeads + kvHeads) * c.dim), 0.f));
    for (int row = 0; row < rows; ++row) {
        const int tokens = position[std::size_t(row)] + 1;
        const __nv_bfloat16* of = dblocks.bf16() + std::size_t(row * kvHeads) * headElements;
        check(cudaMemset(maxima.get(), 0, std::size_t((queryHeads + kvHeads) * c.dim) * sizeof(float)), "test");
        for (int begin = 0; begin < tokens; begin += 77) {
            ObserveArgs observe;
            observe.shape = shape;
            observe.n = std::min(77, tokens - begin);
            observe.first = begin;
            observe.q = dpromptQ.bf16() + std::size_t(begin) * std::size_t(queryHeads * c.dim);
            observe.blocks = of;
            observe.headStride = std::int64_t(headElements);
            observeMaxima(launch, observe, maxima.get());
        }
        pickChannelsByMaxima(launch, maxima.get(), shape, row, labels);
        labelPrompt(launch, {shape, row, tokens, of, std::int64_t(headElements), labels});
    }
    std::vector<std::int32_t> list(std::size_t(heads * capacity), -1), counts, place(list.size(), -1);
    std::vector<std::int64_t> slotFirst;
    for (int head = 0; head < heads; ++head) {
        const auto mine = randomBlocks(c.listed, position[std::size_t(head / kvHeads)] / bs, random);
        std::vector<std::int32_t> slots(static_cast<std::size_t>(perHead));
        std::iota(slots.begin(), slots.end(), 0);
        std::shuffle(slots.begin(), slots.end(), random);
        for (std::size_t i = 0; i < mine.size(); ++i) {
            list[std::size_t(head * capacity) + i] = mine[i];
            place[std::size_t(head * capacity) + i] = slots[i];
        }
        counts.push_back(std::int32_t(mine.size()));
        slotFirst.push_back(std::int64_t(head) * perHead);
    }
    const OnDevice<std::int32_t> dlist(list), dcounts(counts), dplace(place), dposition(position);
    const OnDevice<std::int32_t> places(std::size_t(heads * c.wanted)), placeCount(static_cast<std::size_t>(heads));
    const OnDevice<float> scores(std::size_t(heads * c.wanted));
    LabelChoiceArgs args;
    args.shape = shape;
    args.rows = rows;
    args.position = dposition.get();
    args.q = dq.bf16();
    args.labels = labels;
    args.roundsQuery = false;
    args.scale = 1 / std::sqrt(float(c.dim));
    args.blocks = dlist.get();
    args.blockCount = dcounts.get();
    args.blockCapacity = capacity;
    args.maxTokens = capacity * bs;
    args.wanted = args.capacity = c.wanted;
    args.tokens = places.get();
    args.tokenScores = scores.get();
    args.count = placeCount.get();
    chooseByLabels(launch, args);

    // Every block in its slot, and the chosen tokens out of them; bias by position.
    std::vector<Half> pool(blocks.size(), 0x7fc0);
    for (int head = 0; head < heads; ++head)
        for (int i = 0; i < counts[std::size_t(head)]; ++i)
            std::copy_n(blocks.begin() + std::ptrdiff_t(std::size_t(head) * headElements +
                                                        std::size_t(list[std::size_t(head * capacity + i)]) * element),
                        element,
                        pool.begin() + std::ptrdiff_t(std::size_t(head) * headElements +
                                                      std::size_t(place[std::size_t(head * capacity + i)]) * element));
    const auto bias = floats(std::size_t(heads * perHead * bs));
    const int packedBlocks = (c.wanted + bs - 1) / bs;
    const OnDevice<Half> dpool(pool), packed(std::size_t(heads * packedBlocks) * element);
    const OnDevice<float> dbias(bias), packedBias(std::size_t(heads * packedBlocks * bs));
    const OnDevice<std::int64_t> dslotFirst(slotFirst);
    PackArgs pack;
    pack.shape = shape;
    pack.rows = rows;
    pack.tokens = places.get();
    pack.count = placeCount.get();
    pack.capacity = c.wanted;
    pack.blocks = dpool.bf16();
    pack.first = dslotFirst.get();
    pack.place = dplace.get();
    pack.listed = dlist.get();
    pack.maxBlocks = capacity;
    pack.bias = dbias.get();
    pack.biasStride = perHead * bs;
    pack.packed = packed.bf16();
    pack.packedBias = packedBias.get();
    pack.packedBlocks = packedBlocks;
    packTokens(launch, pack);
    check(cudaStreamSynchronize(launch.stream), "choosing and packing");

    const auto gotPlaces = places.read(), gotCount = placeCount.read(), gotChannels = channel.read();
    const auto gotScores = scores.read(), gotBias = packedBias.read();
    const auto gotPacked = packed.read();
    for (int head = 0; head < heads; ++head) {
        SCOPED_TRACE(head);
        const int row = head / kvHeads, g = head % kvHeads, last = position[std::size_t(row)];
        std::vector<double> importance(std::size_t(c.dim), 0.0);
        for (int ch = 0; ch < c.dim; ++ch) {
            double mostK = 0, sum = 0;
            for (int t = 0; t <= last; ++t) mostK = std::max(mostK, std::abs(key(head, t, ch)));
            for (int h = g * c.group; h < (g + 1) * c.group; ++h) {
                double mostQ = 0;
                for (int t = 0; t <= last; ++t)
                    mostQ = std::max(
                        mostQ, std::abs(double(toFloat(promptQ[std::size_t((t * queryHeads + h) * c.dim + ch)]))));
                sum += mostQ;
            }
            importance[std::size_t(ch)] = sum / c.group * mostK;
        }
        const std::vector<int> chosen(gotChannels.begin() + head * c.channels,
                                      gotChannels.begin() + (head + 1) * c.channels);
        std::vector<double> ranked = importance;
        std::sort(ranked.rbegin(), ranked.rend());
        for (int i = 0; i < c.channels; ++i)
            ASSERT_NEAR(importance[std::size_t(chosen[std::size_t(i)])], ranked[std::size_t(i)],
                        1e-6 * ranked[std::size_t(i)]);
        std::vector<int> tokens; // of the listed blocks
        for (int i = 0; i < counts[std::size_t(head)]; ++i)
            for (int t = 0; t < bs; ++t)
                if (const int token = list[std::size_t(head * capacity + i)] * bs + t; token <= last)
                    tokens.push_back(token);
        const auto label = [&](int token) {
            std::vector<double> x;
            for (const int ch : chosen) x.push_back(key(head, token, ch));
            if (c.bits != 4) return x;
            const auto [low, high] = std::minmax_element(x.begin(), x.end()); // codes in float32, as the rule has them
            const float least = float(*low), range = float(*high) - least, scale = 15.f / (range == 0.f ? 1.f : range);
            std::vector<double> rounded;
            for (const double value : x)
                rounded.push_back(std::clamp(double(std::nearbyint((float(value) - least) * scale)), 0.0, 15.0) /
                                      double(scale) +
                                  double(least));
            return rounded;
        };
        std::vector<double> want(tokens.size(), 0.0);
        std::vector<std::vector<double>> cut;
        for (const int token : tokens) cut.push_back(label(token));
        for (int h = g * c.group; h < (g + 1) * c.group; ++h) {
            std::vector<double> weights;
            double sum = 0;
            for (const auto& of : cut) {
                double logit = 0;
                for (std::size_t i = 0; i < chosen.size(); ++i)
                    logit += double(toFloat(q[std::size_t((row * queryHeads + h) * c.dim + chosen[i])])) * of[i];
                weights.push_back(std::exp(double(args.scale) * logit));
                sum += weights.back();
            }
            for (std::size_t t = 0; t < weights.size(); ++t) want[t] += weights[t] / sum / c.group;
        }
        const int n = gotCount[std::size_t(head)];
        ASSERT_EQ(n, std::min(c.wanted, int(tokens.size())));
        std::vector<double> best = want;
        std::sort(best.rbegin(), best.rend());
        const double limit = best[std::size_t(n - 1)];
        std::vector<bool> in(want.size(), false);
        for (int i = 0; i < n; ++i) {
            const auto at = std::size_t(head * c.wanted + i);
            ASSERT_TRUE(i == 0 || gotPlaces[at] > gotPlaces[at - 1]);
            ASSERT_LT(gotPlaces[at], int(tokens.size()));
            const auto t = std::size_t(gotPlaces[at]);
            in[t] = true;
            ASSERT_NEAR(gotScores[at], want[t], 1e-4 * want[t]); // float32 logits of up to about 10, then exp
            const int token = tokens[t];
            const std::size_t block = (std::size_t(head * packedBlocks) + std::size_t(i / bs)) * element;
            const std::size_t from = std::size_t(head) * headElements + std::size_t(token / bs) * element;
            for (int ch = 0; ch < c.dim; ++ch) {
                ASSERT_EQ(gotPacked[block + std::size_t(i % bs * c.dim + ch)],
                          blocks[from + std::size_t(token % bs * c.dim + ch)]);
                ASSERT_EQ(gotPacked[block + std::size_t(bs * c.dim + ch * bs + i % bs)],
                          blocks[from + std::size_t(bs * c.dim + ch * bs + token % bs)]);
            }
            ASSERT_EQ(gotBias[std::size_t(head * packedBlocks * bs + i)],
                      bias[std::size_t(head * perHead * bs + token)]);
        }
        for (std::size_t t = 0; t < want.size(); ++t) { // with room for what float32 rounds
            if (in[t]) {
                ASSERT_GE(want[t], limit * (1 - 1e-4)) << t;
            } else {
                ASSERT_LE(want[t], limit * (1 + 1e-4)) << t;
            }
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Shapes, CudaCandidates,
                         ::testing::Values(Case{64, 8, 8, 4, 64, 1500, 6, 100}, Case{128, 4, 32, 4, 64, 9000, 60, 512},
                                           Case{128, 3, 13, 4, 16, 700, 11, 50}, Case{64, 1, 1, 4, 64, 400, 3, 1000},
                                           Case{128, 4, 32, 16, 64, 3000, 20, 256},
                                           Case{128, 10, 128, 4, 256, 2000, 4, 300}));

/// Random candidates, choices and filters: the record, and what is left for the next step.
TEST_F(CudaTest, CandidatesSettleAsBruteForceSays) {
    const int kvHeads = 3, rows = 3, heads = rows * kvHeads, group = 2, dim = 64, bs = 16, maxBlocks = 70,
              capacity = 21, placeCapacity = 40, maxWords = (maxBlocks + 31) / 32;
    const AttentionShape shape{kvHeads * group, kvHeads, dim, bs};
    for (int round = 0; round < 8; ++round) {
        SCOPED_TRACE(round);
        const bool lags = round % 4 != 3, predicts = round % 2 == 0;
        std::vector<std::int32_t> position{uniform(300, 1000), uniform(20, 60) * bs + bs - 1, uniform(20, 60) * bs};
        const std::vector<std::uint8_t> active{std::uint8_t(round % 3 == 2 ? 0 : 1), 1, 1};
        std::vector<std::uint32_t> candidates(std::size_t(heads * capacity), 7), next(candidates.size(), 9);
        std::vector<std::int32_t> count, nextCount, places(std::size_t(heads * placeCapacity), -1), placeCount;
        std::vector<SelectionHead> ahead, nextHead;
        std::vector<std::uint32_t> previous(std::size_t(heads * maxWords));
        for (std::uint32_t& word : previous) word = std::uint32_t(random());
        std::vector<std::uint8_t> hasPrevious;
        constexpr std::uint32_t kHit = 1u << kHitShift;
        for (int head = 0; head < heads; ++head) {
            const int last = position[std::size_t(head / kvHeads)] / bs;
            const bool begins = position[std::size_t(head / kvHeads)] % bs == 0;
            const auto mine = randomBlocks(uniform(2, capacity), last, random),
                       after = randomBlocks(uniform(2, capacity - 1), last, random);
            for (std::size_t i = 0; i < mine.size(); ++i)
                candidates[std::size_t(head * capacity) + i] =
                    std::uint32_t(mine[i]) | 2u << kOriginShift |
                    ((begins && i + 1 == mine.size()) || random() % 3 != 0 ? kHit : 0u);
            for (std::size_t i = 0; i < after.size(); ++i)
                next[std::size_t(head * capacity) + i] =
                    std::uint32_t(after[i]) | 1u << kOriginShift | (random() % 2 ? kHit : 0u);
            count.push_back(std::int32_t(mine.size()));
            nextCount.push_back(std::int32_t(after.size()));
            const int tokens = (int(mine.size()) - 1) * bs + position[std::size_t(head / kvHeads)] % bs + 1;
            std::set<std::int32_t> chosen;
            for (int i = uniform(1, std::min(tokens, placeCapacity)); i > 0; --i) chosen.insert(uniform(0, tokens - 1));
            std::copy(chosen.begin(), chosen.end(), places.begin() + head * placeCapacity);
            placeCount.push_back(std::int32_t(chosen.size()));
            const int predicted = predicts ? int(mine.size()) - (begins ? 1 : 0) : -1;
            ahead.push_back({predicted, -1, 0, 0, 3});
            nextHead.push_back({std::int32_t(after.size()), -1, 1, 2, 0});
            hasPrevious.push_back(std::uint8_t(random() % 4 != 0));
        }
        const auto q = halves(std::size_t(rows * kvHeads * group * dim));
        const auto ranges = halves(std::size_t(heads * maxBlocks * 2 * dim));
        std::vector<std::int64_t> blockFirst;
        for (int head = 0; head < heads; ++head) blockFirst.push_back(std::int64_t(head) * maxBlocks);
        const OnDevice<std::int32_t> dposition(position), dcount(count), dnextCount(nextCount), dplaces(places),
            dplaceCount(placeCount);
        const OnDevice<std::uint8_t> dactive(active), dhas(hasPrevious);
        const OnDevice<std::uint32_t> dcandidates(candidates), dnext(next), dprevious(previous),
            counts(std::vector<std::uint32_t>{5, 6}), published(std::vector<std::uint32_t>{4, 0}),
            outBlocks(candidates.size());
        const OnDevice<SelectionHead> dahead(ahead), dnextHead(nextHead), outHead(std::vector<SelectionHead>(9));
        const OnDevice<LagHead> lag(std::vector<LagHead>(9));
        const OnDevice<LagLayer> layer(std::vector<LagLayer>(1));
        const OnDevice<LagMarks> marks(std::vector<LagMarks>{{11, 12, 13, 14, 15}});
        const OnDevice<std::uint64_t> resumed(std::vector<std::uint64_t>{16});
        const OnDevice<Half> dq(q), dranges(ranges);
        const OnDevice<std::int64_t> dblockFirst(blockFirst);
        const OnDevice<float> outScores(candidates.size());
        SettleArgs a;
        a.shape = shape;
        a.rows = rows;
        a.capacity = capacity;
        a.maxBlocks = maxBlocks;
        a.position = dposition.get();
        a.active = dactive.get();
        const OnDevice<std::int32_t> ids(candidates.size());
        a.candidates = {dcandidates.get(), ids.get(), dcount.get(), lags ? dahead.get() : nullptr};
        if (lags) {
            a.next = {dnext.get(), nullptr, dnextCount.get(), dnextHead.get()};
            a.counts = counts.get();
            a.published = published.get();
            a.lag = lag.get();
        }
        a.places = dplaces.get();
        a.placeCount = dplaceCount.get();
        a.placeCapacity = placeCapacity;
        a.q = dq.bf16();
        a.index.ranges = dranges.bf16();
        a.index.blockFirst = dblockFirst.get();
        a.previous = dprevious.get();
        a.hasPrevious = dhas.get();
        a.head = outHead.get();
        a.blocks = outBlocks.get();
        a.scores = outScores.get();
        a.layer = layer.get();
        a.marks = marks.get();
        a.resumed = resumed.get();
        settleCandidates(launch, a);
        check(cudaStreamSynchronize(launch.stream), "settling");

        const auto gotHead = outHead.read(), gotAhead = dahead.read();
        const auto gotLag = lag.read();
        const auto gotBlocks = outBlocks.read(), left = dcandidates.read(), gotPrevious = dprevious.read();
        const auto leftCount = dcount.read(), leftIds = ids.read();
        const auto gotScores = outScores.read();
        const LagLayer gotLayer = layer.read()[0];
        EXPECT_EQ(gotLayer.marks.listed, 11u);
        EXPECT_EQ(gotLayer.marks.end, 15u);
        EXPECT_EQ(gotLayer.resumed, 16u);
        EXPECT_EQ(gotLayer.loads, lags ? 4u : 0u);
        EXPECT_EQ(published.read()[0], lags ? 5u : 4u);
        EXPECT_EQ(counts.read()[0], lags ? 0u : 5u);
        for (int head = 0; head < heads; ++head) {
            SCOPED_TRACE(head);
            const int row = head / kvHeads;
            const auto first = std::size_t(head * capacity);
            if (active[std::size_t(row)] == 0) {
                EXPECT_EQ(gotHead[std::size_t(head)].selected, 0) << "an inactive row is left alone";
                EXPECT_EQ(leftCount[std::size_t(head)], count[std::size_t(head)]);
                continue;
            }
            std::set<int> used;
            for (int i = 0; i < placeCount[std::size_t(head)]; ++i)
                used.insert(places[std::size_t(head * placeCapacity + i)] / bs);
            const int predicted = lags && predicts ? ahead[std::size_t(head)].selected : 0;
            int hits = 0, kept = 0, usedAhead = 0, wasted = 0, stale = 0, at = 0;
            std::set<std::uint32_t> listed;
            std::vector<std::uint32_t> bits(std::size_t(maxWords), 0);
            for (int i = 0; i < count[std::size_t(head)]; ++i) {
                const std::uint32_t entry = candidates[first + std::size_t(i)], block = entry & 0xffffff;
                listed.insert(block);
                if (used.count(i) == 0) {
                    wasted += i < predicted && (entry & kHit) == 0 ? 1 : 0;
                    continue;
                }
                hits += (entry & kHit) != 0 ? 1 : 0;
                usedAhead += i < predicted ? 1 : 0;
                bits[block / 32] |= 1u << block % 32;
                kept += int(previous[std::size_t(head * maxWords) + block / 32] >> block % 32 & 1u);
                EXPECT_EQ(gotBlocks[first + std::size_t(at)],
                          block | std::uint32_t(Origin::TokenLevel) << kOriginShift | (entry & kHit));
                double score = 0, size = 0;
                for (int h = 0; h < group; ++h)
                    for (int ch = 0; ch < dim; ++ch) {
                        const double x = double(toFloat(q[std::size_t((head * group + h) * dim + ch)]));
                        const std::size_t range = (std::size_t(head * maxBlocks) + block) * 2 * dim + std::size_t(ch);
                        score += std::max(x * double(toFloat(ranges[range])),
                                          x * double(toFloat(ranges[range + std::size_t(dim)])));
                        size += std::abs(x) * 4;
                    }
                EXPECT_NEAR(gotScores[first + std::size_t(at)], score, 1e-6 * size);
                ++at;
            }
            const SelectionHead& h = gotHead[std::size_t(head)];
            EXPECT_EQ(h.selected, at);
            EXPECT_EQ(h.hits, hits);
            EXPECT_EQ(h.misses, at - hits);
            EXPECT_EQ(h.kept, hasPrevious[std::size_t(head)] != 0 ? kept : -1);
            for (int w = 0; w < maxWords; ++w)
                EXPECT_EQ(gotPrevious[std::size_t(head * maxWords + w)], bits[std::size_t(w)]);
            if (!lags) continue;
            for (int i = 0; i < nextCount[std::size_t(head)]; ++i)
                stale += listed.count(next[first + std::size_t(i)] & 0xffffff) == 0 ? 1 : 0;
            const LagHead& l = gotLag[std::size_t(head)];
            EXPECT_EQ(l.predicted, ahead[std::size_t(head)].selected);
            EXPECT_EQ(l.used, predicts ? usedAhead : 0);
            EXPECT_EQ(l.wasted, predicts ? wasted : 0);
            EXPECT_EQ(l.late, predicts ? 3 : 0);
            EXPECT_EQ(l.stale, stale);
            const bool begins = (position[std::size_t(row)] + 1) % bs == 0;
            ASSERT_EQ(leftCount[std::size_t(head)], nextCount[std::size_t(head)] + (begins ? 1 : 0));
            for (int i = 0; i < nextCount[std::size_t(head)]; ++i)
                EXPECT_EQ(left[first + std::size_t(i)], next[first + std::size_t(i)]);
            for (int i = 0; i < leftCount[std::size_t(head)]; ++i)
                EXPECT_EQ(leftIds[first + std::size_t(i)], std::int32_t(left[first + std::size_t(i)] & 0xffffff));
            if (begins) {
                EXPECT_EQ(left[first + std::size_t(nextCount[std::size_t(head)])],
                          std::uint32_t((position[std::size_t(row)] + 1) / bs) | 1u << kOriginShift | kHit);
            }
            EXPECT_EQ(gotAhead[std::size_t(head)].selected, nextHead[std::size_t(head)].selected);
            EXPECT_EQ(gotAhead[std::size_t(head)].late, 0u);
        }
    }
}

TEST_F(CudaTest, AttendedShareAgreesWithFloat64) {
    const int kvHeads = 2, group = 5, rows = 2, maxBlocks = 300, bs = 64;
    const std::vector<std::int32_t> position{40, 299 * bs + 3};
    auto blocks = floats(std::size_t(rows * kvHeads * group * maxBlocks), 4);
    std::vector<float> attended;
    std::vector<double> want(std::size_t(rows * kvHeads), 0.0);
    for (int head = 0; head < rows * kvHeads * group; ++head) {
        const int count = position[std::size_t(head / (kvHeads * group))] / bs + 1;
        double all = 0;
        for (int b = 0; b < count; ++b) all += std::exp(double(blocks[std::size_t(head * maxBlocks + b)]));
        attended.push_back(float(std::log(all * (0.1 + 0.08 * (head % 10)))));
        want[std::size_t(head / group)] += (0.1 + 0.08 * (head % 10)) / group;
    }
    const OnDevice<float> dblocks(blocks), dattended(attended), share(want.size());
    const OnDevice<std::int32_t> dposition(position);
    attendedShare(launch, {{kvHeads * group, kvHeads, 64, bs},
                           rows,
                           maxBlocks,
                           dposition.get(),
                           nullptr,
                           dattended.get(),
                           dblocks.get(),
                           share.get()});
    check(cudaStreamSynchronize(launch.stream), "measuring");
    const auto got = share.read();
    for (std::size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-5 * 20); // logs of float32
}

} // namespace
} // namespace kvscope::cuda
