// The kernels of masked diffusion against float64: rows that are gathered, scattered and added; which tokens
// Sparse-dLLM keeps, and their copies; which tokens dLLM-Cache computes; attention of tiles, the last of which is not
// full, to everything; the second best of a position's ids.
#include "tests/kernels/cuda/device.h"

#include "base/error.h"
#include "kernels/cuda/diffusion/block_attention.h"
#include "kernels/cuda/diffusion/canvas_changes.h"
#include "kernels/cuda/diffusion/canvas_keep.h"
#include "kernels/cuda/diffusion/canvas_merge.h"
#include "kernels/cuda/diffusion/canvas_rows.h"
#include "kernels/cuda/diffusion/unmask.h"

#include <functional>
#include <numeric>

namespace kvscope::cuda {
namespace KVSCOPE_TEST_FILE {

using namespace test;

class CudaCanvasRows : public CudaTest {};

TEST_F(CudaCanvasRows, AreGatheredScatteredAndAdded) {
    for (const int width : {4, 64, 1540}) {
        const int rows = 37, places = 50;
        std::vector<std::int32_t> at(std::size_t(places), 0);
        std::iota(at.begin(), at.end(), 0);
        std::shuffle(at.begin(), at.end(), random);
        at.resize(std::size_t(rows));
        at[3] = at[36] = -1;
        const auto big = floats(std::size_t(places * width)), small = floats(std::size_t(rows * width));
        const auto rowOf = [&](const std::vector<float>& of, int row) {
            const auto begin = of.begin() + std::ptrdiff_t(row) * width;
            return std::vector<float>(begin, begin + width);
        };
        const OnDevice<std::int32_t> list(at);
        const OnDevice<float> from(big), gathered(small.size()), some(small), scattered(big), sums(small);
        gatherRows(launch, {rows, width, from.get(), gathered.get(), list.get()});
        scatterRows(launch, {rows, width, some.get(), scattered.get(), list.get()});
        addRows(launch, {rows, width, from.get(), sums.get(), list.get()});
        const auto gotGathered = gathered.read(), gotSums = sums.read(), gotScattered = scattered.read();
        auto wantScattered = big;
        for (int row = 0; row < rows; ++row) {
            const int place = at[std::size_t(row)];
            const auto there = place < 0 ? std::vector<float>(std::size_t(width), 0.f) : rowOf(big, place);
            EXPECT_EQ(rowOf(gotGathered, row), there) << row;
            auto sum = rowOf(small, row);
            for (int c = 0; c < width; ++c) sum[std::size_t(c)] += there[std::size_t(c)];
            EXPECT_EQ(rowOf(gotSums, row), sum) << row;
            if (place < 0) continue;
            const auto here = rowOf(small, row);
            std::copy(here.begin(), here.end(), wantScattered.begin() + std::ptrdiff_t(place) * width);
        }
        EXPECT_EQ(gotScattered, wantScattered);
    }
}

TEST_F(CudaCanvasRows, OfOddWidthsAreRefused) {
    const CanvasRowsArgs args{1, 6, nullptr, nullptr, nullptr};
    EXPECT_THROW(gatherRows(launch, args), Error);
}

struct Shape {
    int dim, kvHeads, group, page;
};
void PrintTo(const Shape& s, std::ostream* out) {
    *out << "dim " << s.dim << ", " << s.kvHeads << " heads of " << s.group << ", page " << s.page;
}

/// Keys and values of three sequences, a KV head's blocks behind the other's; behind all of them room for copies.
class CudaCanvas : public CudaTest, public ::testing::WithParamInterface<Shape> {
protected:
    static constexpr int kSequences = 3;

    void SetUp() override {
        CudaTest::SetUp();
        if (IsSkipped()) return;
        shape = {s.kvHeads * s.group, s.kvHeads, s.dim, s.page};
        for (int copies = 0; copies < 2; ++copies)
            for (const int n : tokens)
                for (int g = 0; g < s.kvHeads; ++g) {
                    (copies == 0 ? headFirst : keptFirst).push_back(blocks);
                    blocks += (n + s.page - 1) / s.page;
                }
        store = halves(std::size_t(blocks) * blockElements(s.page, s.dim));
    }
    std::size_t blockAt(const std::vector<std::int64_t>& first, int sequence, int g, int position) const {
        return std::size_t(first[std::size_t(sequence * s.kvHeads + g)] + position / s.page) *
               blockElements(s.page, s.dim);
    }
    std::size_t keyAt(const std::vector<std::int64_t>& first, int sequence, int g, int position, int c) const {
        return blockAt(first, sequence, g, position) + std::size_t(position % s.page * s.dim + c);
    }
    std::size_t valueAt(const std::vector<std::int64_t>& first, int sequence, int g, int position, int c) const {
        return blockAt(first, sequence, g, position) + std::size_t((s.dim + c) * s.page + position % s.page);
    }
    double stored(std::size_t at) const { return double(toFloat(store[at])); }

    const Shape s = GetParam();
    const std::vector<int> tokens{301, 57, 1000};
    AttentionShape shape;
    std::int64_t blocks = 0;
    std::vector<std::int64_t> headFirst, keptFirst;
    std::vector<Half> store;
};

/// The best of their neighbourhoods, ascending; of equal ones the lower.
std::vector<int> bestOf(const std::vector<float>& scores, int reach, int count) {
    std::vector<float> pooled;
    const int n = int(scores.size());
    for (int i = 0; i < n; ++i)
        pooled.push_back(
            *std::max_element(scores.begin() + std::max(0, i - reach), scores.begin() + std::min(n, i + reach + 1)));
    std::vector<int> order(scores.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int a, int b) { return pooled[std::size_t(a)] > pooled[std::size_t(b)]; });
    order.resize(std::size_t(count));
    std::sort(order.begin(), order.end());
    return order;
}

TEST_P(CudaCanvas, KeepsTheTokensThatTheBlockAgreesWith) {
    const int block = 13, most = 1000, mostKept = 600;
    const std::vector<int> blockFirst{288, 0, 500}, kept{100, 44, 600}; // the last block; the first; one between
    std::vector<KeepRow> rows;
    int places = 0;
    for (const int sequence : {0, 1, 2}) {
        const auto i = std::size_t(sequence);
        rows.push_back({sequence, places, tokens[i], blockFirst[i], kept[i]});
        places += tokens[i] + 5;
    }
    const int width = shape.queryHeads * s.dim;
    const auto q = halves(std::size_t(places * width));
    for (const int kernel : {1, 3, 255}) {
        const OnDevice<Half> dq(q), dstore(store);
        const OnDevice<std::int64_t> first(headFirst), copies(keptFirst);
        const OnDevice<KeepRow> table(rows);
        const OnDevice<float> mean(std::size_t(kSequences * s.kvHeads * s.dim)), importance(std::size_t(3 * most));
        const OnDevice<std::int32_t> chosen(std::size_t(kSequences * mostKept));
        KeepArgs args;
        args.shape = shape;
        args.rows = kSequences, args.blockTokens = block, args.mostTokens = most, args.mostKept = mostKept;
        args.kernel = kernel, args.table = table.get(), args.q = dq.bf16(), args.blocks = dstore.bf16();
        args.headFirst = first.get(), args.keptFirst = copies.get();
        args.mean = mean.get(), args.importance = importance.get(), args.kept = chosen.get();
        scoreCanvasTokens(launch, args);
        keepCanvasTokens(launch, args);
        const auto gotScores = importance.read();
        const auto gotKept = chosen.read();
        const auto gotStore = dstore.read();
        for (const KeepRow& row : rows) {
            std::vector<float> got;
            std::vector<double> want;
            const int others = row.tokens - block;
            for (int other = 0; other < others; ++other) {
                const int position = other < row.block ? other : other + block;
                double sum = 0;
                for (int i = 0; i < block; ++i)
                    for (int h = 0; h < shape.queryHeads; ++h)
                        for (int c = 0; c < s.dim; ++c)
                            sum += double(toFloat(
                                       q[std::size_t((row.firstQuery + row.block + i) * width + h * s.dim + c)])) *
                                   stored(keyAt(headFirst, row.sequence, h / s.group, position, c));
                want.push_back(sum / (shape.queryHeads * block));
                got.push_back(gotScores[std::size_t(row.sequence * most + other)]);
            }
            EXPECT_LT(relativeError(got, want), 1e-5);
            const auto best = bestOf(got, kernel / 2, row.kept);
            for (int place = 0; place < row.kept; ++place) {
                const int other = best[std::size_t(place)], position = other < row.block ? other : other + block;
                ASSERT_EQ(gotKept[std::size_t(row.sequence * mostKept + place)], position) << place;
                for (int g = 0; g < s.kvHeads; ++g)
                    for (int c = 0; c < s.dim; ++c) {
                        ASSERT_EQ(gotStore[keyAt(keptFirst, row.sequence, g, place, c)],
                                  store[keyAt(headFirst, row.sequence, g, position, c)]);
                        ASSERT_EQ(gotStore[valueAt(keptFirst, row.sequence, g, place, c)],
                                  store[valueAt(headFirst, row.sequence, g, position, c)]);
                    }
            }
        }
    }
}

TEST_P(CudaCanvas, ComputesTheTokensWhoseValuesChangedMost) {
    const int most = 400, mostComputed = 90, stride = (shape.queryHeads + 2 * s.kvHeads) * s.dim,
              values = s.kvHeads * s.dim, valueAt0 = stride - values;
    // Sequence, prompt, canvas, first value, first compared, first kept, count, first place
    const std::vector<ChangeRow> rows{{0, 201, 100, 3, 0, 0, 30, 10}, {2, 600, 400, 150, 100, 700, 90, 45}};
    auto qkv = floats(std::size_t(600 * stride));
    for (int c = 0; c < values; ++c) { // one token has the same values as before, one has none
        qkv[std::size_t((3 + 17) * stride + valueAt0 + c)] =
            toFloat(store[valueAt(headFirst, 0, c / s.dim, 201 + 17, c % s.dim)]);
        qkv[std::size_t((150 + 9) * stride + valueAt0 + c)] = 0;
    }
    auto compared = halves(std::size_t(500 * values));
    for (const bool sinceComputed : {false, true}) {
        SCOPED_TRACE(sinceComputed);
        const OnDevice<ChangeRow> table(rows);
        const OnDevice<float> dqkv(qkv), changes(std::size_t(kSequences * most));
        const OnDevice<Half> dstore(store), dcompared(compared);
        const OnDevice<std::int64_t> first(headFirst);
        const OnDevice<std::int32_t> computed(std::size_t(kSequences * mostComputed)), sources(std::size_t(200)),
            targets(std::size_t(200));
        const OnDevice<BlockRow> places(std::vector<BlockRow>(200));
        ChangeArgs args;
        args.shape = shape;
        args.rows = int(rows.size()), args.mostTokens = most, args.mostComputed = mostComputed;
        args.table = table.get(), args.qkv = dqkv.get(), args.stride = stride, args.valueAt = valueAt0;
        args.blocks = dstore.bf16(), args.headFirst = first.get();
        args.compared = sinceComputed ? dcompared.bf16() : nullptr;
        args.changes = changes.get(), args.computed = computed.get(), args.places = places.get();
        args.sources = sources.get(), args.targets = targets.get();
        compareValues(launch, args);
        chooseChanged(launch, args);
        const auto gotChanges = changes.read();
        const auto gotComputed = computed.read(), gotSources = sources.read(), gotTargets = targets.read();
        const auto gotPlaces = places.read();
        const auto gotStore = dstore.read();
        for (const ChangeRow& row : rows) {
            std::vector<float> got;
            for (int token = 0; token < row.tokens; ++token) {
                double product = 0, ofNow = 0, ofBefore = 0;
                for (int i = 0; i < values; ++i) {
                    const Half now = toBf16(qkv[std::size_t((row.firstValue + token) * stride + valueAt0 + i)]);
                    const std::size_t at = valueAt(headFirst, row.sequence, i / s.dim, row.prompt + token, i % s.dim);
                    ASSERT_EQ(gotStore[at], now);
                    const double x = double(toFloat(now)),
                                 y = sinceComputed
                                         ? double(
                                               toFloat(compared[std::size_t((row.firstCompared + token) * values + i)]))
                                         : stored(at);
                    product += x * y, ofNow += x * x, ofBefore += y * y;
                }
                const double cosine =
                    product / (std::max(std::sqrt(ofNow), 1e-8) * std::max(std::sqrt(ofBefore), 1e-8));
                got.push_back(gotChanges[std::size_t(row.sequence * most + token)]);
                ASSERT_NEAR(got.back(), std::max(0.0, 1 - cosine), 1e-6) << token;
            }
            const auto best = bestOf(got, 0, row.count);
            for (int i = 0; i < row.count; ++i) {
                const int token = best[std::size_t(i)], position = row.prompt + token;
                const auto place = std::size_t(row.firstPlace + i);
                ASSERT_EQ(gotComputed[std::size_t(row.sequence * mostComputed + i)], position);
                ASSERT_EQ(gotSources[place], row.firstValue + token);
                ASSERT_EQ(gotTargets[place], row.firstKept + position);
                ASSERT_EQ(gotPlaces[place].first, position);
                ASSERT_EQ(gotPlaces[place].sequence, row.sequence);
                ASSERT_EQ(gotPlaces[place].flags, std::uint32_t(BlockRow::kTaken));
            }
        }
        if (!sinceComputed) {
            EXPECT_EQ(gotChanges[17], 0.f) << "the same numbers";
        }
        EXPECT_EQ(gotChanges[std::size_t(2 * most + 9)], 1.f) << "no values";
    }
}

TEST_P(CudaCanvas, KeepsValuesOfComputedTokensOfACanvas) {
    const int stride = (shape.queryHeads + 2 * s.kvHeads) * s.dim, values = s.kvHeads * s.dim,
              valueAt0 = stride - values;
    const auto qkv = floats(std::size_t(4 * stride));
    // A token of a prompt, two of a canvas, and a place of no token.
    const std::vector<BlockRow> rows{
        {0, 7, 8, BlockRow::kTaken}, {0, 12, 13, BlockRow::kTaken}, {1, 5, 6, BlockRow::kTaken}, {}};
    const std::vector<std::int32_t> prompts{10, 5}, firstRow{-10, 15}; // the second canvas's rows begin at 20
    const auto before = halves(std::size_t(30 * values));
    const OnDevice<BlockRow> table(rows);
    const OnDevice<float> dqkv(qkv);
    const OnDevice<std::int32_t> dprompts(prompts), dfirst(firstRow);
    const OnDevice<Half> compared(before);
    keepValues(launch, {{shape, 4, 1, table.get(), nullptr, nullptr},
                        dqkv.get(),
                        stride,
                        valueAt0,
                        dfirst.get(),
                        dprompts.get(),
                        compared.bf16()});
    auto want = before;
    for (int i = 0; i < values; ++i) {
        want[std::size_t(2 * values + i)] = toBf16(qkv[std::size_t(1 * stride + valueAt0 + i)]);
        want[std::size_t(20 * values + i)] = toBf16(qkv[std::size_t(2 * stride + valueAt0 + i)]);
    }
    EXPECT_EQ(compared.read(), want);
}

TEST_P(CudaCanvas, TilesAttendToEverything) {
    const int tile = 51, sequence = 0, n = tokens[0], tiles = (n + tile - 1) / tile, width = shape.queryHeads * s.dim;
    std::vector<BlockRow> table;
    std::vector<std::uint64_t> attending;
    for (int t = 0; t < tiles; ++t) {
        table.push_back({sequence, t * tile, n, BlockRow::kTaken});
        const int here = std::min(tile, n - t * tile);
        attending.insert(attending.end(), std::size_t(s.kvHeads), ~std::uint64_t(0) >> (64 - here));
    }
    const auto q = halves(std::size_t(tiles * tile * width));
    const OnDevice<BlockRow> on(table);
    const OnDevice<std::uint64_t> active(attending);
    const OnDevice<std::int64_t> first(headFirst);
    const OnDevice<Half> dq(q), dstore(store);
    BlockAttentionArgs args;
    args.rows = {shape, tiles, tile, on.get(), active.get(), first.get()};
    args.q = dq.bf16(), args.blocks = dstore.bf16();
    args.scale = 1.f / std::sqrt(float(s.dim));
    std::vector<std::vector<Half>> outputs; // by one thread block for each tile; by several that share the keys
    for (const int splits : {1, 4}) {
        const OnDevice<Half> out(q.size());
        const auto cells = std::size_t(splits * tiles * tile * shape.queryHeads);
        const OnDevice<float> partial(cells * std::size_t(s.dim)), states(cells * 2);
        args.splits = splits, args.out = out.bf16();
        if (splits > 1) args.partial = partial.get(), args.states = reinterpret_cast<float2*>(states.get());
        blockAttention(launch, args);
        if (splits > 1) mergeShares(launch, {args.rows, splits, args.partial, args.states, args.out});
        outputs.push_back(out.read());
    }
    std::vector<double> want;
    std::vector<std::size_t> at;
    for (const int token : {0, 1, tile - 1, tile, n - 2, n - 1})
        for (int h = 0; h < shape.queryHeads; ++h) {
            std::vector<double> logits;
            for (int key = 0; key < n; ++key) {
                double dot = 0;
                for (int c = 0; c < s.dim; ++c)
                    dot += double(toFloat(q[std::size_t(token * width + h * s.dim + c)])) *
                           stored(keyAt(headFirst, sequence, h / s.group, key, c));
                logits.push_back(dot * double(args.scale));
            }
            const double top = *std::max_element(logits.begin(), logits.end());
            double sum = 0;
            for (double& logit : logits) sum += logit = std::exp(logit - top);
            for (int c = 0; c < s.dim; ++c) {
                double value = 0;
                for (int key = 0; key < n; ++key)
                    value += logits[std::size_t(key)] * stored(valueAt(headFirst, sequence, h / s.group, key, c));
                want.push_back(value / sum);
                at.push_back(std::size_t(token * width + h * s.dim + c));
            }
        }
    for (const auto& got : outputs) {
        std::vector<float> mine;
        for (const std::size_t place : at) mine.push_back(toFloat(got[place]));
        EXPECT_LT(relativeError(mine, want), 6e-3);
        EXPECT_EQ(got[std::size_t(n * width)], 0xffff) << "behind the last token nothing is written";
    }
}

INSTANTIATE_TEST_SUITE_P(Shapes, CudaCanvas,
                         ::testing::Values(Shape{64, 4, 1, 64}, Shape{128, 1, 7, 64}, Shape{64, 2, 2, 16}));

class CudaCanvasCandidates : public CudaTest {};

TEST_F(CudaCanvasCandidates, HaveTheSecondLargestProbability) {
    const int rows = 4, vocab = 3001;
    auto logits = floats(std::size_t(rows * vocab), 3);
    std::vector<std::uint8_t> allowed(std::size_t(vocab), 1);
    allowed[5] = 0;
    logits[std::size_t(0 * vocab + 5)] = 90; // not allowed: neither first nor second
    logits[std::size_t(1 * vocab + 8)] = logits[std::size_t(1 * vocab + 9)] = 30; // equal: both half
    const std::vector<BlockRow> table(std::size_t(rows), {0, 0, 0, BlockRow::kTaken});
    const OnDevice<BlockRow> on(table);
    const OnDevice<std::uint64_t> masked(std::vector<std::uint64_t>(std::size_t(rows), 1));
    const OnDevice<float> dlogits(logits);
    const OnDevice<std::uint8_t> dallowed(allowed);
    const OnDevice<BlockCandidate> out(std::vector<BlockCandidate>(static_cast<std::size_t>(rows)));
    chooseCandidates(launch,
                     {rows, 1, vocab, on.get(), masked.get(), dlogits.get(), dallowed.get(), out.get(), nullptr});
    const auto got = out.read();
    for (int row = 0; row < rows; ++row) {
        std::vector<double> weights;
        double sum = 0;
        for (int id = 0; id < vocab; ++id)
            if (allowed[std::size_t(id)] != 0)
                weights.push_back(std::exp(double(logits[std::size_t(row * vocab + id)])));
        sum = std::accumulate(weights.begin(), weights.end(), 0.0);
        std::partial_sort(weights.begin(), weights.begin() + 2, weights.end(), std::greater<>());
        EXPECT_NEAR(got[std::size_t(row)].confidence, weights[0] / sum, 1e-5);
        EXPECT_NEAR(got[std::size_t(row)].second, weights[1] / sum, 1e-5);
    }
    EXPECT_EQ(got[1].id, 8);
    EXPECT_NEAR(got[1].second, got[1].confidence, 1e-12);
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::cuda
