// SparseD's masks of a canvas on the GPU against float64: of every row of tiles the tiles that a query head keeps,
// their union and their share.
#include "kernels/cuda/diffusion/canvas_tiles.h"

#include "tests/kernels/cuda/device.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <ostream>
#include <set>

namespace kvscope::cuda {
namespace KVSCOPE_TEST_FILE {

using namespace test;

struct CanvasShape {
    int dim, kvHeads, group, tile, row, tokens, generated, kept, keptGenerated;
};
void PrintTo(const CanvasShape& s, std::ostream* out) {
    *out << s.tokens << " tokens in tiles of " << s.tile << ", rows of " << s.row << ", " << s.kvHeads << " heads of "
         << s.group << ", dim " << s.dim << ", generated from " << s.generated << ", kept " << s.kept << " and "
         << s.keptGenerated;
}

class CudaCanvasTiles : public CudaTest, public ::testing::WithParamInterface<CanvasShape> {
protected:
    void SetUp() override {
        CudaTest::SetUp();
        if (IsSkipped()) return;
        tiles = (s.tokens + s.tile - 1) / s.tile, rows = (s.tokens + s.row - 1) / s.row;
        heads = s.kvHeads * s.group;
        q = halves(std::size_t(rows * s.row * heads * s.dim));
        for (int token = s.tokens; token < rows * s.row; ++token) // places without a token
            std::fill_n(q.begin() + token * heads * s.dim, heads * s.dim, Half(0x7fc0));
        blocks = halves(std::size_t((kFirst + s.kvHeads * tiles) * 2 * s.tile * s.dim));
    }
    double logit(int token, int head, int position) const {
        const int g = head / s.group;
        const Half* const key = blocks.data() +
                                std::size_t(kFirst + g * tiles + position / s.tile) * std::size_t(2 * s.tile * s.dim) +
                                std::size_t(position % s.tile * s.dim);
        const Half* const query = q.data() + std::size_t((token * heads + head) * s.dim);
        double dot = 0;
        for (int c = 0; c < s.dim; ++c) dot += double(toFloat(query[c])) * double(toFloat(key[c]));
        return dot * double(kScale);
    }
    /// What the tokens of a row of tiles give to each tile from tile `first` on, by a softmax over these tiles' keys.
    std::vector<double> sharesOf(int tileRow, int head, int first) const {
        std::vector<double> shares(std::size_t(tiles - first), 0.0);
        for (int token = tileRow * s.tile; token < std::min(s.tokens, (tileRow + 1) * s.tile); ++token) {
            std::vector<double> ofTile(shares.size(), 0.0);
            for (int position = first * s.tile; position < s.tokens; ++position)
                ofTile[std::size_t(position / s.tile - first)] += std::exp(logit(token, head, position));
            const double all = std::accumulate(ofTile.begin(), ofTile.end(), 0.0);
            for (std::size_t i = 0; i < shares.size(); ++i) shares[i] += ofTile[i] / all;
        }
        return shares;
    }
    /// Expects that `kept` are the `count` largest, but for shares that hardly differ.
    static void expectLargest(const std::vector<double>& shares, const std::set<int>& kept, int count, int from, int to,
                              int first) {
        std::vector<double> sorted = shares;
        std::sort(sorted.rbegin(), sorted.rend());
        const double border = sorted[std::size_t(std::min<int>(count, int(sorted.size())) - 1)];
        for (int tile = from; tile < to; ++tile) {
            const double share = shares[std::size_t(tile - first)];
            if (std::abs(share - border) < 1e-4 * border) continue; // either
            EXPECT_EQ(kept.count(tile) != 0, share > border) << "tile " << tile << ": " << share << ' ' << border;
        }
    }

    static constexpr int kFirst = 3; // KV block of the first head
    static constexpr float kScale = 0.2f;
    const CanvasShape s = GetParam();
    int tiles = 0, rows = 0, heads = 0;
    std::vector<Half> q, blocks;
};

TEST_P(CudaCanvasTiles, AreTheBestOfAllAndTheBestOfTheGeneratedOnes) {
    const int capacity = std::min(tiles, s.kept + s.keptGenerated), ofTile = s.tile / s.row;
    std::vector<BlockRow> table;
    for (int row = 0; row < rows; ++row) table.push_back({1, row * s.row, s.tokens, BlockRow::kTaken});
    std::vector<std::int64_t> headFirst(std::size_t(2 * s.kvHeads), -1); // sequence 0 has none
    for (int g = 0; g < s.kvHeads; ++g) headFirst[std::size_t(s.kvHeads + g)] = kFirst + g * tiles;
    const OnDevice<BlockRow> dtable(table);
    const OnDevice<std::int64_t> dfirst(headFirst);
    const OnDevice<Half> dq(q), dblocks(blocks);
    const std::size_t words = std::size_t(tiles + 31) / 32;
    for (const int atOnce : {rows, 2 * ofTile}) { // all rows, or some after others
        SCOPED_TRACE(atOnce);
        const OnDevice<std::int32_t> list(std::size_t(rows * heads * capacity)), count(std::size_t(rows * heads));
        const OnDevice<std::uint32_t> united(std::vector<std::uint32_t>(std::size_t(s.kvHeads) * words, 0u));
        const OnDevice<float> densities(std::size_t(heads * tiles));
        const OnDevice<float> weights(std::size_t(atOnce * heads * s.row * ((s.tokens + 15) / 16) * 2));
        for (int begin = 0; begin < rows; begin += atOnce) {
            CanvasTileArgs args;
            args.rows = {{heads, s.kvHeads, s.dim, s.tile},
                         std::min(atOnce, rows - begin),
                         s.row,
                         dtable.get() + begin,
                         nullptr,
                         dfirst.get()};
            args.q = dq.bf16() + std::size_t(begin * s.row * heads * s.dim);
            args.blocks = dblocks.bf16();
            args.scale = kScale;
            args.tokens = s.tokens;
            args.firstTileRow = begin / ofTile;
            args.generated = s.generated;
            args.kept = s.kept, args.keptGenerated = s.keptGenerated;
            args.capacity = capacity;
            args.weights = reinterpret_cast<float2*>(weights.get());
            args.tiles = list.get() + std::size_t(begin * heads * capacity);
            args.count = count.get() + begin * heads;
            args.united = united.get();
            args.densities = densities.get();
            weighCanvasTiles(launch, args);
            chooseCanvasTiles(launch, args);
        }
        const auto lists = list.read(), counts = count.read();
        const auto shares = densities.read();
        const auto bits = united.read();
        std::vector<std::set<int>> unions(std::size_t(s.kvHeads));
        for (int tileRow = 0; tileRow < tiles; ++tileRow)
            for (int head = 0; head < heads; ++head) {
                SCOPED_TRACE(::testing::Message() << "row of tiles " << tileRow << " head " << head);
                std::set<int> kept;
                for (int row = tileRow * ofTile; row < std::min(rows, (tileRow + 1) * ofTile); ++row) {
                    const std::size_t item = std::size_t(row * heads + head);
                    ASSERT_LE(counts[item], capacity);
                    const auto* const from = lists.data() + item * std::size_t(capacity);
                    const std::set<int> own(from, from + counts[item]);
                    ASSERT_EQ(int(own.size()), counts[item]);
                    EXPECT_TRUE(std::is_sorted(from, from + counts[item]));
                    if (row == tileRow * ofTile) kept = own;
                    EXPECT_EQ(own, kept);
                }
                EXPECT_EQ(std::distance(kept.lower_bound(s.generated), kept.end()), s.keptGenerated);
                expectLargest(sharesOf(tileRow, head, 0), kept, s.kept, 0, s.generated, 0);
                expectLargest(sharesOf(tileRow, head, s.generated), kept, s.keptGenerated, s.generated, tiles,
                              s.generated);
                int tokens = 0;
                for (const int tile : kept) tokens += std::min(s.tile, s.tokens - tile * s.tile);
                EXPECT_FLOAT_EQ(shares[std::size_t(head * tiles + tileRow)], float(double(tokens) / s.tokens));
                unions[std::size_t(head / s.group)].insert(kept.begin(), kept.end());
            }
        for (int g = 0; g < s.kvHeads; ++g)
            for (int tile = 0; tile < int(words) * 32; ++tile)
                EXPECT_EQ(bits[std::size_t(g) * words + std::size_t(tile / 32)] >> (tile % 32) & 1,
                          unions[std::size_t(g)].count(tile))
                    << "head " << g << " tile " << tile;
    }
}

INSTANTIATE_TEST_SUITE_P(Shapes, CudaCanvasTiles,
                         ::testing::Values(CanvasShape{64, 2, 2, 16, 16, 600, 31, 12, 3},
                                           CanvasShape{128, 1, 7, 48, 48, 331, 5, 3, 1},
                                           CanvasShape{64, 4, 1, 128, 64, 700, 4, 2, 2},
                                           CanvasShape{64, 1, 3, 80, 40, 401, 5, 6, 1}, // all, and the last tile alone
                                           CanvasShape{128, 2, 1, 256, 64, 513, 1, 1, 1},
                                           CanvasShape{64, 1, 1, 16, 16, 5, 0, 1, 1})); // one tile, all generated

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::cuda
