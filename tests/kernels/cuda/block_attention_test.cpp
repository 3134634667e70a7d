// Attention of blocks that are denoised to their prefix or to pages of it, and the merge with their own keys, against
// float64, in the places where key tiles, pages and query tiles end. On the Hopper generation pages of 16, 32 and 64
// tokens go through warpgroup products, and what lies behind a block is not a number; the same tests see the kernel of
// other pages and other GPUs, which wants numbers in all of a page.
#include "tests/kernels/cuda/device.h"

#include "kernels/cuda/diffusion/block_attention.h"

#include <cmath>
#include <limits>
#include <numeric>
#include <ostream>

namespace kvscope::cuda {
namespace KVSCOPE_TEST_FILE {

using namespace test;

struct Blocks {
    int dim, kvHeads, group, page, block;
    std::vector<int> prefixes; // of each sequence
};
void PrintTo(const Blocks& b, std::ostream* out) {
    *out << "dim " << b.dim << ", " << b.kvHeads << " heads of " << b.group << ", page " << b.page << ", block "
         << b.block << ", prefixes";
    for (const int prefix : b.prefixes) *out << ' ' << prefix;
}

class CudaBlockAttention : public CudaTest, public ::testing::WithParamInterface<Blocks> {
protected:
    void SetUp() override {
        CudaTest::SetUp();
        if (IsSkipped()) return;
        const int longest = *std::max_element(b.prefixes.begin(), b.prefixes.end());
        maxPages = (longest + b.block + b.page - 1) / b.page;
        // Heads lie in random order with a page between them that no head has.
        std::vector<int> order(std::size_t(rows() * b.kvHeads));
        std::iota(order.begin(), order.end(), 0);
        std::shuffle(order.begin(), order.end(), random);
        for (const int place : order) headFirst.push_back(std::int64_t(place) * (maxPages + 1));
        store.assign(order.size() * std::size_t(maxPages + 1) * blockElements(b.page, b.dim), kNotANumber);
        q = halves(std::size_t(rows() * b.block * queryHeads() * b.dim), 2);
        const std::vector<Half> numbers = halves(1 << 16);
        for (int row = 0; row < rows(); ++row) {
            const int first = b.prefixes[std::size_t(row)];
            const int end = onHopper() ? first + b.block : (first + b.block + b.page - 1) / b.page * b.page;
            for (int g = 0; g < b.kvHeads; ++g)
                for (int position = 0; position < end; ++position)
                    putToken(pageOf(row, g, position / b.page), b.page, b.dim, position % b.page,
                             &numbers[random() % (numbers.size() - 128)], &numbers[random() % (numbers.size() - 128)]);
            table.push_back({row, first, first, BlockRow::kTaken});
        }
    }
    static constexpr Half kNotANumber = 0x7fff;
    bool onHopper() const {
        cudaDeviceProp properties{};
        check(cudaGetDeviceProperties(&properties, 0), "asking for the GPU");
        return properties.major == 9 && b.page <= 64 && 64 % b.page == 0;
    }
    int rows() const { return int(b.prefixes.size()); }
    int queryHeads() const { return b.kvHeads * b.group; }
    std::size_t itemOf(int row, int g) const { return std::size_t(row * b.kvHeads + g); }
    Half* pageOf(int row, int g, int page) {
        return store.data() + std::size_t(headFirst[itemOf(row, g)] + page) * blockElements(b.page, b.dim);
    }
    /// One query over these positions. @return channels, then the log sum
    std::vector<double> attention(std::size_t head, int row, int g, const std::vector<int>& positions) {
        const Half* const query = q.data() + head * std::size_t(b.dim);
        std::vector<double> out(std::size_t(b.dim) + 1, 0.0), logits;
        double most = -std::numeric_limits<double>::infinity(), sum = 0;
        for (const int position : positions) {
            const Half* const key = pageOf(row, g, position / b.page) + position % b.page * b.dim;
            double dot = 0;
            for (int c = 0; c < b.dim; ++c) dot += double(toFloat(query[c])) * double(toFloat(key[c]));
            logits.push_back(dot * double(scale()));
            most = std::max(most, logits.back());
        }
        for (std::size_t i = 0; i < positions.size(); ++i) {
            const Half* const values = pageOf(row, g, positions[i] / b.page) + b.page * b.dim;
            const double p = std::exp(logits[i] - most);
            sum += p;
            for (int c = 0; c < b.dim; ++c)
                out[std::size_t(c)] += p * double(toFloat(values[c * b.page + positions[i] % b.page]));
        }
        for (double& value : out) value = sum > 0 ? value / sum : 0;
        out.back() = sum > 0 ? most + std::log(sum) : most;
        return out;
    }
    float scale() const { return 1 / std::sqrt(float(b.dim)); }

    /// Compares a few queries of every row and head: of the first and the last token among them.
    void expectAttention(const std::vector<std::uint64_t>& active, const std::vector<std::int32_t>& pages,
                         const std::vector<std::int32_t>& count, bool settled) {
        const auto numbers = std::size_t(rows() * b.block * queryHeads());
        const auto kept = floats(numbers * std::size_t(b.dim)), keptSums = floats(numbers);
        const OnDevice<BlockRow> on(table);
        const OnDevice<std::int64_t> first(headFirst);
        const OnDevice<Half> dq(q), blocks(store);
        const OnDevice<std::uint64_t> dactive(active);
        const OnDevice<std::int32_t> dpages(pages), dcount(count);
        const BlockRows of{
            {queryHeads(), b.kvHeads, b.dim, b.page}, rows(), b.block, on.get(), dactive.get(), first.get()};
        for (const int multiprocessors : {launch.multiprocessors, 2}) {
            Launch how = launch;
            how.multiprocessors = multiprocessors;
            const int splits = blockSplits(how, of, maxPages * b.page);
            SCOPED_TRACE(::testing::Message() << splits << " splits");
            std::vector<std::vector<float>> gotPrefixes, gotSumsOf; // with results of splits of 4 bytes, then of 2
            std::vector<std::vector<Half>> gotOuts;
            for (const bool halves : {false, true}) {
                const OnDevice<float> partial(numbers * std::size_t(splits * b.dim)),
                    states(numbers * std::size_t(splits) * 2), prefix(kept), sums(keptSums);
                const OnDevice<Half> out(numbers * std::size_t(b.dim));
                BlockAttentionArgs args;
                args.rows = of, args.q = dq.bf16(), args.blocks = blocks.bf16(), args.pages = dpages.get();
                args.pageCount = dcount.get(), args.capacity = maxPages, args.scale = scale(), args.splits = splits,
                args.settled = settled, args.halves = halves;
                args.partial = partial.get(), args.states = reinterpret_cast<float2*>(states.get());
                blockAttention(how, args);
                BlockMergeArgs merge;
                merge.rows = of, merge.q = args.q, merge.blocks = args.blocks, merge.pageCount = args.pageCount;
                merge.scale = args.scale, merge.splits = splits, merge.partial = args.partial,
                merge.states = args.states;
                merge.halves = halves;
                merge.prefix = prefix.get(), merge.prefixSums = sums.get(), merge.out = out.bf16();
                mergeBlocks(how, merge);
                gotPrefixes.push_back(prefix.read()), gotSumsOf.push_back(sums.read());
                gotOuts.push_back(out.read());
            }
            for (int row = 0; row < rows(); ++row)
                for (int g = 0; g < b.kvHeads; ++g)
                    for (int i = 0; i < 4; ++i) {
                        const int token = i == 0   ? 0
                                          : i == 1 ? b.block - 1
                                                   : uniform(0, b.block - 1),
                                  head = g * b.group + (i == 1 ? b.group - 1 : uniform(0, b.group - 1));
                        const auto at = std::size_t((row * b.block + token) * queryHeads() + head);
                        const bool anew = (active[itemOf(row, g)] >> token & 1) != 0;
                        SCOPED_TRACE(::testing::Message() << "row " << row << " token " << token << " head " << head
                                                          << (anew ? " active" : " kept"));
                        const auto part = [&](const auto& all) {
                            return std::vector(all.begin() + std::ptrdiff_t(at) * b.dim,
                                               all.begin() + std::ptrdiff_t(at + 1) * b.dim);
                        };
                        std::vector<double> want(std::size_t(b.dim));
                        double sum = double(keptSums[at]);
                        if (anew) {
                            want = attention(at, row, g, positionsOf(row, g, pages, count));
                            sum = want.back();
                            want.pop_back();
                        } else {
                            const std::vector<float> old = part(kept);
                            want.assign(old.begin(), old.end());
                        }
                        for (std::size_t halves = 0; halves < 2; ++halves) {
                            if (std::isinf(sum))
                                ASSERT_EQ(double(gotSumsOf[halves][at]), sum); // no key
                            else
                                ASSERT_NEAR(double(gotSumsOf[halves][at]), sum, 1e-3);
                            ASSERT_LT(relativeError(part(gotPrefixes[halves]), want), 6e-3);
                        }
                        // 2 bytes keep 11 bits of a number, so they round off 2^-11 of it at most; bf16 does 2^-9.
                        ASSERT_LT(relativeError(part(gotPrefixes[1]), part(gotPrefixes[0])), std::ldexp(1, -11));
                        std::vector<int> block(std::size_t(b.block));
                        std::iota(block.begin(), block.end(), b.prefixes[std::size_t(row)]);
                        const std::vector<double> own = attention(at, row, g, block);
                        const double most = std::max(sum, own.back()), ofPrefix = std::exp(sum - most),
                                     ofBlock = std::exp(own.back() - most);
                        for (std::size_t c = 0; c < want.size(); ++c)
                            want[c] = (ofPrefix * want[c] + ofBlock * own[c]) / (ofPrefix + ofBlock);
                        for (const std::vector<Half>& gotOut : gotOuts) {
                            std::vector<float> merged;
                            for (const Half value : part(gotOut)) merged.push_back(toFloat(value));
                            ASSERT_LT(relativeError(merged, want), 8e-3);
                        }
                    }
        }
    }
    std::vector<int> positionsOf(int row, int g, const std::vector<std::int32_t>& pages,
                                 const std::vector<std::int32_t>& count) const {
        const int end = b.prefixes[std::size_t(row)];
        std::vector<int> positions;
        if ((table[std::size_t(row)].flags & BlockRow::kSparse) == 0) {
            positions.resize(std::size_t(end));
            std::iota(positions.begin(), positions.end(), 0);
            return positions;
        }
        const std::size_t item = itemOf(row, g);
        for (int i = 0; i < count[item]; ++i)
            for (int t = 0; t < b.page; ++t)
                if (const int p = pages[item * std::size_t(maxPages) + std::size_t(i)] * b.page + t; p < end)
                    positions.push_back(p);
        return positions;
    }
    /// Multiplies all values by a power of two.
    void scaleValues(int exponent) {
        const std::size_t elements = blockElements(b.page, b.dim), keys = std::size_t(b.page * b.dim);
        for (std::size_t i = 0; i < store.size(); ++i)
            if (i % elements >= keys && store[i] != kNotANumber && (store[i] & 0x7f80) != 0)
                store[i] = Half(store[i] + exponent * (1 << 7));
    }
    std::uint64_t all() const { return ~std::uint64_t(0) >> (64 - b.block); }

    const Blocks b = GetParam();
    int maxPages = 0;
    std::vector<std::int64_t> headFirst;
    std::vector<Half> store, q;
    std::vector<BlockRow> table;
};

TEST_P(CudaBlockAttention, OfEveryTokenToTheWholePrefix) {
    const std::size_t items = itemOf(rows(), 0);
    const std::vector<std::int32_t> noPages(items * std::size_t(maxPages), 0), none(items, 0);
    for (const bool settled : {true, false}) {
        SCOPED_TRACE(settled);
        expectAttention(std::vector<std::uint64_t>(items, all()), noPages, none, settled);
    }
}

/// Results of splits that numbers of 2 bytes could not hold as they are.
TEST_P(CudaBlockAttention, WithValuesOfAnySize) {
    const std::size_t items = itemOf(rows(), 0);
    const std::vector<std::int32_t> noPages(items * std::size_t(maxPages), 0), none(items, 0);
    scaleValues(40);
    for (const int exponent : {0, -70}) {
        SCOPED_TRACE(exponent);
        scaleValues(exponent);
        expectAttention(std::vector<std::uint64_t>(items, all()), noPages, none, true);
    }
}

/// Every second sequence is sparse; its last listed page may be incomplete. Some heads have no active token.
TEST_P(CudaBlockAttention, OfSomeTokensToPages) {
    std::vector<std::uint64_t> active;
    std::vector<std::int32_t> pages(itemOf(rows(), 0) * std::size_t(maxPages), -1), count;
    for (int row = 0; row < rows(); ++row) {
        const bool sparse = row % 2 == 0;
        if (sparse) table[std::size_t(row)].flags |= BlockRow::kSparse;
        for (int g = 0; g < b.kvHeads; ++g) {
            active.push_back(row == 2 && g == 0 ? 0 : (std::uint64_t(random()) << 32 | random()) & all());
            const int last = (b.prefixes[std::size_t(row)] - 1) / b.page;
            std::vector<std::int32_t> chosen = randomBlocks(uniform(1, std::min(last + 1, 40)), last, random);
            if (g == 1) chosen.pop_back(); // all of them are complete; there may be none
            std::copy(chosen.begin(), chosen.end(),
                      pages.begin() + std::ptrdiff_t(itemOf(row, g)) * std::ptrdiff_t(maxPages));
            count.push_back(std::int32_t(chosen.size()));
        }
    }
    expectAttention(active, pages, count, false);
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, CudaBlockAttention,
    ::testing::Values(Blocks{128, 2, 4, 16, 16, {1, 15, 16}}, Blocks{128, 2, 4, 16, 16, {17, 63, 64}},
                      Blocks{128, 2, 4, 16, 16, {65, 1000, 4099}}, Blocks{128, 2, 4, 16, 32, {4099, 31, 1000}},
                      Blocks{128, 1, 4, 16, 16, {65536}}, Blocks{128, 1, 4, 16, 32, {65536}},
                      Blocks{128, 2, 8, 16, 64, {130, 65, 999}}, Blocks{128, 2, 4, 16, 48, {1000, 64, 17}},
                      Blocks{128, 3, 1, 16, 7, {15, 64, 4099}}, Blocks{128, 2, 8, 16, 5, {1000}},
                      Blocks{128, 2, 5, 32, 16, {33, 1000, 64}}, Blocks{128, 2, 4, 64, 32, {63, 65, 1000}},
                      Blocks{128, 2, 4, 64, 16, {1, 4099, 128}}, Blocks{64, 2, 4, 16, 16, {1, 65, 4099}},
                      Blocks{64, 2, 8, 16, 32, {1000, 63, 16}}, Blocks{64, 2, 1, 16, 64, {17, 4099, 15}},
                      Blocks{64, 2, 4, 32, 8, {65, 33, 1000}}, Blocks{64, 2, 4, 64, 64, {4099, 65, 1}},
                      Blocks{64, 1, 4, 16, 1, {65536}}, Blocks{128, 2, 4, 256, 16, {1000, 255, 64}},
                      Blocks{64, 2, 3, 48, 16, {1000, 47, 49}}));

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::cuda
