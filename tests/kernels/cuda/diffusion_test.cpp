// The kernels of block diffusion against float64: queries, keys and values of blocks and how much queries changed;
// active tokens; pages of each query and their union; attention over a prefix, over pages and over the block, merged;
// candidates.
#include "tests/kernels/cuda/diffusion_fixture.h"

#include "kernels/cuda/diffusion/block_attention.h"
#include "kernels/cuda/diffusion/block_place.h"
#include "kernels/cuda/diffusion/page_union.h"
#include "kernels/cuda/diffusion/unmask.h"

#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

namespace kvscope::cuda {
namespace KVSCOPE_TEST_FILE {

using namespace test;
using Shape = DiffusionShape;

TEST_P(CudaDiffusion, PlacesBlocksAndMeasuresChanges) {
    const int heads = shape.queryHeads + 2 * s.kvHeads, half = s.dim / 2, positions = 2000;
    const auto qkv = floats(std::size_t(kRows * s.block * heads * s.dim));
    const auto angles = floats(std::size_t((positions + 5) * half));
    std::vector<float> cos, sin;
    for (const float angle : angles) cos.push_back(std::cos(angle)), sin.push_back(std::sin(angle));
    auto before = floats(std::size_t(kRows * s.block * shape.queryHeads * s.dim));
    const auto queryNorm = floats(std::size_t(s.dim)), keyNorm = floats(std::size_t(s.dim));
    for (const bool normed : {true, false}) {
        SCOPED_TRACE(normed);
        const OnDevice<float> dqkv(qkv), dcos(cos), dsin(sin), dbefore(before), dqn(queryNorm), dkn(keyNorm);
        const OnDevice<std::int32_t> ropeFirst(std::vector<std::int32_t>{0, 3, 5});
        const OnDevice<std::int64_t> first(headFirst);
        const OnDevice<BlockRow> on(table);
        const OnDevice<Half> dq(q.size()), blocks(store);
        const OnDevice<float> changes(std::size_t(kRows * s.block * shape.queryHeads * 2));
        BlockPlaceArgs args;
        args.rows = rowsOf(on, nullptr, first);
        args.qkv = dqkv.get(), args.cos = dcos.get(), args.sin = dsin.get(), args.ropeFirst = ropeFirst.get();
        if (normed) args.norms = {dqn.get(), dkn.get(), 1e-6f};
        args.q = dq.bf16(), args.blocks = blocks.bf16(), args.before = dbefore.get();
        args.changes = reinterpret_cast<float2*>(changes.get());
        placeBlocks(launch, args);
        const auto gotQ = dq.read(), gotStore = blocks.read();
        const auto gotBefore = dbefore.read(), gotChanges = changes.read();
        auto wantStore = store;
        const int ropeRows[] = {0, 3, 5};
        for (int row = 0; row < kRows; row += 2)
            for (int t = 0; t < s.block; ++t) {
                const int position = table[std::size_t(row)].first + t;
                const float* in = qkv.data() + std::size_t((row * s.block + t) * heads * s.dim);
                for (int h = 0; h < heads; ++h, in += s.dim) {
                    std::vector<double> x(in, in + s.dim);
                    const bool query = h < shape.queryHeads, key = !query && h < shape.queryHeads + s.kvHeads;
                    if (normed && (query || key)) {
                        double squares = 0;
                        for (const double value : x) squares += value * value;
                        for (int c = 0; c < s.dim; ++c)
                            x[std::size_t(c)] *= double((query ? queryNorm : keyNorm)[std::size_t(c)]) /
                                                 std::sqrt(squares / s.dim + 1e-6);
                    }
                    std::vector<double> y = x;
                    for (int c = 0; c < half && (query || key); ++c) {
                        const auto at = std::size_t((ropeRows[row] + position) * half + c);
                        const double a = x[std::size_t(c)], b = x[std::size_t(c + half)];
                        y[std::size_t(c)] = a * double(cos[at]) - b * double(sin[at]);
                        y[std::size_t(c + half)] = b * double(cos[at]) + a * double(sin[at]);
                    }
                    if (query) {
                        const auto head = std::size_t((row * s.block + t) * shape.queryHeads + h);
                        double change = 0, size = 0;
                        for (int c = 0; c < s.dim; ++c) {
                            const auto at = head * std::size_t(s.dim) + std::size_t(c);
                            ASSERT_NEAR(double(toFloat(gotQ[at])), y[std::size_t(c)],
                                        1e-2 + 1e-2 * std::abs(y[std::size_t(c)]))
                                << "row " << row << " token " << t << " head " << h << " channel " << c;
                            ASSERT_NEAR(double(gotBefore[at]), y[std::size_t(c)],
                                        1e-4 + 1e-4 * std::abs(y[std::size_t(c)]));
                            change += std::pow(y[std::size_t(c)] - double(before[at]), 2);
                            size += std::pow(y[std::size_t(c)], 2);
                        }
                        ASSERT_NEAR(double(gotChanges[head * 2]), change, 1e-3 * change);
                        ASSERT_NEAR(double(gotChanges[head * 2 + 1]), size, 1e-3 * size);
                        continue;
                    }
                    const int g = (h - shape.queryHeads) % s.kvHeads, within = position % s.page;
                    const auto place = std::size_t(blockOf(row, g, position / s.page) - store.data());
                    for (int c = 0; c < s.dim; ++c)
                        wantStore[place +
                                  std::size_t(key ? within * s.dim + c : s.page * s.dim + c * s.page + within)] =
                            toBf16(float(y[std::size_t(c)]));
                }
            }
        for (std::size_t i = 0; i < store.size(); ++i)
            ASSERT_NEAR(toFloat(gotStore[i]), toFloat(wantStore[i]), 1e-2f * std::abs(toFloat(wantStore[i])) + 1e-3f)
                << "element " << i << " of the store";
    }
}

TEST_P(CudaDiffusion, NamesTheMostChangedTokens) {
    std::vector<float> changes;
    for (int i = 0; i < kRows * s.block * shape.queryHeads; ++i) {
        const int token = i / shape.queryHeads % s.block;
        // Every third token has not changed but for rounding; two neighbours changed alike.
        changes.push_back(token % 3 == 0 ? 1e-12f : float(1 + token / 2 * 7 % 11));
        changes.push_back(100.f);
    }
    table[0].flags |= BlockRow::kSparse | BlockRow::kCompares;
    table[2].flags |= BlockRow::kCompares; // dense
    const OnDevice<BlockRow> on(table);
    const OnDevice<std::int64_t> first(headFirst);
    const OnDevice<float> dchanges(changes);
    for (const bool perHead : {false, true})
        for (const int count : {0, 5, 64})
            for (const bool byThreshold : {false, true}) {
                const int sets = perHead ? s.kvHeads : 1, heads = shape.queryHeads / sets;
                const OnDevice<std::uint64_t> active(std::size_t(kRows * s.kvHeads));
                const OnDevice<float> scores(std::size_t(kRows * sets * s.block));
                NameActiveArgs args;
                args.rows = rowsOf(on, nullptr, first);
                args.changes = reinterpret_cast<const float2*>(dchanges.get());
                args.perHead = perHead, args.count = count, args.byThreshold = byThreshold;
                args.threshold = 4.0 / s.dim;
                args.active = active.get(), args.scores = scores.get();
                nameActive(launch, args);
                const auto got = active.read();
                const auto gotScores = scores.read();
                const std::uint64_t all = s.block == 64 ? ~std::uint64_t(0) : (std::uint64_t(1) << s.block) - 1;
                for (int g = 0; g < s.kvHeads; ++g) {
                    const int set = perHead ? g : 0;
                    std::vector<double> want;
                    for (int t = 0; t < s.block; ++t) {
                        double sum = 0;
                        for (int h = 0; h < heads; ++h)
                            sum += double(changes[std::size_t((t * shape.queryHeads + set * heads + h) * 2)]);
                        want.push_back(sum < 1e-10 * 100 * heads ? 0 : sum / (heads * s.dim));
                        ASSERT_FLOAT_EQ(gotScores[std::size_t(set * s.block + t)], float(want.back())) << "token " << t;
                    }
                    std::vector<int> order = upTo(s.block);
                    std::stable_sort(order.begin(), order.end(),
                                     [&](int a, int b) { return want[std::size_t(a)] > want[std::size_t(b)]; });
                    std::uint64_t expected = 0;
                    for (int i = 0; i < s.block; ++i)
                        if (byThreshold ? want[std::size_t(order[std::size_t(i)])] >= args.threshold : i < count)
                            expected |= std::uint64_t(1) << order[std::size_t(i)];
                    EXPECT_EQ(got[std::size_t(g)], expected) << "head " << g << " count " << count;
                    EXPECT_EQ(got[std::size_t(2 * s.kvHeads + g)], all);
                }
            }
}

TEST_P(CudaDiffusion, UnitesThePagesOfActiveQueries) {
    table[0].flags |= BlockRow::kSparse;
    table[2].flags |= BlockRow::kSparse;
    std::vector<Half> ranges(std::size_t(kRows * s.kvHeads * maxPages * 2 * s.dim));
    for (std::size_t i = 0; i < ranges.size(); ++i) {
        const float a = toFloat(halves(1)[0]);
        ranges[i] = toBf16((i / std::size_t(s.dim)) % 2 == 0 ? -std::abs(a) : std::abs(a) * 2);
    }
    std::vector<std::uint64_t> active;
    for (int item = 0; item < kRows * s.kvHeads; ++item)
        active.push_back(item == 0 ? 0 : std::uint64_t(random()) & (s.block == 64 ? ~0ull : (1ull << s.block) - 1));
    const OnDevice<BlockRow> on(table);
    const OnDevice<std::int64_t> first(headFirst);
    const OnDevice<Half> dq(q), dranges(ranges);
    const OnDevice<std::uint64_t> dactive(active);
    for (const int pagesPerQuery : {1, 3, 8, 4000}) {
        PageUnionArgs args;
        args.rows = rowsOf(on, dactive.get(), first);
        args.q = dq.bf16(), args.ranges = dranges.bf16(), args.maxPages = maxPages, args.pagesPerQuery = pagesPerQuery;
        const auto items = std::size_t(kRows * s.kvHeads), words = std::size_t(args.wordsOf());
        const OnDevice<float> scores(items * std::size_t(args.rows.queries() * args.scoreStride()));
        const OnDevice<std::uint32_t> bits(std::vector<std::uint32_t>(items * words, 0)),
            arrivals(std::vector<std::uint32_t>(items, 0)), record(items * words);
        const OnDevice<std::int32_t> pages(items * std::size_t(maxPages)), count(items);
        args.scores = scores.get(), args.words = bits.get(), args.arrivals = arrivals.get();
        args.pages = pages.get(), args.count = count.get(), args.record = record.get();
        scoreUnionPages(launch, args);
        unitePages(launch, args);
        const auto gotScores = scores.read();
        const auto gotCount = count.read(), gotPages = pages.read();
        const auto gotRecord = record.read();
        for (const std::uint32_t word : bits.read()) ASSERT_EQ(word, 0u);
        for (const std::uint32_t word : arrivals.read()) ASSERT_EQ(word, 0u);
        for (int row = 0; row < kRows; row += 2)
            for (int g = 0; g < s.kvHeads; ++g) {
                const auto item = std::size_t(row * s.kvHeads + g);
                const int complete = table[std::size_t(row)].first / s.page;
                std::set<int> want;
                int query = 0;
                for (int t = 0; t < s.block; ++t)
                    for (int h = 0; h < s.group && (active[item] >> t & 1) != 0; ++h, ++query) {
                        const float* const mine =
                            gotScores.data() + (item * std::size_t(args.rows.queries()) + std::size_t(query)) *
                                                   std::size_t(args.scoreStride());
                        for (int page = 0; page < complete; ++page) {
                            double bound = 0;
                            for (int c = 0; c < s.dim; ++c) {
                                const auto at = std::size_t((headFirst[item] + page) * 2 * s.dim + c);
                                const double x = queryAt(row, t, g * s.group + h, c);
                                bound += std::max(x * double(toFloat(ranges[at])),
                                                  x * double(toFloat(ranges[at + std::size_t(s.dim)])));
                            }
                            ASSERT_NEAR(double(mine[page]), bound, 1e-3 + 1e-5 * std::abs(bound))
                                << "row " << row << " head " << g << " query " << query << " page " << page;
                        }
                        std::vector<int> order = upTo(complete); // by the kernel's own scores: the choice is exact
                        std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return mine[a] > mine[b]; });
                        order.resize(std::size_t(std::min(pagesPerQuery, complete)));
                        want.insert(order.begin(), order.end());
                    }
                if (table[std::size_t(row)].first % s.page != 0 && query > 0) want.insert(complete);
                const std::vector<std::int32_t> got(gotPages.begin() + std::ptrdiff_t(item) * maxPages,
                                                    gotPages.begin() + std::ptrdiff_t(item) * maxPages +
                                                        gotCount[item]);
                EXPECT_EQ(got, std::vector<std::int32_t>(want.begin(), want.end())) << "row " << row << " head " << g;
                std::vector<std::int32_t> recorded;
                for (std::size_t w = 0; w < words; ++w)
                    for (std::uint32_t word = gotRecord[item * words + w]; word != 0; word &= word - 1)
                        recorded.push_back(std::int32_t(w) * 32 + std::countr_zero(word));
                EXPECT_EQ(recorded, got);
            }
    }
}

/// Row 0 attends to pages, row 2 to its whole prefix; then tokens that are not active keep what they had.
TEST_P(CudaDiffusion, AttendsToPrefixOrPagesAndToTheBlock) {
    const double scale = 1 / std::sqrt(double(s.dim));
    table[0].flags |= BlockRow::kSparse;
    const std::uint64_t all = s.block == 64 ? ~std::uint64_t(0) : (std::uint64_t(1) << s.block) - 1;
    std::vector<std::uint64_t> active(std::size_t(kRows * s.kvHeads), all);
    for (int g = 0; g < s.kvHeads; ++g) active[std::size_t(g)] = std::uint64_t(random()) & all;
    std::vector<std::int32_t> pages(std::size_t(kRows * s.kvHeads * maxPages)), count(std::size_t(kRows * s.kvHeads));
    const int last = (table[0].first - 1) / s.page;
    for (int g = 0; g < s.kvHeads; ++g) {
        const auto chosen = randomBlocks(uniform(1, last + 1), last, random);
        std::copy(chosen.begin(), chosen.end(), pages.begin() + std::ptrdiff_t(g) * maxPages);
        count[std::size_t(g)] = int(chosen.size());
    }
    const auto numbers = std::size_t(kRows * s.block * shape.queryHeads);
    const auto kept = floats(numbers * std::size_t(s.dim)), keptSums = floats(numbers);
    const OnDevice<BlockRow> on(table);
    const OnDevice<std::int64_t> first(headFirst);
    const OnDevice<Half> dq(q), blocks(store);
    const OnDevice<std::uint64_t> dactive(active);
    const OnDevice<std::int32_t> dpages(pages), dcount(count);
    const int processors = launch.multiprocessors;
    for (const int multiprocessors : {processors, 2}) {
        launch.multiprocessors = multiprocessors;
        const BlockRows rows = rowsOf(on, dactive.get(), first);
        const int splits = blockSplits(launch, rows, maxPages * s.page);
        SCOPED_TRACE(splits);
        const OnDevice<float> partial(numbers * std::size_t(splits * s.dim)), states(numbers * std::size_t(splits) * 2),
            prefix(kept), sums(keptSums);
        const OnDevice<Half> out(numbers * std::size_t(s.dim));
        BlockAttentionArgs args;
        args.rows = rows, args.q = dq.bf16(), args.blocks = blocks.bf16(), args.pages = dpages.get();
        args.pageCount = dcount.get(), args.capacity = maxPages, args.scale = float(scale), args.splits = splits;
        args.partial = partial.get(), args.states = reinterpret_cast<float2*>(states.get());
        blockAttention(launch, args);
        BlockMergeArgs merge;
        merge.rows = rows, merge.q = args.q, merge.blocks = args.blocks, merge.pageCount = args.pageCount;
        merge.scale = args.scale, merge.splits = splits, merge.partial = args.partial, merge.states = args.states;
        merge.prefix = prefix.get(), merge.prefixSums = sums.get(), merge.out = out.bf16();
        mergeBlocks(launch, merge);
        const auto gotPrefix = prefix.read(), gotSums = sums.read();
        const auto gotOut = out.read();
        for (int row = 0; row < kRows; row += 2)
            for (int token = 0; token < s.block; token += 3)
                for (int head = 0; head < shape.queryHeads; ++head) {
                    const int g = head / s.group, begin = table[std::size_t(row)].first;
                    const auto item = std::size_t(row * s.kvHeads + g);
                    const auto at = std::size_t((row * s.block + token) * shape.queryHeads + head);
                    std::vector<int> positions = upTo(begin);
                    if (row == 0) {
                        positions.clear();
                        for (int i = 0; i < count[item]; ++i)
                            for (int t = 0; t < s.page; ++t)
                                if (const int p = pages[item * std::size_t(maxPages) + std::size_t(i)] * s.page + t;
                                    p < begin)
                                    positions.push_back(p);
                    }
                    std::vector<double> want = attention(row, token, head, positions, scale);
                    if ((active[item] >> token & 1) == 0) {
                        want.assign(kept.begin() + std::ptrdiff_t(at) * s.dim,
                                    kept.begin() + std::ptrdiff_t(at + 1) * s.dim);
                        want.push_back(double(keptSums[at]));
                    }
                    const double sum = want.back();
                    want.pop_back();
                    SCOPED_TRACE(::testing::Message() << "row " << row << " token " << token << " head " << head
                                                      << ((active[item] >> token & 1) != 0 ? " active" : " kept"));
                    ASSERT_NEAR(double(gotSums[at]), sum, 1e-3);
                    ASSERT_LT(relativeError(std::vector<float>(gotPrefix.begin() + std::ptrdiff_t(at) * s.dim,
                                                               gotPrefix.begin() + std::ptrdiff_t(at + 1) * s.dim),
                                            want),
                              6e-3);
                    const std::vector<double> own = attention(row, token, head, upTo(begin + s.block, begin), scale);
                    const double most = std::max(sum, own.back()), p = std::exp(sum - most),
                                 b = std::exp(own.back() - most);
                    std::vector<float> merged;
                    for (int c = 0; c < s.dim; ++c) {
                        want[std::size_t(c)] = (p * want[std::size_t(c)] + b * own[std::size_t(c)]) / (p + b);
                        merged.push_back(toFloat(gotOut[at * std::size_t(s.dim) + std::size_t(c)]));
                    }
                    ASSERT_LT(relativeError(merged, want), 8e-3);
                }
    }
}

/// A prompt: its blocks see themselves and what is before them; no splits, no merge.
TEST_P(CudaDiffusion, ReadsPromptsBlockByBlock) {
    const double scale = 1 / std::sqrt(double(s.dim));
    const int sequence = 2;
    std::vector<BlockRow> prompt;
    for (int row = 0; row < kRows; ++row)
        prompt.push_back({sequence, (row + 4) * s.block, (row + 5) * s.block, BlockRow::kTaken});
    const OnDevice<BlockRow> on(prompt);
    const OnDevice<std::int64_t> first(headFirst);
    const OnDevice<Half> dq(q), blocks(store), out(q.size());
    BlockAttentionArgs args;
    args.rows = rowsOf(on, nullptr, first);
    args.q = dq.bf16(), args.blocks = blocks.bf16(), args.scale = float(scale), args.out = out.bf16();
    blockAttention(launch, args);
    const auto got = out.read();
    for (int row = 0; row < kRows; ++row)
        for (int token = 0; token < s.block; token += 5)
            for (int head = 0; head < shape.queryHeads; ++head) {
                std::vector<double> want(std::size_t(s.dim), 0.0), logits;
                double most = -1e300, sum = 0;
                for (int p = 0; p < prompt[std::size_t(row)].keys; ++p) {
                    double dot = 0;
                    for (int c = 0; c < s.dim; ++c)
                        dot += queryAt(row, token, head, c) * keyAt(sequence, head / s.group, p, c);
                    logits.push_back(dot * scale);
                    most = std::max(most, logits.back());
                }
                for (std::size_t p = 0; p < logits.size(); ++p) {
                    sum += std::exp(logits[p] - most);
                    for (int c = 0; c < s.dim; ++c)
                        want[std::size_t(c)] +=
                            std::exp(logits[p] - most) * valueAt(sequence, head / s.group, int(p), c);
                }
                std::vector<float> mine;
                for (int c = 0; c < s.dim; ++c) {
                    want[std::size_t(c)] /= sum;
                    mine.push_back(
                        toFloat(got[std::size_t(((row * s.block + token) * shape.queryHeads + head) * s.dim + c)]));
                }
                ASSERT_LT(relativeError(mine, want), 8e-3) << "row " << row << " token " << token << " head " << head;
            }
}

TEST_P(CudaDiffusion, BoundsThePagesOfCleanBlocks) {
    table[2].flags |= BlockRow::kClean;
    const OnDevice<BlockRow> on(table);
    const OnDevice<std::int64_t> first(headFirst);
    const OnDevice<Half> blocks(store), ranges(std::size_t(kRows * s.kvHeads * maxPages * 2 * s.dim));
    boundBlocks(launch, {rowsOf(on, nullptr, first), blocks.bf16(), ranges.bf16(), nullptr});
    const auto got = ranges.read();
    const int begin = table[2].first, end = begin + s.block;
    for (int g = 0; g < s.kvHeads; ++g)
        for (int page = 0; page < maxPages; ++page)
            for (int c = 0; c < s.dim; c += 7) {
                const auto at = std::size_t((headFirst[std::size_t(2 * s.kvHeads + g)] + page) * 2 * s.dim + c);
                if (page < begin / s.page || page > (end - 1) / s.page) {
                    ASSERT_EQ(got[at], 0xffff) << "page " << page;
                    continue;
                }
                double low = 1e300, high = -1e300;
                for (int p = page * s.page; p < std::min(end, (page + 1) * s.page); ++p)
                    low = std::min(low, keyAt(2, g, p, c)), high = std::max(high, keyAt(2, g, p, c));
                ASSERT_EQ(double(toFloat(got[at])), low) << "page " << page << " channel " << c;
                ASSERT_EQ(double(toFloat(got[at + std::size_t(s.dim)])), high);
            }
}

INSTANTIATE_TEST_SUITE_P(Shapes, CudaDiffusion,
                         ::testing::Values(Shape{64, 2, 3, 16, 16}, Shape{128, 2, 4, 16, 16}, Shape{128, 1, 4, 64, 32},
                                           Shape{128, 2, 4, 256, 16}, Shape{64, 2, 1, 48, 7}, Shape{64, 1, 8, 32, 64},
                                           Shape{128, 2, 2, 16, 1}));

class CudaCandidates : public CudaTest {};

TEST_F(CudaCandidates, AreThoseOfThePlainSoftmaxOverAllowedIds) {
    const int rows = 2, block = 5;
    for (const int vocab : {7, 1000, 40000}) {
        auto logits = floats(std::size_t(rows * block * vocab), 3);
        std::vector<std::uint8_t> allowed(std::size_t(vocab), 1);
        for (int id = 0; id < vocab; ++id) allowed[std::size_t(id)] = id % 5 != 4;
        logits[std::size_t(0 * vocab + 3)] = logits[std::size_t(0 * vocab + 1)] = 20; // equal: the lower id
        logits[std::size_t(1 * vocab + 4)] = 50;                                      // not allowed
        logits[std::size_t(2 * vocab + 2)] = std::numeric_limits<float>::infinity();
        logits[std::size_t(3 * vocab + 4)] = std::numeric_limits<float>::quiet_NaN(); // not allowed: not looked at
        const std::vector<BlockRow> table{{0, 0, 0, BlockRow::kTaken}, {1, 0, 0, 0}};
        const OnDevice<BlockRow> on(table);
        const OnDevice<std::uint64_t> masked(std::vector<std::uint64_t>{0b01111, 0b11111});
        const OnDevice<float> dlogits(logits);
        const OnDevice<std::uint8_t> dallowed(allowed);
        const OnDevice<BlockCandidate> out(std::vector<BlockCandidate>(std::size_t(rows * block), {-7, -7, -7, 0}));
        chooseCandidates(
            launch, {rows, block, vocab, on.get(), masked.get(), dlogits.get(), dallowed.get(), out.get(), nullptr});
        const auto got = out.read();
        for (int i = 0; i < rows * block; ++i) {
            const BlockCandidate& candidate = got[std::size_t(i)];
            if (i >= 4) {
                EXPECT_EQ(candidate.id, -7) << i;
                continue;
            }
            if (i == 2) {
                EXPECT_EQ(candidate.id, -1);
                continue;
            }
            int best = -1;
            double sum = 0, entropy = 0;
            const float* const mine = logits.data() + std::size_t(i * vocab);
            for (int id = 0; id < vocab; ++id)
                if (allowed[std::size_t(id)] != 0 && (best < 0 || mine[id] > mine[best])) best = id;
            for (int id = 0; id < vocab; ++id)
                if (allowed[std::size_t(id)] != 0) sum += std::exp(double(mine[id]) - double(mine[best]));
            for (int id = 0; id < vocab; ++id) {
                const double p =
                    allowed[std::size_t(id)] != 0 ? std::exp(double(mine[id]) - double(mine[best])) / sum : 0;
                if (p > 0) entropy -= p * std::log(p);
            }
            EXPECT_EQ(candidate.id, best) << "vocabulary " << vocab << " position " << i;
            EXPECT_NEAR(candidate.confidence, 1 / sum, 1e-5);
            EXPECT_NEAR(candidate.entropy, entropy, 1e-4);
        }
    }
}

TEST_F(CudaCandidates, AreWrittenInTheOrderOfTheStrategy) {
    const int rows = 3, block = 64;
    std::vector<BlockCandidate> candidates;
    std::vector<std::int32_t> ids;
    for (int i = 0; i < rows * block; ++i) {
        candidates.push_back({double(i * 7 % 13) / 13, 0, i == 5 ? -1 : 1000 + i, 0});
        ids.push_back(i);
    }
    const std::vector<std::uint64_t> masked{0xfff0ff0000000f30ull, ~0ull, ~0ull};
    const std::vector<BlockRow> table{{0, 0, 0, BlockRow::kTaken, 7}, {1, 0, 0, 0, 3}, {2, 0, 0, BlockRow::kTaken, 64}};
    for (const bool leftmost : {false, true}) {
        const OnDevice<BlockRow> on(table);
        const OnDevice<BlockCandidate> from(candidates);
        const OnDevice<std::uint64_t> masks(masked);
        const OnDevice<std::int32_t> written(ids), record(ids.size());
        writeCandidates(launch,
                        {rows, block, on.get(), from.get(), leftmost, masks.get(), written.get(), record.get()});
        auto wantIds = ids;
        auto wantMasks = masked;
        for (const int row : {0, 2}) {
            std::vector<int> order;
            for (int i = 0; i < block; ++i)
                if ((masked[std::size_t(row)] >> i & 1) != 0) order.push_back(i);
            if (!leftmost)
                std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
                    return candidates[std::size_t(row * block + a)].confidence >
                           candidates[std::size_t(row * block + b)].confidence;
                });
            order.resize(std::min(order.size(), std::size_t(table[std::size_t(row)].writes)));
            for (const int i : order) {
                wantIds[std::size_t(row * block + i)] = std::max(candidates[std::size_t(row * block + i)].id, 0);
                wantMasks[std::size_t(row)] &= ~(std::uint64_t(1) << i);
            }
        }
        EXPECT_EQ(written.read(), wantIds);
        EXPECT_EQ(masks.read(), wantMasks);
        const auto recorded = record.read();
        for (const int row : {0, 2})
            for (int i = 0; i < block; ++i)
                EXPECT_EQ(recorded[std::size_t(row * block + i)], wantIds[std::size_t(row * block + i)]);
    }
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::cuda
