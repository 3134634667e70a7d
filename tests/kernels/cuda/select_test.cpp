// The device's selection against kernels/selection.h on the same scores, its slot maps against setDifference, and the
// gather against plain copies.
#include "kernels/cuda/transfer/gather.h"
#include "tests/kernels/cuda/device.h"

#include "kernels/cuda/attention/attention_latent.h"
#include "kernels/cuda/choice/select.h"
#include "kernels/selection.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <set>
#include <tuple>

namespace kvscope::cuda {
namespace {

constexpr std::size_t kOrigins = 8; // three bits

/// Scores differ in the last bits: a block may stand where one of nearly the same score was expected, and what is
/// chosen after it differs then. So: the same forced blocks, as many of every origin, and none of the candidates left
/// out scores better than one taken.
void expectTheBest(const std::array<std::set<int>, kOrigins>& taken,
                   const std::array<std::set<int>, kOrigins>& expected, const std::vector<float>& aware,
                   const std::vector<float>& agnostic, int first, int current) {
    std::set<int> gone;
    for (std::size_t origin = 0; origin < kOrigins; ++origin) {
        EXPECT_EQ(taken[origin].size(), expected[origin].size()) << "origin " << origin;
        if (Origin(origin) == Origin::QueryAware || Origin(origin) == Origin::QueryAgnostic) continue;
        EXPECT_EQ(taken[origin], expected[origin]);
        gone.insert(taken[origin].begin(), taken[origin].end());
    }
    for (const auto& [origin, scores] : {std::pair{Origin::QueryAware, &aware}, {Origin::QueryAgnostic, &agnostic}}) {
        const std::set<int>& chosen = taken[std::size_t(origin)];
        gone.insert(chosen.begin(), chosen.end());
        for (int block = first; block <= current; ++block) {
            if (gone.contains(block)) continue;
            for (const int one : chosen) {
                const float left = (*scores)[std::size_t(block)], got = (*scores)[std::size_t(one)];
                EXPECT_FALSE(got < left - (1e-5f + 1e-3f * std::abs(left)))
                    << "block " << one << " of score " << got << " in place of " << block << " of " << left;
            }
        }
    }
}

using namespace test;

struct Case {
    int dim, group, blockSize, kernel, stride;
    SelectArgs::Score score;
    bool agnostic;
    SelectionBudget budget;
    int maxTokens;
    int unseen = 0;
    int slidingWindow = 0;
};
void PrintTo(const Case& c, std::ostream* out) {
    *out << "dim " << c.dim << ", group " << c.group << ", block " << c.blockSize << ", " << c.maxTokens << " tokens";
    if (c.slidingWindow > 0) *out << ", window " << c.slidingWindow;
}

class CudaSelect : public CudaTest, public ::testing::WithParamInterface<Case> {};

TEST_P(CudaSelect, FollowsTheHostsSelectionAndSetDifferenceOverManySteps) {
    const Case c = GetParam();
    const bool latent = c.dim > 128;
    const int kvHeads = latent ? 1 : 2, rows = 3, heads = rows * kvHeads, bs = c.blockSize, dim = c.dim, steps = 6;
    const AttentionShape shape{kvHeads * c.group, kvHeads, dim, bs, latent ? latentValueOf(dim) : 0};
    const PoolingGrid grid{c.kernel, c.stride, bs};
    const int maxBlocks = grid.blocks(c.maxTokens), windows = grid.windows(c.maxTokens);
    const int budget = c.budget.sink + c.budget.window + (c.budget.windowAddsCurrent ? 1 : 0) + c.budget.queryAware +
                       c.budget.queryAgnostic;
    const int capacity = std::min(budget, maxBlocks), slots = capacity + 3;
    const std::size_t element = blockElements(shape);

    const auto pooledKeys = halves(std::size_t(heads * windows * dim)),
               ranges = halves(std::size_t(heads * maxBlocks * 2 * dim));
    const auto pooledScores = floats(std::size_t(heads * windows));
    const bool product = c.score == SelectArgs::Score::PooledProduct;
    const int group = product ? 1 : c.group; // queries of a KV head
    const auto store = halves(std::size_t(heads * maxBlocks) * element);
    std::vector<std::int64_t> windowFirst, blockFirst;
    for (int h = 0; h < heads; ++h)
        windowFirst.push_back(std::int64_t(h) * windows), blockFirst.push_back(std::int64_t(h) * maxBlocks);
    const OnDevice<Half> dkeys(pooledKeys), dranges(ranges),
        pool(std::vector<Half>(std::size_t(heads * slots) * element, 0));
    const OnDevice<float> dscores(pooledScores);
    const OnDevice<std::int64_t> dwf(windowFirst), dbf(blockFirst);
    const OnDevice<std::int32_t> map(std::vector<std::int32_t>(std::size_t(heads * slots), -1)),
        listBlock(std::size_t(heads * capacity)), listSlot(std::size_t(heads * capacity)),
        listCount(static_cast<std::size_t>(heads));
    const OnDevice<BlockMove> loads(std::size_t(heads * capacity)), writeBacks(static_cast<std::size_t>(heads));
    const OnDevice<std::uint8_t> previous(
        std::vector<std::uint8_t>(std::size_t(heads * selectionBitmapBytes(maxBlocks)), 0));
    const OnDevice<PackedBlock> blocksOut(std::size_t(heads * capacity));
    const OnDevice<std::uint8_t> hasPrevious(std::vector<std::uint8_t>(std::size_t(heads), 0));
    const OnDevice<SelectionHead> headsOut(static_cast<std::size_t>(heads));
    const OnDevice<float> scoresOut(std::size_t(heads * capacity));
    const PinnedMemory pinnedStore(store.size() * 2, "the store");
    void* const pinned = pinnedStore.data();
    std::memcpy(pinned, store.data(), store.size() * 2);

    std::vector<std::vector<std::int32_t>> hostMap(std::size_t(heads),
                                                   std::vector<std::int32_t>(std::size_t(slots), -1));
    std::vector<std::set<std::int32_t>> before(static_cast<std::size_t>(heads));
    std::vector<std::int32_t> position;
    for (int row = 0; row < rows; ++row)
        position.push_back(row == 0 ? uniform(0, 2 * bs) : uniform(c.maxTokens / 2, c.maxTokens - steps - 1));
    for (int step = 0; step < steps; ++step) {
        const auto given = floats(std::size_t(heads * maxBlocks));
        const OnDevice<float> dgiven(given);
        const auto q = halves(std::size_t(heads * group * dim)), key = halves(std::size_t(heads * dim)),
                   value = halves(std::size_t(heads * dim));
        const OnDevice<Half> dq(q), dk(key), dv(value);
        const OnDevice<std::int32_t> dpos(position);
        const OnDevice<std::uint32_t> counts(std::vector<std::uint32_t>(2, 0));
        SelectArgs a;
        a.shape = shape;
        a.rows = rows;
        a.position = dpos.get();
        a.q = dq.bf16();
        a.index.kernel = c.kernel;
        a.index.stride = c.stride;
        a.index.pooledKeys = dkeys.bf16();
        a.index.pooledScores = dscores.get();
        a.index.ranges = dranges.bf16();
        a.index.windowFirst = dwf.get();
        a.index.blockFirst = dbf.get();
        a.maxBlocks = maxBlocks;
        a.score = c.score;
        a.givenScores = dgiven.get();
        a.unseen = c.unseen;
        a.slidingWindow = c.slidingWindow;
        a.agnostic = c.agnostic;
        a.budget = c.budget;
        a.scale = 1.f / std::sqrt(float(dim));
        a.capacity = capacity;
        a.listBlock = listBlock.get();
        a.listSlot = listSlot.get();
        a.listCount = listCount.get();
        a.slots = slots;
        a.map = map.get();
        a.pool = pool.bf16();
        a.newKey = dk.bf16();
        a.newValue = dv.bf16();
        a.storeFirst = dbf.get();
        a.moves = {loads.get(), writeBacks.get(), counts.get()};
        a.previous = previous.get();
        a.hasPrevious = hasPrevious.get();
        a.recordHead = headsOut.get();
        a.recordBlocks = blocksOut.get();
        a.recordScores = scoresOut.get();
        Launch how = launch; // fewer processors: fewer thread blocks for each item, items in turns
        how.multiprocessors = std::array{launch.multiprocessors, 20, 4}[std::size_t(step % 3)];
        selectBlocksOnDevice(how, a);
        GatherArgs gather;
        gather.shape = shape;
        gather.moves = a.moves;
        gather.store = static_cast<const __nv_bfloat16*>(pinned);
        gather.storeOut = static_cast<__nv_bfloat16*>(pinned);
        gather.pool = pool.bf16();
        gatherBlocks(launch, gather);
        check(cudaStreamSynchronize(launch.stream), "testing");

        const auto* host = static_cast<const Half*>(pinned); // blocks that have become full were written back
        const auto gotBlocks = blocksOut.read();
        const auto gotScores = scoresOut.read();
        const auto gotHeads = headsOut.read();
        const auto gotList = listBlock.read(), gotSlots = listSlot.read(), gotCount = listCount.read(),
                   gotMap = map.read();
        const auto gotPool = pool.read();
        std::uint32_t misses = 0, full = 0;
        for (int h = 0; h < heads; ++h) {
            SCOPED_TRACE(::testing::Message() << "step " << step << ", head " << h);
            const int at = position[std::size_t(h / kvHeads)], current = at / bs, blocks = current + 1,
                      n = grid.windows(at + 1 - c.unseen);
            // With a sliding window: the first token and block in sight, and the first window that reaches into it.
            const int firstToken = c.slidingWindow > 0 ? std::max(0, at + 1 - c.slidingWindow) : 0,
                      first = firstToken / bs, hidden = std::max(0, firstToken - c.kernel + 1),
                      firstSeen = std::min(n, (hidden + c.stride - 1) / c.stride);
            std::vector<float> aware, agnostic, windowScores(std::size_t(n), 0.f);
            if (product || c.score == SelectArgs::Score::PooledSoftmax) {
                for (int head = 0; head < group; ++head) {
                    const Half* query = &q[std::size_t((h * group + head) * dim)];
                    std::vector<double> logits;
                    double maximum = -1e300, sum = 0;
                    for (int w = firstSeen; w < n; ++w) {
                        double dot = 0;
                        for (int i = 0; i < dim; ++i)
                            dot += double(toFloat(query[i])) *
                                   double(toFloat(pooledKeys[std::size_t((h * windows + w) * dim + i)]));
                        if (product) windowScores[std::size_t(w)] = float(dot);
                        logits.push_back(dot * double(a.scale));
                        maximum = std::max(maximum, logits.back());
                    }
                    for (const double logit : logits) sum += std::exp(logit - maximum);
                    for (int w = firstSeen; w < n && !product; ++w)
                        windowScores[std::size_t(w)] +=
                            float(std::exp(logits[std::size_t(w - firstSeen)] - maximum) / sum);
                }
                aware.resize(std::size_t(blocks));
                poolToBlocks(grid, windowScores, aware);
            } else if (c.score == SelectArgs::Score::RangeBound) {
                for (int b = 0; b < blocks; ++b) {
                    double total = 0;
                    for (int head = 0; head < c.group; ++head)
                        for (int i = 0; i < dim; ++i) {
                            const double query = double(toFloat(q[std::size_t((h * c.group + head) * dim + i)]));
                            const Half* range = &ranges[std::size_t((h * maxBlocks + b) * 2 * dim)];
                            total +=
                                std::max(query * double(toFloat(range[i])), query * double(toFloat(range[dim + i])));
                        }
                    aware.push_back(float(total));
                }
            } else if (c.score == SelectArgs::Score::Given) {
                aware.assign(&given[std::size_t(h * maxBlocks)], &given[std::size_t(h * maxBlocks)] + blocks);
            }
            if (c.agnostic) {
                agnostic.resize(std::size_t(blocks));
                poolToBlocks(grid, {pooledScores.data() + h * windows, std::size_t(n)}, agnostic);
            }
            std::vector<SelectedBlock> want;
            SelectionBudget inSight = c.budget;
            if (first > 0) { // no sink there: its share goes to the scores
                if (!aware.empty())
                    inSight.queryAware += inSight.sink;
                else if (!agnostic.empty())
                    inSight.queryAgnostic += inSight.sink;
                inSight.sink = 0;
            }
            const auto from = [&](const std::vector<float>& scores) {
                return std::span(scores).subspan(scores.empty() ? 0 : std::size_t(first));
            };
            selectBlocks(inSight, current - first, from(aware), from(agnostic), want);
            for (SelectedBlock& block : want) block.block += first;
            std::vector<std::int32_t> wanted;
            ASSERT_EQ(gotCount[std::size_t(h)], int(want.size()));
            const int item = h * capacity;
            std::array<std::set<int>, kOrigins> taken, expected;
            for (std::size_t i = 0; i < want.size(); ++i) {
                const PackedBlock packed = gotBlocks[std::size_t(item) + i];
                const Origin origin = packed.origin();
                const int block = packed.id();
                wanted.push_back(gotList[std::size_t(item) + i]);
                const float reference = origin == Origin::QueryAgnostic ? agnostic[std::size_t(block)]
                                        : aware.empty()                 ? NAN
                                                                        : aware[std::size_t(block)];
                if (std::isfinite(reference)) {
                    EXPECT_NEAR(gotScores[std::size_t(item) + i], reference, 1e-5 + 2e-4 * std::abs(reference));
                }
                EXPECT_EQ(block, gotList[std::size_t(item) + i]);
                taken[std::size_t(origin)].insert(block);
                expected[std::size_t(want[i].origin)].insert(want[i].block);
            }
            expectTheBest(taken, expected, aware, agnostic, first, current);
            EXPECT_TRUE(std::is_sorted(wanted.begin(), wanted.end()));
            // Slots, from the device's own list.
            const auto old = hostMap[std::size_t(h)];
            std::vector<std::int32_t> load(static_cast<std::size_t>(slots));
            setDifference(hostMap[std::size_t(h)], wanted, load);
            const int fresh = at % bs == 0 ? current : -1;
            int missed = 0;
            for (std::size_t i = 0; i < wanted.size(); ++i) {
                const bool resident = std::find(old.begin(), old.end(), wanted[i]) != old.end();
                missed += !resident && wanted[i] != fresh;
                EXPECT_EQ(gotBlocks[std::size_t(item) + i].hit(), resident || wanted[i] == fresh);
                const int slot = gotSlots[std::size_t(item) + i];
                EXPECT_EQ(hostMap[std::size_t(h)][std::size_t(slot)], wanted[i]);
                EXPECT_EQ(gotMap[std::size_t(h * slots + slot)], wanted[i]);
                if (!resident && wanted[i] != fresh && wanted[i] != current) {
                    const Half* inPool = &gotPool[(std::size_t(h * slots) + std::size_t(slot)) * element];
                    EXPECT_EQ(std::memcmp(inPool,
                                          host + (std::size_t(h * maxBlocks) + std::size_t(wanted[i])) * element,
                                          element * 2),
                              0);
                }
            }
            // The new token
            const int tail = gotSlots[std::size_t(item) + wanted.size() - 1];
            const Half* block = &gotPool[(std::size_t(h * slots) + std::size_t(tail)) * element];
            if (wanted.back() != current || std::find(old.begin(), old.end(), current) != old.end() || fresh == current)
                for (int i = 0; i < dim; ++i) {
                    EXPECT_EQ(block[at % bs * dim + i], key[std::size_t(h * dim + i)]);
                    if (!latent) {
                        EXPECT_EQ(block[bs * dim + i * bs + at % bs], value[std::size_t(h * dim + i)]);
                    }
                }
            misses += std::uint32_t(missed);
            full += (at + 1) % bs == 0 ? 1u : 0u;
            const SelectionHead& head = gotHeads[std::size_t(h)];
            EXPECT_EQ(head.selected, int(want.size()));
            EXPECT_EQ(head.misses, missed);
            EXPECT_EQ(head.hits, int(want.size()) - missed);
            const std::set<std::int32_t> now(wanted.begin(), wanted.end());
            int kept = 0;
            for (const auto id : now) kept += int(before[std::size_t(h)].count(id));
            EXPECT_EQ(head.kept, step == 0 ? -1 : kept);
            before[std::size_t(h)] = now;
        }
        const auto moved = counts.read();
        EXPECT_EQ(moved[0], misses);
        EXPECT_EQ(moved[1], full);
        for (auto& at : position) ++at;
    }
}

constexpr auto kPooled = SelectArgs::Score::PooledSoftmax, kRange = SelectArgs::Score::RangeBound,
               kProduct = SelectArgs::Score::PooledProduct, kGiven = SelectArgs::Score::Given,
               kNone = SelectArgs::Score::None;
INSTANTIATE_TEST_SUITE_P(
    Shapes, CudaSelect,
    ::testing::Values(Case{64, 3, 64, 32, 16, kPooled, true, {1, 4, false, 4, 7}, 3000},
                      Case{128, 16, 64, 32, 16, kPooled, true, {1, 16, true, 15, 31}, 40000},
                      Case{128, 8, 64, 32, 16, kPooled, false, {1, 16, true, 46, 0}, 9000},
                      Case{64, 4, 16, 16, 16, kRange, false, {0, 1, false, 15, 0}, 5000},
                      Case{128, 1, 64, 32, 16, kNone, true, {1, 4, false, 0, 11}, 7000},
                      Case{64, 32, 128, 64, 16, kPooled, true, {2, 2, true, 3, 3}, 20000},
                      Case{64, 2, 64, 32, 16, kNone, false, {1, 7, false, 0, 0}, 2000},
                      Case{64, 3, 64, 32, 16, kProduct, true, {1, 1, false, 4, 7}, 3000, 1},
                      Case{128, 16, 64, 32, 16, kProduct, false, {1, 4, true, 20, 0}, 70000, 1},
                      Case{128, 4, 16, 8, 4, kProduct, true, {0, 1, false, 3, 3}, 4000},
                      Case{64, 4, 64, 32, 16, kGiven, false, {1, 3, true, 9, 0}, 6000},
                      Case{128, 8, 64, 32, 16, kGiven, true, {0, 1, false, 12, 5}, 30000, 1},
                      Case{64, 3, 64, 32, 16, kPooled, true, {1, 4, false, 4, 7}, 3000, 0, 1500},
                      Case{128, 16, 64, 32, 16, kPooled, true, {1, 4, true, 15, 31}, 40000, 0, 4096},
                      Case{128, 4, 16, 8, 4, kPooled, false, {1, 2, false, 4, 0}, 900, 0, 137},
                      Case{64, 4, 16, 16, 16, kRange, false, {2, 1, false, 9, 0}, 5000, 0, 1000},
                      Case{128, 1, 64, 32, 16, kNone, true, {1, 4, false, 0, 3}, 7000, 0, 900},
                      Case{64, 2, 64, 32, 16, kNone, false, {1, 7, false, 0, 0}, 2000, 0, 300},
                      Case{64, 4, 64, 32, 16, kGiven, false, {1, 3, true, 2, 0}, 6000, 0, 700},
                      Case{kSmallLatentDim, 40, 64, 32, 16, kPooled, false, {1, 4, false, 9, 0}, 6000},
                      Case{kSmallLatentDim, 40, 16, 8, 4, kRange, false, {1, 2, false, 9, 0}, 3000},
                      Case{kLatentDim, 64, 64, 32, 16, kPooled, false, {1, 4, false, 9, 0}, 4000}));

/// Few different scores, and none that are numbers, and scores of every size, and such as differ in their last bits:
/// exactly the host's choice, the lower block of equal ones. Slots that are free are taken the longest unused first.
TEST_F(CudaTest, SelectionBreaksTiesAsTheHostDoes) {
    constexpr int kRows = 2, kKvHeads = 2, kHeads = kRows * kKvHeads, kDim = 64, kBlockSize = 16;
    constexpr int kEverySize = 0, kNear = -1;
    const AttentionShape shape{8, kKvHeads, kDim, kBlockSize};
    for (const int maxBlocks : {40, 250, 700, 2048, 5000})
        for (const int kinds : {1, 3, 40, kEverySize, kNear}) {
            SCOPED_TRACE(::testing::Message() << maxBlocks << " blocks, " << kinds << " scores");
            const int aware = uniform(1, maxBlocks / 4), agnostic = kinds == 1 ? 0 : uniform(1, maxBlocks / 4);
            const SelectionBudget budget{1, 2, true, aware, agnostic};
            const int capacity = std::min(aware + agnostic + 4, maxBlocks), slots = capacity + uniform(1, 9);
            const std::size_t element = blockElements(kBlockSize, kDim);
            std::vector<std::int64_t> first;
            for (int h = 0; h < kHeads; ++h) first.push_back(std::int64_t(h) * maxBlocks);
            const auto drawn = [&] {
                if (kinds == kEverySize) return std::ldexp(uniform(0, 1) == 0 ? 1.f : -1.f, uniform(-120, 120));
                if (kinds == kNear) return 1.f + float(uniform(0, 5000)) * 0x1p-23f;
                const int kind = uniform(0, kinds - 1);
                return kind == 1 ? -INFINITY : kind == 2 ? NAN : float(kind);
            };
            const OnDevice<std::int64_t> dfirst(first);
            const OnDevice<Half> pool(std::size_t(kHeads * slots) * element);
            const OnDevice<std::int32_t> map(std::vector<std::int32_t>(std::size_t(kHeads * slots), -1)),
                lastUse(std::vector<std::int32_t>(std::size_t(kHeads * slots), -1)),
                listBlock(std::size_t(kHeads * capacity)), listSlot(std::size_t(kHeads * capacity)),
                listCount(static_cast<std::size_t>(kHeads));
            const OnDevice<BlockMove> loads(std::size_t(kHeads * capacity)), back(static_cast<std::size_t>(kHeads));
            auto hostMap = map.read(), hostUse = lastUse.read();
            std::vector<std::int32_t> position{uniform(0, maxBlocks * kBlockSize - 9), maxBlocks * kBlockSize - 5};
            for (int step = 0; step < 4; ++step) {
                std::vector<float> given(std::size_t(kHeads * maxBlocks)), importance(given.size());
                for (float& score : given) score = drawn();
                for (float& score : importance) score = drawn();
                const OnDevice<float> dgiven(given), dimportance(importance);
                const auto key = halves(std::size_t(kHeads * kDim));
                const OnDevice<Half> dkey(key);
                const OnDevice<std::int32_t> dpos(position);
                const OnDevice<std::uint32_t> counts(std::vector<std::uint32_t>(2, 0));
                SelectArgs a;
                a.shape = shape;
                a.rows = kRows;
                a.position = dpos.get();
                a.index.kernel = a.index.stride = kBlockSize; // one window a block
                a.index.pooledScores = dimportance.get();
                a.index.windowFirst = a.index.blockFirst = dfirst.get();
                a.maxBlocks = maxBlocks;
                a.score = SelectArgs::Score::Given;
                a.givenScores = dgiven.get();
                a.agnostic = agnostic > 0;
                a.budget = budget;
                a.capacity = capacity;
                a.listBlock = listBlock.get();
                a.listSlot = listSlot.get();
                a.listCount = listCount.get();
                a.slots = slots;
                a.map = map.get();
                a.lastUse = lastUse.get();
                a.pool = pool.bf16();
                a.newKey = a.newValue = dkey.bf16();
                a.storeFirst = dfirst.get();
                a.moves = {loads.get(), back.get(), counts.get()};
                selectBlocksOnDevice(launch, a);
                check(cudaStreamSynchronize(launch.stream), "testing");
                const auto list = listBlock.read(), got = listSlot.read(), count = listCount.read();
                for (int h = 0; h < kHeads; ++h) {
                    SCOPED_TRACE(::testing::Message() << "step " << step << ", head " << h);
                    const int at = position[std::size_t(h / kKvHeads)], blocks = at / kBlockSize + 1;
                    const float* mine = &given[std::size_t(h * maxBlocks)];
                    const std::vector<float> scores(mine, mine + blocks);
                    const PoolingGrid grid{kBlockSize, kBlockSize, kBlockSize};
                    std::vector<float> pooled(std::size_t(agnostic > 0 ? blocks : 0));
                    if (agnostic > 0)
                        poolToBlocks(grid, {&importance[std::size_t(h * maxBlocks)], std::size_t(grid.windows(at + 1))},
                                     pooled);
                    std::vector<SelectedBlock> want;
                    selectBlocks(budget, blocks - 1, scores, pooled, want);
                    std::vector<std::int32_t> wanted, listed;
                    for (const SelectedBlock& block : want) wanted.push_back(block.block);
                    ASSERT_EQ(count[std::size_t(h)], int(want.size()));
                    const auto from = list.begin() + h * capacity;
                    listed.assign(from, from + count[std::size_t(h)]);
                    ASSERT_EQ(listed, wanted);
                    // The slots that no listed block is in, as misses take them.
                    std::int32_t *blockIn = &hostMap[std::size_t(h * slots)], *used = &hostUse[std::size_t(h * slots)];
                    std::vector<std::int32_t> free;
                    for (int s = 0; s < slots; ++s)
                        if (!std::binary_search(wanted.begin(), wanted.end(), blockIn[s])) free.push_back(s);
                    std::sort(free.begin(), free.end(), [&](int x, int y) {
                        return std::tuple(used[x], blockIn[x], x) < std::tuple(used[y], blockIn[y], y);
                    });
                    std::size_t taken = 0;
                    for (std::size_t i = 0; i < wanted.size(); ++i) {
                        const auto resident = std::find(blockIn, blockIn + slots, wanted[i]) - blockIn;
                        const int slot = resident < slots ? int(resident) : free[taken++];
                        EXPECT_EQ(got[std::size_t(h * capacity) + i], slot) << "block " << wanted[i];
                        blockIn[slot] = wanted[i];
                        used[slot] = at;
                    }
                }
                EXPECT_EQ(map.read(), hostMap);
                EXPECT_EQ(lastUse.read(), hostUse);
                for (auto& at : position) ++at;
            }
        }
}

/// A choice made elsewhere, ahead of the layer: lists, origins, scores and slots are those of the choice, and the
/// newest token's place is left alone.
TEST_F(CudaTest, SelectionTakesAReadyChoice) {
    constexpr int kRows = 2, kKvHeads = 2, kHeads = kRows * kKvHeads, kBlocks = 90, kCapacity = 12, kSlots = 13;
    const AttentionShape shape{8, kKvHeads, 64, 16};
    const std::size_t element = blockElements(16, 64);
    std::vector<std::int64_t> first;
    for (int h = 0; h < kHeads; ++h) first.push_back(std::int64_t(h) * kBlocks);
    const OnDevice<std::int64_t> dfirst(first);
    const auto poolBefore = halves(std::size_t(kHeads * kSlots) * element);
    const OnDevice<Half> pool(poolBefore);
    const OnDevice<std::int32_t> map(std::vector<std::int32_t>(std::size_t(kHeads * kSlots), -1)),
        listBlock(std::size_t(kHeads * kCapacity)), listSlot(std::size_t(kHeads * kCapacity)),
        listCount(static_cast<std::size_t>(kHeads));
    const OnDevice<BlockMove> loads(std::size_t(kHeads * kCapacity)), writeBacks(static_cast<std::size_t>(kHeads));
    const OnDevice<SelectionHead> headsOut(static_cast<std::size_t>(kHeads));
    const OnDevice<PackedBlock> blocksOut(std::size_t(kHeads * kCapacity));
    const OnDevice<float> scoresOut(std::size_t(kHeads * kCapacity));
    std::vector<std::vector<std::int32_t>> hostMap(std::size_t(kHeads),
                                                   std::vector<std::int32_t>(std::size_t(kSlots), -1));
    std::vector<std::int32_t> position{uniform(20 * 16, 30 * 16), uniform(60 * 16, 70 * 16) / 16 * 16 - 2};
    for (int step = 0; step < 5; ++step) { // the second row opens a block on its way
        std::vector<PackedBlock> chosen(std::size_t(kHeads * kCapacity));
        std::vector<std::int32_t> count;
        const auto scores = floats(std::size_t(kHeads * kCapacity));
        for (int h = 0; h < kHeads; ++h) {
            const int current = position[std::size_t(h / kKvHeads)] / 16;
            std::set<std::int32_t> blocks{current};
            const int wanted = uniform(1, kCapacity);
            while (int(blocks.size()) < wanted) blocks.insert(uniform(0, current));
            count.push_back(wanted);
            std::size_t at = std::size_t(h * kCapacity);
            for (const std::int32_t b : blocks)
                chosen[at++] = PackedBlock(b, b == current ? Origin::Window : Origin::TokenLevel, false);
        }
        const OnDevice<PackedBlock> dchosen(chosen);
        const OnDevice<std::int32_t> dcount(count), dpos(position);
        const OnDevice<float> dscores(scores);
        const OnDevice<std::uint32_t> counts(std::vector<std::uint32_t>(2, 0));
        const OnDevice<std::uint64_t> end(std::vector<std::uint64_t>(1, 0));
        SelectArgs a;
        a.shape = shape;
        a.rows = kRows;
        a.position = dpos.get();
        a.maxBlocks = kBlocks;
        a.budget = {1, 2, true, 5, 0}; // plays no part
        a.chosen = dchosen.get();
        a.chosenCount = dcount.get();
        a.chosenScores = dscores.get();
        a.unseen = 1;
        a.capacity = kCapacity;
        a.listBlock = listBlock.get();
        a.listSlot = listSlot.get();
        a.listCount = listCount.get();
        a.slots = kSlots;
        a.map = map.get();
        a.pool = pool.bf16();
        a.storeFirst = dfirst.get();
        a.moves = {loads.get(), writeBacks.get(), counts.get()};
        a.recordHead = headsOut.get();
        a.recordBlocks = blocksOut.get();
        a.recordScores = scoresOut.get();
        a.endMark = end.get();
        selectBlocksOnDevice(launch, a);
        check(cudaStreamSynchronize(launch.stream), "testing");
        EXPECT_GT(end.read()[0], 0u);
        EXPECT_EQ(pool.read(), poolBefore) << "the token comes later";
        const auto list = listBlock.read(), slots = listSlot.read(), got = listCount.read();
        const auto packed = blocksOut.read();
        const auto recorded = scoresOut.read();
        const auto heads = headsOut.read();
        std::uint32_t misses = 0, full = 0;
        for (int h = 0; h < kHeads; ++h) {
            SCOPED_TRACE(::testing::Message() << "step " << step << ", head " << h);
            const int at = position[std::size_t(h / kKvHeads)];
            ASSERT_EQ(got[std::size_t(h)], count[std::size_t(h)]);
            std::vector<std::int32_t> wanted;
            for (int i = 0; i < count[std::size_t(h)]; ++i)
                wanted.push_back(chosen[std::size_t(h * kCapacity + i)].id());
            const auto old = hostMap[std::size_t(h)];
            std::vector<std::int32_t> load(kSlots);
            setDifference(hostMap[std::size_t(h)], wanted, load);
            int missed = 0;
            for (std::size_t i = 0; i < wanted.size(); ++i) {
                const std::size_t j = std::size_t(h * kCapacity) + i;
                const bool fresh = at % 16 == 0 && wanted[i] == at / 16;
                const bool resident = fresh || std::find(old.begin(), old.end(), wanted[i]) != old.end();
                missed += resident ? 0 : 1;
                EXPECT_EQ(list[j], wanted[i]);
                EXPECT_EQ(packed[j], chosen[j].withHit(resident));
                EXPECT_EQ(recorded[j], scores[j]);
                EXPECT_EQ(hostMap[std::size_t(h)][std::size_t(slots[j])], wanted[i]);
            }
            EXPECT_EQ(heads[std::size_t(h)].misses, missed);
            EXPECT_EQ(heads[std::size_t(h)].late, 0u);
            misses += std::uint32_t(missed);
            full += (at + 1) % 16 == 0 ? 1u : 0u;
        }
        EXPECT_EQ(counts.read(), (std::vector<std::uint32_t>{misses, full}));
        for (auto& at : position) ++at;
    }
}

TEST_F(CudaTest, GatherMovesEveryByteBothWays) {
    const AttentionShape shape{16, 2, 128, 64};
    const std::size_t element = blockElements(64, 128);
    constexpr int kBlocks = 600;
    const auto content = halves(std::size_t(kBlocks) * element);
    const PinnedMemory store(content.size() * 2, "the store");
    void* const pinned = store.data();
    std::memcpy(pinned, content.data(), content.size() * 2);
    std::vector<std::uint32_t> order(kBlocks);
    std::iota(order.begin(), order.end(), 0u);
    for (const int loads : {0, 1, 3, 37, 500}) {
        const auto before = halves(std::size_t(kBlocks) * element);
        std::memcpy(pinned, content.data(), content.size() * 2);
        const OnDevice<Half> pool(before);
        std::shuffle(order.begin(), order.end(), random);
        std::vector<BlockMove> in, out;
        for (int i = 0; i < loads; ++i) in.push_back({order[std::size_t(i)], order[std::size_t(kBlocks - 1 - i)]});
        for (int i = 0; i < 9 && loads < 500; ++i)
            out.push_back({order[std::size_t(kBlocks - 1 - i)], order[std::size_t(i)]});
        const OnDevice<BlockMove> din(in), dout(out);
        const OnDevice<std::uint32_t> counts(
            std::vector<std::uint32_t>{std::uint32_t(in.size()), std::uint32_t(out.size())});
        GatherArgs a;
        a.shape = shape;
        a.moves = {din.get(), dout.get(), counts.get()};
        a.store = static_cast<const __nv_bfloat16*>(pinned);
        a.storeOut = static_cast<__nv_bfloat16*>(pinned);
        a.pool = pool.bf16();
        auto want = before, host = content;
        const auto reset = [&] {
            std::memcpy(pinned, content.data(), content.size() * 2);
            check(cudaMemcpy(pool.get(), before.data(), before.size() * 2, cudaMemcpyHostToDevice), "testing");
        };
        // Beside other kernels, in two parts; the attention was ready before or has not begun to wait.
        for (const bool waiting : {true, false}) {
            constexpr int kSlots = 50, kHeads = kBlocks / kSlots;
            reset();
            const OnDevice<std::uint64_t> marks(std::vector<std::uint64_t>{0, 0, 500, waiting ? 501u : 499u});
            const OnDevice<SelectionHead> late(std::vector<SelectionHead>(std::size_t(kHeads), SelectionHead{}));
            const OnDevice<std::uint32_t> recorded(std::size_t(2));
            GatherArgs beside = a;
            beside.beside = true;
            beside.part = GatherArgs::Part::Loads;
            beside.recordCounts = recorded.get();
            beside.mark = marks.get();
            beside.endMark = marks.get() + 1;
            beside.begin = marks.get() + 2;
            beside.ready = marks.get() + 3;
            beside.late = late.get();
            beside.slots = kSlots;
            gatherBlocks(launch, beside, 16);
            check(cudaStreamSynchronize(launch.stream), "testing");
            auto loaded = before;
            for (const auto& move : in)
                std::copy_n(&content[move.store * element], element, &loaded[move.slot * element]);
            EXPECT_EQ(pool.read(), loaded) << loads;
            EXPECT_EQ(std::memcmp(pinned, content.data(), content.size() * 2), 0) << "nothing was written back";
            EXPECT_GE(marks.read()[1], marks.read()[0]);
            std::vector<std::uint32_t> wantLate(kHeads, 0);
            for (const auto& move : in) wantLate[move.slot / kSlots] += waiting ? 1 : 0;
            for (int h = 0; h < kHeads; ++h)
                EXPECT_EQ(late.read()[std::size_t(h)].late, wantLate[std::size_t(h)]) << "head " << h;
            beside.part = GatherArgs::Part::WriteBacks;
            beside.late = nullptr;
            gatherBlocks(launch, beside, 16);
            check(cudaStreamSynchronize(launch.stream), "testing");
            for (const auto& move : out)
                EXPECT_EQ(std::memcmp(static_cast<Half*>(pinned) + move.store * element, &before[move.slot * element],
                                      element * 2),
                          0);
            EXPECT_EQ(recorded.read(),
                      (std::vector<std::uint32_t>{std::uint32_t(in.size()), std::uint32_t(out.size())}));
        }
        for (const auto& move : in) std::copy_n(&content[move.store * element], element, &want[move.slot * element]);
        for (const auto& move : out) std::copy_n(&before[move.slot * element], element, &host[move.store * element]);
        for (const std::size_t shared : {launch.blockShared, std::size_t(99) << 10}) { // with its large ring or without
            Launch how = launch;
            how.blockShared = shared;
            reset();
            gatherBlocks(how, a);
            check(cudaStreamSynchronize(launch.stream), "testing");
            EXPECT_EQ(pool.read(), want) << loads;
            EXPECT_EQ(std::memcmp(pinned, host.data(), host.size() * 2), 0) << loads;
        }
    }
}

} // namespace
} // namespace kvscope::cuda
