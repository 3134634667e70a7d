// Page digests, their bounds and the choice of resident pages against float64 and a plain simulation (methods 9.7).
#include "tests/kernels/cuda/device.h"

#include "kernels/cuda/choice/select.h"
#include "kernels/cuda/methods/pages.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <set>

namespace kvscope::cuda {
namespace KVSCOPE_TEST_FILE {

using namespace test;

struct PageCase {
    int dim, kvHeads, group, size, shared, tokens;
    bool cuboidMean;
    PageScore score = PageScore::Mean;
};
void PrintTo(const PageCase& c, std::ostream* out) {
    *out << "dim " << c.dim << ", " << c.kvHeads << " heads of " << c.group << ", page " << c.size << ", " << c.tokens
         << " tokens";
}

class CudaPages : public CudaTest, public ::testing::WithParamInterface<PageCase> {};

/// Of tokens [page*size, ...) of a head's keys [tokens, dim], for each of its query heads.
std::vector<double> bounds(const PageCase& c, const std::vector<float>& keys, int page, const float* q) {
    std::vector<double> heads(std::size_t(c.group), 0.0);
    for (int d = 0; d < c.dim; ++d) {
        double low = 1e300, high = -1e300, radius = 0;
        const auto key = [&](int t) { return double(keys[std::size_t((page * c.size + t) * c.dim + d)]); };
        for (int t = 0; t < c.size; ++t) low = std::min(low, key(t)), high = std::max(high, key(t));
        const double centre = (low + high) / 2;
        for (int t = 0; t < c.size; ++t) radius += std::abs(centre - key(t)) / c.size;
        if (c.cuboidMean) low = centre - radius, high = centre + radius;
        for (int h = 0; h < c.group; ++h) {
            const double value = double(q[h * c.dim + d]);
            heads[std::size_t(h)] += std::max(value * low, value * high);
        }
    }
    return heads;
}

/// A prompt, then tokens one by one, resident (keys are read from the blocks) or not: scores at every step.
TEST_P(CudaPages, BoundsAgreeWithFloat64OverAPromptAndManySteps) {
    const PageCase c = GetParam();
    const int rows = 2, heads = rows * c.kvHeads, maxPages = c.tokens / c.size + 3, steps = 2 * c.size + 3;
    const std::size_t element = blockElements(c.size, c.dim);
    std::vector<std::int64_t> first;
    for (int h = 0; h < heads; ++h) first.push_back(std::int64_t(h) * maxPages);
    const OnDevice<std::int64_t> dfirst(first);
    const OnDevice<Half> digests(std::size_t(heads * maxPages * 2 * c.dim)), open(std::size_t(heads * c.size * c.dim));
    std::vector<std::vector<float>> keys(static_cast<std::size_t>(heads)); // [head][tokens, dim]
    std::vector<Half> blocks(std::size_t(heads * maxPages) * element, 0);
    std::vector<std::int32_t> position;
    for (int row = 0; row < rows; ++row) position.push_back(row == 0 ? c.tokens - 1 : c.tokens / 2);
    const auto store = [&](int head, int token, const std::vector<Half>& key) {
        Half* at = blocks.data() + std::size_t(head * maxPages + token / c.size) * element + token % c.size * c.dim;
        std::copy(key.begin(), key.end(), at);
        for (const Half value : key) keys[std::size_t(head)].push_back(toFloat(value));
    };
    for (int h = 0; h < heads; ++h)
        for (int t = 0; t <= position[std::size_t(h / c.kvHeads)]; ++t) store(h, t, halves(std::size_t(c.dim)));
    PageDigests pages;
    pages.shape = {c.kvHeads * c.group, c.kvHeads, c.dim, c.size};
    pages.cuboidMean = c.cuboidMean;
    pages.digests = reinterpret_cast<__half*>(digests.get());
    pages.openPage = open.bf16();
    pages.blockFirst = dfirst.get();
    const OnDevice<Half> prompt(blocks);
    for (int row = 0; row < rows; ++row)
        digestPrompt(launch, pages, row, position[std::size_t(row)] + 1,
                     prompt.bf16() + std::size_t(row * c.kvHeads * maxPages) * element,
                     std::int64_t(std::size_t(maxPages) * element));
    const OnDevice<std::uint8_t> active(std::vector<std::uint8_t>{1, 1});
    const bool each = c.score == PageScore::Each;
    const int sets = c.kvHeads / c.shared, lists = each ? c.kvHeads * c.group : sets;
    for (int step = 0; step < steps; ++step) {
        std::vector<Half> fresh;
        for (int h = 0; h < heads; ++h) {
            const auto key = halves(std::size_t(c.dim));
            store(h, position[std::size_t(h / c.kvHeads)] + 1, key);
            fresh.insert(fresh.end(), key.begin(), key.end());
        }
        for (std::int32_t& p : position) ++p;
        const auto q = halves(std::size_t(rows * c.kvHeads * c.group * c.dim));
        std::vector<float> wide;
        for (const Half value : q) wide.push_back(toFloat(value));
        const OnDevice<Half> dq(q), dfresh(fresh), dblocks(blocks);
        const OnDevice<std::int32_t> dposition(position);
        PageScoreArgs score;
        score.pages = pages;
        score.rows = rows;
        score.shared = c.shared;
        score.score = c.score;
        score.maxPages = maxPages;
        score.position = dposition.get();
        score.active = active.get();
        score.q = dq.bf16();
        const auto compare = [&](int unseen) {
            const OnDevice<float> scores(std::size_t(rows * lists * maxPages));
            score.unseen = unseen;
            score.scores = scores.get();
            scorePages(launch, score);
            ASSERT_EQ(cudaStreamSynchronize(launch.stream), cudaSuccess);
            const auto got = scores.read();
            for (int row = 0; row < rows; ++row)
                for (int list = 0; list < lists; ++list)
                    for (int page = 0; page < maxPages; ++page) {
                        const float value = got[std::size_t((row * lists + list) * maxPages + page)];
                        const int p = position[std::size_t(row)];
                        if (page > p / c.size) {
                            EXPECT_TRUE(std::isnan(value)) << "past the position nothing is written";
                            continue;
                        }
                        if ((page + 1) * c.size > p + 1 - unseen) {
                            EXPECT_EQ(value, -std::numeric_limits<float>::infinity());
                            continue;
                        }
                        const int set = each ? list / c.group : list;
                        std::vector<double> ofHeads;
                        for (int g = set * c.shared; g < (set + 1) * c.shared; ++g)
                            for (const double one :
                                 bounds(c, keys[std::size_t(row * c.kvHeads + g)], page,
                                        wide.data() + std::size_t((row * c.kvHeads + g) * c.group * c.dim)))
                                ofHeads.push_back(one);
                        double want = each ? ofHeads[std::size_t(list % c.group)]
                                           : std::accumulate(ofHeads.begin(), ofHeads.end(), 0.0);
                        if (c.score == PageScore::Mean) want /= c.shared * c.group;
                        if (c.score == PageScore::Largest) want = *std::max_element(ofHeads.begin(), ofHeads.end());
                        // 2*dim numbers of size 3, rounded to 11 bits; of one head as of the mean of many.
                        EXPECT_NEAR(value, want, 3 * 0x1p-11 * std::sqrt(2.0 * c.dim) * 3)
                            << "row " << row << " page " << page << " step " << step;
                    }
        };
        compare(1); // a layer ahead
        PageAppendArgs append;
        append.pages = pages;
        append.rows = rows;
        append.position = dposition.get();
        append.active = active.get();
        if (step % 2 == 0) append.newKey = dfresh.bf16();
        append.blocks = dblocks.bf16();
        appendToPages(launch, append);
        compare(0);
    }
}

INSTANTIATE_TEST_SUITE_P(Shapes, CudaPages,
                         ::testing::Values(PageCase{128, 2, 4, 32, 2, 700, true}, PageCase{64, 4, 3, 16, 4, 301, true},
                                           PageCase{128, 2, 16, 64, 1, 1290, true},
                                           PageCase{64, 2, 1, 16, 1, 20, false},
                                           PageCase{128, 2, 5, 32, 1, 700, true, PageScore::Largest},
                                           PageCase{64, 1, 16, 16, 1, 301, false, PageScore::Largest},
                                           PageCase{128, 2, 5, 32, 1, 700, true, PageScore::Each},
                                           PageCase{64, 3, 1, 16, 1, 301, false, PageScore::Each}));

using CudaPageChoice = CudaTest;

TEST_F(CudaPageChoice, FollowsRecallAndEvictionOverManySteps) {
    struct Budget {
        int sink, window, dynamic, budget, pages, shared;
    };
    for (const Budget b : {Budget{1, 2, 3, 12, 40, 2}, Budget{2, 3, 4, 10, 300, 1}, Budget{1, 1, 4, 9, 3000, 2},
                           Budget{2, 2, 30, 64, 50, 2}, Budget{0, 1, 0, 5, 700, 1}}) {
        const int rows = 2, kvHeads = 2, sets = kvHeads / b.shared, maxPages = b.pages, size = 16;
        const int capacity = std::min(b.budget, maxPages), lists = rows * sets;
        const OnDevice<std::uint8_t> resident(std::vector<std::uint8_t>(std::size_t(lists * maxPages), 0));
        std::vector<std::set<int>> want(static_cast<std::size_t>(lists));
        std::vector<std::int32_t> position{size * (maxPages / 2), size * (maxPages - 2)};
        for (int step = 0; step < 20; ++step) {
            // Few different scores: ties are common.
            std::vector<float> scores(std::size_t(lists * maxPages));
            for (float& score : scores) score = step % 2 == 0 ? float(uniform(-4, 4)) : floats(1)[0];
            for (int row = 0; row < rows; ++row)
                for (int set = 0; set < sets; ++set)
                    scores[std::size_t((row * sets + set) * maxPages + position[std::size_t(row)] / size)] =
                        -std::numeric_limits<float>::infinity();
            const OnDevice<float> dscores(scores), chosenScores(std::size_t(rows * kvHeads * capacity));
            const OnDevice<std::int32_t> dposition(position), count(std::size_t(rows * kvHeads));
            const OnDevice<PackedBlock> chosen(std::size_t(rows * kvHeads * capacity));
            PageChoiceArgs args;
            args.rows = rows;
            args.kvHeads = kvHeads;
            args.shared = b.shared;
            args.maxPages = maxPages;
            args.pageTokens = size;
            args.position = dposition.get();
            args.scores = dscores.get();
            args.sink = b.sink;
            args.window = b.window;
            args.dynamic = b.dynamic;
            args.budget = b.budget;
            args.resident = resident.get();
            args.capacity = capacity;
            args.chosen = chosen.get();
            args.chosenCount = count.get();
            args.chosenScores = chosenScores.get();
            choosePages(launch, args);
            ASSERT_EQ(cudaStreamSynchronize(launch.stream), cudaSuccess);
            const auto got = chosen.read();
            const auto counts = count.read();
            const auto gotScores = chosenScores.read();
            for (int row = 0; row < rows; ++row)
                for (int set = 0; set < sets; ++set) {
                    auto& now = want[std::size_t(row * sets + set)];
                    const float* score = scores.data() + std::size_t((row * sets + set) * maxPages);
                    const int pages = position[std::size_t(row)] / size + 1;
                    std::set<int> pinned, aware;
                    for (int p = 0; p < std::min(b.sink, pages); ++p) pinned.insert(p);
                    for (int p = std::max(0, pages - b.window); p < pages; ++p) pinned.insert(p);
                    std::vector<int> order;
                    for (int p = b.sink; p < pages - b.window + 1; ++p) order.push_back(p);
                    std::stable_sort(order.begin(), order.end(), [&](int x, int y) { return score[x] > score[y]; });
                    for (int i = 0; i < std::min(b.dynamic, int(order.size())); ++i)
                        if (pinned.insert(order[std::size_t(i)]).second) aware.insert(order[std::size_t(i)]);
                    now.insert(pinned.begin(), pinned.end());
                    while (int(now.size()) > b.budget) {
                        int victim = -1;
                        for (const int p : now)
                            if (!pinned.count(p) && (victim < 0 || score[p] < score[victim])) victim = p;
                        now.erase(victim);
                    }
                    const std::vector<int> expected(now.begin(), now.end());
                    for (int g = set * b.shared; g < (set + 1) * b.shared; ++g) {
                        const std::size_t item = std::size_t(row * kvHeads + g);
                        ASSERT_EQ(counts[item], int(expected.size())) << "step " << step;
                        for (std::size_t i = 0; i < expected.size(); ++i) {
                            const PackedBlock entry = got[item * std::size_t(capacity) + i];
                            const int page = expected[i];
                            EXPECT_EQ(entry.id(), page);
                            const Origin origin = page < b.sink              ? Origin::Sink
                                                  : page >= pages - b.window ? Origin::Window
                                                  : aware.count(page)        ? Origin::QueryAware
                                                                             : Origin::QueryAgnostic;
                            EXPECT_EQ(entry.origin(), origin);
                            const float got1 = gotScores[item * std::size_t(capacity) + i];
                            if (std::isinf(score[page])) {
                                EXPECT_TRUE(std::isnan(got1));
                            } else {
                                EXPECT_EQ(got1, score[page]);
                            }
                        }
                    }
                }
            for (std::int32_t& p : position) p = std::min(p + 3, size * maxPages - 1);
        }
    }
}

TEST_F(CudaPageChoice, SeedsTakeSlotsBesideTheOpenPage) {
    for (const int tokens : {160, 165}) {
        const int kvHeads = 2, size = 16, dim = 64, maxPages = 11, slots = 6, capacity = 5, sequence = 1;
        const std::size_t element = blockElements(size, dim);
        const auto blocks = halves(std::size_t(kvHeads * maxPages) * element);
        std::vector<PackedBlock> chosen(std::size_t(kvHeads * capacity));
        const std::vector<std::int32_t> counts{5, 3};
        const std::vector<std::vector<std::int32_t>> wanted{{0, 2, 4, 9, 10}, {1, 8, 9}};
        for (int g = 0; g < kvHeads; ++g)
            std::transform(wanted[std::size_t(g)].begin(), wanted[std::size_t(g)].end(),
                           chosen.begin() + std::ptrdiff_t(g * capacity),
                           [](std::int32_t page) { return PackedBlock(page, Origin::Sink, false); });
        const OnDevice<Half> dblocks(blocks), pool(std::size_t(2 * kvHeads * slots) * element);
        const OnDevice<PackedBlock> dchosen(chosen);
        const OnDevice<std::int32_t> dcounts(counts),
            map(std::vector<std::int32_t>(std::size_t(2 * kvHeads * slots), -1));
        PageSeedArgs args;
        args.shape = {kvHeads, kvHeads, dim, size};
        args.sequence = sequence;
        args.tokens = tokens;
        args.slots = slots;
        args.capacity = capacity;
        args.blocks = dblocks.bf16();
        args.headStride = std::int64_t(std::size_t(maxPages) * element);
        args.chosen = dchosen.get();
        args.chosenCount = dcounts.get();
        args.pool = pool.bf16();
        args.map = map.get();
        seedSlots(launch, args);
        ASSERT_EQ(cudaStreamSynchronize(launch.stream), cudaSuccess);
        const auto got = map.read();
        const auto data = pool.read();
        for (int g = 0; g < kvHeads; ++g)
            for (int slot = 0; slot < slots; ++slot) {
                const int at = (sequence * kvHeads + g) * slots + slot, i = slot - (tokens % size != 0 ? 1 : 0);
                const bool seeded = i >= 0 && i < counts[std::size_t(g)] &&
                                    (int(wanted[std::size_t(g)][std::size_t(i)]) + 1) * size <= tokens;
                EXPECT_EQ(got[std::size_t(at)], seeded ? int(wanted[std::size_t(g)][std::size_t(i)]) : -1);
                if (!seeded) continue;
                const auto from =
                    blocks.begin() + std::ptrdiff_t(std::size_t(g * maxPages + got[std::size_t(at)]) * element);
                EXPECT_TRUE(std::equal(from, from + std::ptrdiff_t(element),
                                       data.begin() + std::ptrdiff_t(std::size_t(at) * element)));
            }
    }
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::cuda
