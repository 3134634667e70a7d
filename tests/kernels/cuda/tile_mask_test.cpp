// SparseD's masks on a GPU against float64: the attention that the tokens of a block give to each tile of the prefix,
// the best tiles of every query head and row of tiles, and attention under such lists.
#include "tests/kernels/cuda/diffusion_fixture.h"

#include "kernels/cuda/diffusion/block_attention.h"
#include "kernels/cuda/diffusion/block_place.h"
#include "kernels/cuda/diffusion/page_union.h"
#include "kernels/cuda/diffusion/tile_mask.h"

#include <bit>

namespace kvscope::cuda {
namespace KVSCOPE_TEST_FILE {

using namespace test;

/// The fixture's page is the tile.
class CudaTileMask : public CudaDiffusion {
protected:
    int tileRows() const { return (s.block + s.page - 1) / s.page; }
    int tilesOf(int row) const { return (table[std::size_t(row)].first + s.page - 1) / s.page; }
    int endOf(int row, int tile) const { return std::min(table[std::size_t(row)].first, (tile + 1) * s.page); }
    /// What the tokens of a row of tiles give to each tile, added up.
    std::vector<double> attentionOf(int row, int head, int tileRow, double scale) const {
        const int end = table[std::size_t(row)].first;
        std::vector<double> all(std::size_t(tilesOf(row)), 0.0), weights(static_cast<std::size_t>(end));
        for (int token = tileRow * s.page; token < std::min(s.block, (tileRow + 1) * s.page); ++token) {
            double most = -std::numeric_limits<double>::infinity(), sum = 0;
            for (int position = 0; position < end; ++position) {
                double dot = 0;
                for (int c = 0; c < s.dim; ++c)
                    dot += queryAt(row, token, head, c) * keyAt(row, head / s.group, position, c);
                weights[std::size_t(position)] = dot * scale;
                most = std::max(most, dot * scale);
            }
            for (double& weight : weights) weight = std::exp(weight - most), sum += weight;
            for (int position = 0; position < end; ++position)
                all[std::size_t(position / s.page)] += weights[std::size_t(position)] / sum;
        }
        return all;
    }
};

TEST_P(CudaTileMask, KeepsTheTilesOfMostAttention) {
    const double scale = 0.7 / std::sqrt(double(s.dim));
    for (const int kept : {1, 4, 4000}) {
        SCOPED_TRACE(kept);
        table[0].flags = BlockRow::kTaken | BlockRow::kChoosesOnce;
        table[2].flags = BlockRow::kTaken; // makes none: its lists stay as they were
        table[0].kept = std::min(kept, tilesOf(0));
        const OnDevice<BlockRow> on(table);
        const OnDevice<std::int64_t> first(headFirst);
        const OnDevice<Half> dq(q), blocks(store);
        TileMaskArgs args;
        args.rows = rowsOf(on, nullptr, first);
        args.q = dq.bf16(), args.blocks = blocks.bf16(), args.scale = float(scale), args.maxTiles = maxPages;
        args.capacity = std::min(kept, maxPages);
        const auto heads = std::size_t(kRows * shape.queryHeads), lists = heads * std::size_t(args.tileRows());
        const OnDevice<float> weights(heads * std::size_t(s.block * args.pieces()) * 2), densities(lists);
        const OnDevice<std::int32_t> tiles(lists * std::size_t(args.capacity)), count(heads);
        const OnDevice<std::uint32_t> united(std::size_t(kRows * s.kvHeads * args.wordsOf()));
        args.weights = reinterpret_cast<float2*>(weights.get());
        args.tiles = tiles.get(), args.count = count.get(), args.united = united.get();
        args.densities = densities.get();
        weighTiles(launch, args);
        chooseTiles(launch, args);
        const auto gotTiles = tiles.read(), gotCount = count.read();
        const auto gotUnited = united.read();
        const auto gotDensities = densities.read();
        for (int g = 0; g < s.kvHeads; ++g) {
            std::set<int> any;
            for (int head = g * s.group; head < (g + 1) * s.group; ++head) {
                ASSERT_EQ(gotCount[std::size_t(head)], table[0].kept);
                for (int r = 0; r < tileRows(); ++r) {
                    const auto list = std::size_t(head * tileRows() + r);
                    const auto from = gotTiles.begin() + std::ptrdiff_t(list) * args.capacity;
                    const std::vector<int> got(from, from + table[0].kept);
                    any.insert(got.begin(), got.end());
                    ASSERT_TRUE(std::is_sorted(got.begin(), got.end()));
                    const std::vector<double> want = attentionOf(0, head, r, scale);
                    // Every tile that is kept has as much as any that is not, but for rounding.
                    double least = std::numeric_limits<double>::infinity(), most = 0, tokens = 0;
                    for (int tile = 0; tile < tilesOf(0); ++tile) {
                        const bool keeps = std::binary_search(got.begin(), got.end(), tile);
                        (keeps ? least : most) =
                            keeps ? std::min(least, want[std::size_t(tile)]) : std::max(most, want[std::size_t(tile)]);
                        if (keeps) tokens += endOf(0, tile) - tile * s.page;
                    }
                    EXPECT_GE(least, most * (1 - 1e-4)) << "head " << head << " row " << r;
                    EXPECT_FLOAT_EQ(gotDensities[list], float(tokens / table[0].first));
                }
            }
            std::vector<int> recorded;
            for (int w = 0; w < args.wordsOf(); ++w)
                for (std::uint32_t bits = gotUnited[std::size_t(g * args.wordsOf() + w)]; bits != 0; bits &= bits - 1)
                    recorded.push_back(w * 32 + std::countr_zero(bits));
            EXPECT_EQ(recorded, std::vector<int>(any.begin(), any.end())) << "head " << g;
        }
        for (int head = shape.queryHeads; head < kRows * shape.queryHeads; ++head)
            EXPECT_EQ(gotCount[std::size_t(head)], -1) << "a row that makes no mask is left alone";
    }
}

/// The query-agnostic share: complete tiles by the attention of all tokens and query heads of a KV head. They belong to
/// every union, and queries choose among the others.
TEST_P(CudaTileMask, KeepsTheTilesOfAGroupOutOfTheQueriesChoice) {
    const double scale = 1 / std::sqrt(double(s.dim));
    const int complete = table[0].first / s.page, kept = std::min(3, complete);
    table[0].flags = BlockRow::kTaken | BlockRow::kChoosesOnce | BlockRow::kSparse;
    table[2].flags = BlockRow::kTaken;
    table[0].kept = kept;
    const OnDevice<BlockRow> on(table);
    const OnDevice<std::int64_t> first(headFirst);
    const auto ranges = halves(std::size_t(kRows * s.kvHeads * maxPages * 2 * s.dim));
    const OnDevice<Half> dq(q), blocks(store), dranges(ranges);
    TileMaskArgs args;
    args.rows = rowsOf(on, nullptr, first);
    args.q = dq.bf16(), args.blocks = blocks.bf16(), args.scale = float(scale), args.maxTiles = maxPages;
    const auto items = std::size_t(kRows * s.kvHeads), words = std::size_t(args.wordsOf());
    const OnDevice<float> weights(std::size_t(kRows * shape.queryHeads * s.block * args.pieces()) * 2);
    const OnDevice<std::uint32_t> united(items * words);
    args.weights = reinterpret_cast<float2*>(weights.get()), args.united = united.get();
    weighTiles(launch, args);
    chooseTilesOfGroups(launch, args);
    PageUnionArgs choice;
    choice.rows = args.rows, choice.q = args.q, choice.ranges = dranges.bf16(), choice.maxPages = maxPages;
    choice.pagesPerQuery = 1, choice.always = united.get();
    const OnDevice<float> scores(items * std::size_t(choice.rows.queries() * choice.scoreStride()));
    const OnDevice<std::uint32_t> bits(std::vector<std::uint32_t>(items * words, 0)),
        arrivals(std::vector<std::uint32_t>(items, 0));
    const OnDevice<std::int32_t> pages(items * std::size_t(maxPages)), count(items);
    choice.scores = scores.get(), choice.words = bits.get(), choice.arrivals = arrivals.get();
    choice.pages = pages.get(), choice.count = count.get();
    scoreUnionPages(launch, choice);
    unitePages(launch, choice);
    const auto gotUnited = united.read();
    const auto gotScores = scores.read();
    const auto gotPages = pages.read(), gotCount = count.read();
    for (int g = 0; g < s.kvHeads; ++g) {
        std::vector<double> want(std::size_t(tilesOf(0)), 0.0);
        for (int head = g * s.group; head < (g + 1) * s.group; ++head)
            for (int r = 0; r < tileRows(); ++r) {
                const auto part = attentionOf(0, head, r, scale);
                for (std::size_t tile = 0; tile < part.size(); ++tile) want[tile] += part[tile];
            }
        std::set<int> always;
        double least = std::numeric_limits<double>::infinity(), most = 0;
        for (int tile = 0; tile < complete; ++tile) {
            const bool keeps = (gotUnited[std::size_t(g) * words + std::size_t(tile / 32)] >> (tile % 32) & 1) != 0;
            if (keeps) always.insert(tile);
            (keeps ? least : most) =
                keeps ? std::min(least, want[std::size_t(tile)]) : std::max(most, want[std::size_t(tile)]);
        }
        EXPECT_EQ(int(always.size()), kept);
        EXPECT_GE(least, most * (1 - 1e-4)) << "head " << g;
        std::set<int> all = always;
        for (int query = 0; query < choice.rows.queries(); ++query) { // each takes its best page among the others
            const float* const mine =
                gotScores.data() + std::size_t(g * choice.rows.queries() + query) * std::size_t(choice.scoreStride());
            int best = -1;
            for (int page = 0; page < complete; ++page)
                if (always.count(page) == 0 && (best < 0 || mine[page] > mine[best])) best = page;
            if (best >= 0) all.insert(best);
        }
        if (table[0].first % s.page != 0) all.insert(complete);
        const auto from = gotPages.begin() + std::ptrdiff_t(g) * maxPages;
        EXPECT_EQ(std::vector<std::int32_t>(from, from + gotCount[std::size_t(g)]),
                  std::vector<std::int32_t>(all.begin(), all.end()));
    }
}

/// Row 0 attends under lists of its own for every query head and row of tiles, row 2 to its whole prefix.
TEST_P(CudaTileMask, AttendsUnderTheListsOfEveryHead) {
    const double scale = 1 / std::sqrt(double(s.dim));
    table[0].flags |= BlockRow::kSparse;
    const AttentionShape ofHeads{shape.queryHeads, shape.queryHeads, s.dim, s.page};
    std::vector<std::int64_t> first;
    for (int head = 0; head < kRows * shape.queryHeads; ++head) first.push_back(headFirst[std::size_t(head / s.group)]);
    const auto heads = std::size_t(kRows * shape.queryHeads), lists = heads * std::size_t(tileRows());
    std::vector<std::int32_t> tiles(lists * std::size_t(maxPages)), count(heads, 0);
    const int last = tilesOf(0) - 1, kept = std::min(last + 1, 5);
    for (std::size_t list = 0; list < std::size_t(shape.queryHeads * tileRows()); ++list) {
        const auto chosen = randomBlocks(kept, last, random);
        std::copy(chosen.begin(), chosen.end(), tiles.begin() + std::ptrdiff_t(list) * maxPages);
        count[list / std::size_t(tileRows())] = int(chosen.size());
    }
    const OnDevice<BlockRow> on(table);
    const OnDevice<std::int64_t> dfirst(first);
    const OnDevice<Half> dq(q), blocks(store), out(q.size());
    const OnDevice<std::int32_t> dtiles(tiles), dcount(count);
    const auto numbers = std::size_t(kRows * s.block * shape.queryHeads);
    BlockAttentionArgs args;
    args.rows = {ofHeads, kRows, s.block, on.get(), nullptr, dfirst.get()};
    args.q = dq.bf16(), args.blocks = blocks.bf16(), args.pages = dtiles.get(), args.pageCount = dcount.get();
    args.capacity = maxPages, args.listTokens = s.page, args.scale = float(scale);
    args.splits = blockSplits(launch, args.rows, maxPages * s.page);
    const OnDevice<float> partial(numbers * std::size_t(args.splits * s.dim)),
        states(numbers * std::size_t(args.splits) * 2), sums(numbers);
    args.partial = partial.get(), args.states = reinterpret_cast<float2*>(states.get());
    blockAttention(launch, args);
    BlockMergeArgs merge;
    merge.rows = args.rows, merge.q = args.q, merge.blocks = args.blocks, merge.pageCount = args.pageCount;
    merge.scale = args.scale, merge.splits = args.splits, merge.partial = args.partial, merge.states = args.states;
    merge.prefixSums = sums.get(), merge.out = out.bf16();
    mergeBlocks(launch, merge);
    const auto got = out.read();
    const auto gotSums = sums.read();
    for (int row = 0; row < kRows; row += 2)
        for (int token = 0; token < s.block; ++token)
            for (int head = 0; head < shape.queryHeads; ++head) {
                const int end = table[std::size_t(row)].first;
                std::vector<int> prefix;
                const auto list = std::size_t(head * tileRows() + token / s.page);
                for (int i = 0; row == 0 && i < count[std::size_t(head)]; ++i) {
                    const int tile = tiles[list * std::size_t(maxPages) + std::size_t(i)];
                    for (const int position : upTo(endOf(0, tile), tile * s.page)) prefix.push_back(position);
                }
                if (row == 2) prefix = upTo(end);
                const double logSum = attention(row, token, head, prefix, scale).back();
                for (const int position : upTo(end + s.block, end)) prefix.push_back(position);
                const auto want = attention(row, token, head, prefix, scale);
                const auto at = std::size_t((row * s.block + token) * shape.queryHeads + head);
                ASSERT_NEAR(double(gotSums[at]), logSum, 2e-3)
                    << "row " << row << " token " << token << " head " << head;
                for (int c = 0; c < s.dim; ++c)
                    ASSERT_NEAR(double(toFloat(got[at * std::size_t(s.dim) + std::size_t(c)])), want[std::size_t(c)],
                                1.5e-2)
                        << "row " << row << " token " << token << " head " << head << " channel " << c;
            }
}

INSTANTIATE_TEST_SUITE_P(Shapes, CudaTileMask,
                         ::testing::Values(DiffusionShape{64, 2, 3, 16, 16}, DiffusionShape{128, 1, 4, 16, 64},
                                           DiffusionShape{128, 2, 2, 48, 64}, DiffusionShape{64, 2, 1, 32, 7},
                                           DiffusionShape{128, 1, 4, 256, 16}));

/// Keys and values are compared with those of the forward before, over all KV heads.
class CudaKvChanges : public CudaDiffusion {};

TEST_P(CudaKvChanges, AreMeanSquaresOverAllHeads) {
    const int heads = shape.queryHeads + 2 * s.kvHeads, half = s.dim / 2;
    const auto qkv = floats(std::size_t(kRows * s.block * heads * s.dim));
    auto before = floats(std::size_t(kRows * s.block * 2 * s.kvHeads * s.dim));
    for (int c = 0; c < s.kvHeads * s.dim; ++c) // the values of row 0's first token stay the same
        before[std::size_t(s.kvHeads * s.dim + c)] = qkv[std::size_t((shape.queryHeads + s.kvHeads) * s.dim + c)];
    const std::vector<float> cos(std::size_t(2000 * half), 1.f), sin(cos.size(), 0.f); // nothing is rotated
    const OnDevice<float> dqkv(qkv), dcos(cos), dsin(sin), dbefore(before);
    const OnDevice<std::int32_t> ropeFirst(std::vector<std::int32_t>{0, 0, 0});
    const OnDevice<std::int64_t> first(headFirst);
    const OnDevice<BlockRow> on(table);
    const OnDevice<Half> dq(q.size()), blocks(store);
    const OnDevice<float> changes(std::size_t(kRows * s.block * 2 * s.kvHeads * 2)),
        scores(std::size_t(kRows * 2 * s.block));
    BlockPlaceArgs args;
    args.rows = rowsOf(on, nullptr, first);
    args.qkv = dqkv.get(), args.cos = dcos.get(), args.sin = dsin.get(), args.ropeFirst = ropeFirst.get();
    args.q = dq.bf16(), args.blocks = blocks.bf16(), args.beforeKv = dbefore.get();
    args.kvChanges = reinterpret_cast<float2*>(changes.get());
    placeBlocks(launch, args);
    addKvChanges(launch, {args.rows, args.kvChanges, scores.get()});
    const auto got = scores.read(), kept = dbefore.read();
    for (int row = 0; row < kRows; row += 2)
        for (int which = 0; which < 2; ++which)
            for (int token = 0; token < s.block; ++token) {
                const int at = row * s.block + token, width = s.kvHeads * s.dim;
                double change = 0;
                for (int c = 0; c < width; ++c) {
                    const float now = qkv[std::size_t((at * heads + shape.queryHeads + which * s.kvHeads) * s.dim + c)];
                    const auto place = std::size_t((at * 2 + which) * width + c);
                    change += std::pow(double(now) - double(before[place]), 2);
                    ASSERT_EQ(kept[place], now);
                }
                const double want = row == 0 && token == 0 && which == 1 ? 0 : change / width;
                ASSERT_NEAR(double(got[std::size_t((row * 2 + which) * s.block + token)]), want, 1e-4 * want)
                    << "row " << row << (which == 0 ? " keys" : " values") << " of token " << token;
            }
}

INSTANTIATE_TEST_SUITE_P(Shapes, CudaKvChanges,
                         ::testing::Values(DiffusionShape{64, 2, 3, 16, 16}, DiffusionShape{128, 1, 4, 16, 64}));

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::cuda
