// The union of the best pages of many queries, where a prefix has thousands of pages and some have equal scores: the
// choice is compared with a stable sort of the kernel's own scores, and some of those with float64, among them those of
// the last pages. diffusion_test.cpp compares more.
#include "tests/kernels/cuda/device.h"

#include "kernels/cuda/diffusion/page_union.h"

#include <bit>
#include <cmath>
#include <numeric>
#include <ostream>

namespace kvscope::cuda {
namespace KVSCOPE_TEST_FILE {

using namespace test;

struct Union {
    int pages, different; // complete pages; ranges that differ from each other
};
void PrintTo(const Union& u, std::ostream* out) {
    *out << u.pages << " pages, " << u.different << " of them different";
}

class CudaPageUnion : public CudaTest, public ::testing::WithParamInterface<Union> {};

TEST_P(CudaPageUnion, HasTheBestPagesOfEveryQuery) {
    constexpr int kHeads = 3, kGroup = 4, kDim = 128, kPage = 16, kBlock = 16;
    const auto [pages, different] = GetParam();
    const int first = pages * kPage + 3, maxPages = pages + 2;
    const std::vector<Half> kinds = halves(std::size_t(different * 2 * kDim));
    std::vector<Half> ranges;
    for (int page = 0; page < kHeads * maxPages; ++page) {
        const auto from = kinds.begin() + std::ptrdiff_t(random() % unsigned(different)) * 2 * kDim;
        ranges.insert(ranges.end(), from, from + 2 * kDim);
    }
    const std::vector<std::uint64_t> active{0xb011, 0xffff, 0}; // nobody chooses for the last head
    const OnDevice<BlockRow> table(std::vector<BlockRow>{{0, first, first, BlockRow::kTaken | BlockRow::kSparse}});
    const OnDevice<std::int64_t> headFirst(std::vector<std::int64_t>{maxPages, 0, 2 * maxPages});
    const std::vector<Half> queries16 = halves(std::size_t(kBlock * kHeads * kGroup * kDim));
    const OnDevice<Half> q(queries16), dranges(ranges);
    const OnDevice<std::uint64_t> dactive(active);
    PageUnionArgs args;
    args.rows = {{kHeads * kGroup, kHeads, kDim, kPage}, 1, kBlock, table.get(), dactive.get(), headFirst.get()};
    args.q = q.bf16(), args.ranges = dranges.bf16(), args.maxPages = maxPages;
    const auto words = std::size_t(args.wordsOf()), queries = std::size_t(args.rows.queries()),
               stride = std::size_t(args.scoreStride());
    std::vector<std::uint32_t> always(kHeads * words, 0);
    for (int i = 0; i < 20; ++i) always[random() % (kHeads * words - 1)] |= 1u << random() % 32;
    for (int g = 0; g < kHeads; ++g)
        for (int page = pages; page < int(words) * 32; ++page) // there are none of these
            always[std::size_t(g) * words + std::size_t(page / 32)] &= ~(1u << page % 32);
    const OnDevice<std::uint32_t> dalways(always);
    Launch few = launch; // multiprocessors, fewer than a cluster for each head takes
    few.multiprocessors = 2;
    for (const bool some : {false, true})
        for (const auto& [pagesPerQuery, how] : std::vector<std::pair<int, Launch>>{{1, launch},
                                                                                    {8, launch},
                                                                                    {32, launch},
                                                                                    {64, launch},
                                                                                    {65, launch},
                                                                                    {200, launch},
                                                                                    {4090, launch},
                                                                                    {8, few},
                                                                                    {64, few},
                                                                                    {200, few}}) {
            SCOPED_TRACE(::testing::Message() << pagesPerQuery << " of each query" << (some ? ", some always" : "")
                                              << ", " << how.multiprocessors << " multiprocessors");
            args.pagesPerQuery = pagesPerQuery;
            args.always = some ? dalways.get() : nullptr;
            const OnDevice<float> scores(kHeads * queries * stride);
            const OnDevice<std::uint32_t> bits(std::vector<std::uint32_t>(kHeads * words, 0)),
                arrivals(std::vector<std::uint32_t>(kHeads, 0)), record(std::vector<std::uint32_t>(kHeads * words, 7));
            const OnDevice<std::int32_t> list(std::size_t(kHeads * maxPages)),
                count(std::vector<std::int32_t>(kHeads, -1));
            args.scores = scores.get(), args.words = bits.get(), args.arrivals = arrivals.get();
            args.pages = list.get(), args.count = count.get();
            args.record = record.get();
            scoreUnionPages(how, args);
            unitePages(how, args);
            const auto gotScores = scores.read();
            const auto gotList = list.read(), gotCount = count.read();
            const auto gotRecord = record.read();
            for (int i = 0; i < 400; ++i) {
                const int g = i % 2, page = i < 8 ? pages - 1 - i / 2 : uniform(0, pages - 1);
                if (page < 0) continue;
                const int query = uniform(0, std::popcount(active[std::size_t(g)]) * kGroup - 1);
                std::uint64_t left = active[std::size_t(g)];
                for (int before = 0; before < query / kGroup; ++before) left &= left - 1;
                const int head = (std::countr_zero(left) * kHeads + g) * kGroup + query % kGroup;
                const std::size_t low = std::size_t((g == 0 ? maxPages : 0) + page) * 2 * kDim;
                double want = 0, sizes = 0;
                for (std::size_t c = 0; c < kDim; ++c) {
                    const double x = double(toFloat(queries16[std::size_t(head) * kDim + c])),
                                 product = x * double(toFloat(ranges[low + (x < 0 ? c : kDim + c)]));
                    want += product, sizes += std::abs(product);
                }
                ASSERT_NEAR(
                    double(gotScores[(std::size_t(g) * queries + std::size_t(query)) * stride + std::size_t(page)]),
                    want, 1e-5 * sizes)
                    << "head " << g << " query " << query << " page " << page;
            }
            for (int g = 0; g < kHeads; ++g) {
                const auto head = std::size_t(g);
                const auto isAlways = [&](int page) {
                    return some && (always[head * words + std::size_t(page / 32)] >> page % 32 & 1) != 0;
                };
                std::vector<int> others;
                std::set<std::int32_t> want;
                if (active[head] != 0) want.insert(pages); // the incomplete one
                for (int page = 0; page < pages; ++page)
                    if (!isAlways(page))
                        others.push_back(page);
                    else if (active[head] != 0)
                        want.insert(page);
                for (int query = 0; query < std::popcount(active[head]) * kGroup; ++query) {
                    const float* const mine = &gotScores[(head * queries + std::size_t(query)) * stride];
                    std::vector<int> order = others;
                    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return mine[a] > mine[b]; });
                    order.resize(std::min(order.size(), std::size_t(pagesPerQuery)));
                    want.insert(order.begin(), order.end());
                }
                const auto from = gotList.begin() + std::ptrdiff_t(g) * maxPages;
                ASSERT_EQ(std::vector<std::int32_t>(from, from + gotCount[head]),
                          std::vector<std::int32_t>(want.begin(), want.end()))
                    << "head " << g;
                for (int page = 0; page < int(words) * 32; ++page)
                    ASSERT_EQ((gotRecord[head * words + std::size_t(page / 32)] >> page % 32 & 1) != 0,
                              want.count(page) > 0)
                        << "head " << g << " page " << page;
            }
            for (const std::uint32_t word : bits.read()) ASSERT_EQ(word, 0u);
        }
}

INSTANTIATE_TEST_SUITE_P(Sizes, CudaPageUnion,
                         ::testing::Values(Union{4096, 20000}, Union{4097, 700}, Union{4095, 20}, Union{300, 20000},
                                           Union{257, 60}, Union{8191, 3000}, Union{3, 1}, Union{31, 2},
                                           Union{4606, 20000}, Union{4607, 20}, Union{512, 1}));

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::cuda
