// Tokens of query heads (InfiniGen in its original form) against float64 and brute force.
#include "tests/kernels/cuda/device.h"

#include "kernels/cuda/choice/token_choice.h"
#include "kernels/cuda/methods/head_tokens.h"
#include "kernels/cuda/methods/partial_keys.h"

#include <algorithm>
#include <numeric>

namespace kvscope::cuda {
namespace KVSCOPE_TEST_FILE {

using namespace test;

class CudaHeadTokens : public CudaTest {};

/// Directions of every query head's own over its KV head's keys: a prompt, then a step.
TEST_F(CudaHeadTokens, EveryQueryHeadScoresEveryToken) {
    for (const auto& [dim, dims, bs, group] : {std::tuple{64, 12, 16, 3}, {128, 25, 64, 4}, {64, 64, 32, 1}}) {
        constexpr int kRows = 3, kKvHeads = 2;
        const int queryHeads = kKvHeads * group, heads = kRows * queryHeads, width = partialWidth(dims),
                  tokens = 5 * bs - 3, room = 6 * bs;
        const AttentionShape shape{queryHeads, kKvHeads, dim, bs};
        auto directions = floats(std::size_t(heads * dim * width), 0.3f);
        for (std::size_t i = 0; i < directions.size(); ++i)
            if (int(i % std::size_t(width)) >= dims) directions[i] = 0;
        const std::size_t element = blockElements(bs, dim), headElements = std::size_t(room / bs) * element;
        const auto blocks = halves(std::size_t(kRows * kKvHeads) * headElements),
                   newKey = halves(std::size_t(kRows * kKvHeads * dim)), q = halves(std::size_t(heads * dim));
        const std::vector<std::uint8_t> active{1, 0, 1};
        const OnDevice<float> ddirections(directions), scores(std::size_t(heads * room));
        const OnDevice<Half> kept(std::size_t(heads * room * width)), dblocks(blocks), dnewKey(newKey), dq(q);
        const OnDevice<std::int32_t> appended(std::vector<std::int32_t>(kRows, tokens)),
            next(std::vector<std::int32_t>(kRows, tokens + 1));
        const OnDevice<std::uint8_t> dactive(active);
        PartialKeys partial;
        partial.directions = ddirections.get();
        partial.keys = kept.bf16();
        partial.stride = room;
        partial.width = width;
        partial.sharing = group;
        for (int row = 0; row < kRows; ++row)
            keepPartialPrompt(launch, {shape, row, tokens, dblocks.bf16() + std::size_t(row * kKvHeads) * headElements,
                                       std::int64_t(headElements), partial});
        appendPartialKey(launch, {shape, kRows, appended.get(), dactive.get(), dnewKey.bf16(), partial});
        PartialTokenScoreArgs args;
        args.shape = shape;
        args.rows = kRows;
        args.position = next.get();
        args.active = dactive.get();
        args.q = dq.bf16();
        args.partial = partial;
        args.scale = 0.25f;
        args.maxTokens = room;
        args.scores = scores.get();
        args.stride = room;
        scorePartialTokens(launch, args);
        check(cudaStreamSynchronize(launch.stream), "scoring");
        const auto got = scores.read();
        for (int head = 0; head < heads; ++head) {
            const int item = head / group;
            const auto along = [&](const Half* x, int i) {
                double sum = 0;
                for (int c = 0; c < dim; ++c)
                    sum += double(toFloat(x[c])) * double(directions[std::size_t((head * dim + c) * width + i)]);
                return sum;
            };
            std::vector<double> mine, want;
            for (int token = 0; token <= tokens; ++token) {
                const Half* key = token < tokens ? blocks.data() + std::size_t(item) * headElements +
                                                       std::size_t(token / bs) * element + std::size_t(token % bs * dim)
                                                 : newKey.data() + std::size_t(item * dim);
                double score = 0;
                for (int i = 0; i < dims; ++i) score += along(q.data() + std::size_t(head * dim), i) * along(key, i);
                want.push_back(0.25 * score);
                mine.push_back(double(got[std::size_t(head * room + token)]));
            }
            if (active[std::size_t(head / queryHeads)] == 0) {
                EXPECT_TRUE(std::isnan(mine[0])) << "an inactive row is left alone";
                continue;
            }
            EXPECT_LT(relativeError(mine, want), 6e-3) << "partial keys are bf16"; // of 2^-9 each
        }
    }
}

TEST_F(CudaHeadTokens, QueriesAreMeasuredAlongVectors) {
    for (const int dim : {64, 128}) {
        const int heads = 3;
        const AttentionShape shape{heads, heads, dim, 64};
        const auto vectors = floats(std::size_t(heads * dim * dim), 0.1f);
        const OnDevice<float> dvectors(vectors), sums(std::vector<float>(std::size_t(heads * dim), 0.f));
        std::vector<double> want(std::size_t(heads * dim), 0.0);
        for (const int tokens : {130, 1, 0, 40}) {
            const auto q = halves(std::size_t(tokens * heads * dim));
            const OnDevice<Half> dq(q);
            addLengthsAlong(launch, {shape, dq.bf16(), tokens, dvectors.get(), sums.get()});
            check(cudaStreamSynchronize(launch.stream), "measuring");
            for (int token = 0; token < tokens; ++token)
                for (int h = 0; h < heads; ++h)
                    for (int i = 0; i < dim; ++i) {
                        double along = 0;
                        for (int c = 0; c < dim; ++c)
                            along += double(toFloat(q[std::size_t((token * heads + h) * dim + c)])) *
                                     double(vectors[std::size_t((h * dim + i) * dim + c)]);
                        want[std::size_t(h * dim + i)] += std::abs(along);
                    }
        }
        EXPECT_LT(relativeError(sums.read(), want), 1e-5);
    }
}

/// From scores to lists: how many, which, and where each query head's lie among its KV head's.
TEST_F(CudaHeadTokens, HeadsTakeTheMeanNumberAndAreUnited) {
    for (int round = 0; round < 6; ++round) {
        SCOPED_TRACE(round);
        const int kvHeads = uniform(1, 3), group = uniform(1, 6), rows = 3, queryHeads = kvHeads * group,
                  heads = rows * queryHeads, most = round == 0 ? 7 : uniform(40, 200), unitedMost = group * most + 1,
                  maxTokens = round == 1 ? 40'000 : 700;
        const AttentionShape shape{queryHeads, kvHeads, 64, 16};
        const std::vector<std::uint8_t> active{1, std::uint8_t(round % 2), 1};
        const std::vector<std::int32_t> position{uniform(1, maxTokens - 1), uniform(1, maxTokens - 1), maxTokens - 1};
        const float alpha = round == 2 ? 100.f : 1.5f; // beyond all: the cap
        const auto scores = floats(std::size_t(heads * maxTokens));
        const OnDevice<float> dscores(scores);
        const OnDevice<std::int32_t> dposition(position), length(static_cast<std::size_t>(heads)),
            wanted(static_cast<std::size_t>(1)), tokens(std::size_t(heads * most)),
            count(std::vector<std::int32_t>(std::size_t(heads), 0)), united(std::size_t(rows * kvHeads * unitedMost)),
            unitedCount(static_cast<std::size_t>(rows * kvHeads)), own(std::size_t(heads * (most + 1))),
            places(std::size_t(heads * (most + 1))), ownCount(static_cast<std::size_t>(heads));
        const OnDevice<std::uint8_t> dactive(active);
        const OnDevice<std::uint64_t> total(std::vector<std::uint64_t>{0});
        const OnDevice<std::uint32_t> arrived(std::vector<std::uint32_t>{0});
        NearCountArgs near;
        near.rows = rows;
        near.heads = queryHeads;
        near.position = dposition.get();
        near.active = dactive.get();
        near.scores = dscores.get();
        near.stride = maxTokens;
        near.alpha = alpha;
        near.most = most;
        near.length = length.get();
        near.wanted = wanted.get();
        near.total = total.get();
        near.arrived = arrived.get();
        for (int again = 0; again < 2; ++again) countNear(launch, near); // what it counts with is left as it was
        TokenChoiceArgs choice;
        choice.rows = rows;
        choice.kvHeads = queryHeads;
        choice.active = dactive.get();
        choice.scores = dscores.get();
        choice.stride = maxTokens;
        choice.length = length.get();
        choice.maxLength = maxTokens;
        choice.wanted = choice.capacity = most;
        choice.fewer = wanted.get();
        choice.tokens = tokens.get();
        choice.count = count.get();
        chooseTokens(launch, choice);
        UniteArgs unite;
        unite.shape = shape;
        unite.rows = rows;
        unite.maxTokens = maxTokens;
        unite.position = dposition.get();
        unite.active = dactive.get();
        unite.tokens = tokens.get();
        unite.count = count.get();
        unite.capacity = most;
        unite.united = united.get();
        unite.unitedCount = unitedCount.get();
        unite.unitedCapacity = unitedMost;
        unite.own = own.get();
        unite.places = places.get();
        unite.ownCount = ownCount.get();
        uniteHeads(launch, unite);
        check(cudaStreamSynchronize(launch.stream), "choosing");

        std::int64_t sum = 0, lists = 0;
        for (int head = 0; head < heads; ++head) {
            const int row = head / queryHeads;
            if (active[std::size_t(row)] == 0) continue;
            const auto begin = scores.begin() + std::ptrdiff_t(head) * maxTokens,
                       end = begin + position[std::size_t(row)];
            const float limit = *std::max_element(begin, end) - alpha;
            sum += std::count_if(begin, end, [&](float s) { return s > limit; });
            ++lists;
        }
        const int want = int(std::clamp<std::int64_t>(sum / lists, 1, most));
        EXPECT_EQ(wanted.read()[0], want);
        const auto gotUnited = united.read(), gotUnitedCount = unitedCount.read(), gotOwn = own.read(),
                   gotPlaces = places.read(), gotOwnCount = ownCount.read();
        for (int item = 0; item < rows * kvHeads; ++item) {
            const int row = item / kvHeads, newest = position[std::size_t(row)];
            if (active[std::size_t(row)] == 0) continue;
            std::set<std::int32_t> all{newest};
            const auto listed = gotUnited.begin() + std::ptrdiff_t(item) * unitedMost;
            for (int head = item * group; head < (item + 1) * group; ++head) {
                std::vector<std::int32_t> order(static_cast<std::size_t>(newest));
                std::iota(order.begin(), order.end(), 0);
                const auto scoreOf = [&](std::int32_t t) { return scores[std::size_t(head * maxTokens + t)]; };
                std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return scoreOf(a) > scoreOf(b); });
                order.resize(std::min(order.size(), std::size_t(want)));
                order.push_back(newest);
                std::sort(order.begin(), order.end());
                all.insert(order.begin(), order.end());
                const auto first = std::ptrdiff_t(head) * (most + 1);
                ASSERT_EQ(gotOwnCount[std::size_t(head)], int(order.size()));
                ASSERT_TRUE(std::equal(order.begin(), order.end(), gotOwn.begin() + first));
                for (std::size_t i = 0; i < order.size(); ++i) {
                    const std::int32_t place = gotPlaces[std::size_t(first) + i];
                    ASSERT_GE(place, 0);
                    ASSERT_LT(place, gotUnitedCount[std::size_t(item)]);
                    ASSERT_EQ(listed[place], order[i]);
                }
            }
            ASSERT_EQ(gotUnitedCount[std::size_t(item)], int(all.size()));
            ASSERT_TRUE(std::equal(all.begin(), all.end(), listed));
        }
    }
}

TEST_F(CudaHeadTokens, ListedTokensAreFetchedAndTheNewestIsPlaced) {
    for (const auto& [dim, blocks] : {std::pair{64, 3}, {128, 8}}) {
        const int kvHeads = 2, rows = 3, heads = rows * kvHeads, tokens = 300, capacity = 120;
        const AttentionShape shape{kvHeads * 2, kvHeads, dim, 16};
        const std::vector<std::uint8_t> active{1, 1, 0};
        const std::vector<std::int32_t> position{250, 299, 10};
        const auto store = halves(std::size_t(heads * tokens * 2 * dim)), newKey = halves(std::size_t(heads * dim)),
                   newValue = halves(std::size_t(heads * dim));
        std::vector<std::int32_t> list(std::size_t(heads * capacity), -1), count;
        std::vector<std::int64_t> first;
        for (int head = 0; head < heads; ++head) {
            const auto mine = randomBlocks(uniform(1, capacity), position[std::size_t(head / kvHeads)], random);
            std::copy(mine.begin(), mine.end(), list.begin() + head * capacity);
            count.push_back(std::int32_t(mine.size()));
            first.push_back(std::int64_t(head) * tokens);
        }
        const OnDevice<Half> dstore(store), dnewKey(newKey), dnewValue(newValue),
            fetched(std::size_t(heads * capacity * 2 * dim));
        const OnDevice<std::int32_t> dlist(list), dcount(count), dposition(position);
        const OnDevice<std::int64_t> dfirst(first);
        const OnDevice<std::uint8_t> dactive(active);
        const OnDevice<std::uint64_t> marks(std::vector<std::uint64_t>{0, 0});
        FetchTokensArgs fetch;
        fetch.shape = shape;
        fetch.rows = rows;
        fetch.active = dactive.get();
        fetch.tokens = dlist.get();
        fetch.count = dcount.get();
        fetch.capacity = capacity;
        fetch.store = dstore.bf16();
        fetch.first = dfirst.get();
        fetch.to = fetched.bf16();
        fetch.mark = marks.get();
        fetch.endMark = marks.get() + 1;
        fetchTokens(launch, fetch, blocks);
        PlaceNewestArgs place;
        place.shape = shape;
        place.rows = rows;
        place.position = dposition.get();
        place.active = dactive.get();
        place.newKey = dnewKey.bf16();
        place.newValue = dnewValue.bf16();
        place.store = dstore.bf16();
        place.first = dfirst.get();
        place.fetched = fetched.bf16();
        place.count = dcount.get();
        place.capacity = capacity;
        placeNewest(launch, place);
        check(cudaStreamSynchronize(launch.stream), "fetching");
        const auto got = fetched.read(), stored = dstore.read();
        EXPECT_GE(marks.read()[1], marks.read()[0]);
        for (int head = 0; head < heads; ++head) {
            const bool rests = active[std::size_t(head / kvHeads)] == 0;
            const int newest = position[std::size_t(head / kvHeads)];
            const auto wanted = [&](int token, int c) {
                if (token != newest || rests) return store[std::size_t((head * tokens + token) * 2 * dim + c)];
                return c < dim ? newKey[std::size_t(head * dim + c)] : newValue[std::size_t(head * dim + c - dim)];
            };
            for (int c = 0; c < 2 * dim; ++c) {
                ASSERT_EQ(stored[std::size_t((head * tokens + newest) * 2 * dim + c)], wanted(newest, c));
                for (int i = 0; i < count[std::size_t(head)]; ++i)
                    ASSERT_EQ(got[std::size_t((head * capacity + i) * 2 * dim + c)],
                              rests ? 0xffff : wanted(list[std::size_t(head * capacity + i)], c));
            }
        }
    }
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::cuda
