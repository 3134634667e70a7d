// The device's selection over many steps against kernels/selection.h on the same scores, and its slot maps against
// setDifference.
#include "tests/kernels/cuda/device.h"

#include "base/extents.h"
#include "kernels/cuda/attention/attention_latent.h"
#include "kernels/cuda/choice/select.h"
#include "kernels/cuda/transfer/gather.h"
#include "kernels/selection.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <optional>
#include <set>

namespace kvscope::cuda {
namespace KVSCOPE_TEST_FILE {

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

/// What blocks are chosen from, on the host: what the block index holds of every head, [row, KV head].
struct SelectInputs {
    SelectInputs(const Case& testCase, const std::function<std::vector<float>(std::size_t)>& floats,
                 const std::function<std::vector<Half>(std::size_t)>& halves)
        : c(testCase), pooledKeys(halves(pooledKeyAt.size())), ranges(halves(rangeAt.size())),
          store(halves(std::size_t(heads * maxBlocks) * element)), pooledScores(floats(pooledScoreAt.size())) {}

    static constexpr int kRows = 3, kSteps = 6;
    const Case c;
    const bool latent = c.dim > 128, product = c.score == SelectArgs::Score::PooledProduct;
    const int kvHeads = latent ? 1 : 2, heads = kRows * kvHeads, group = product ? 1 : c.group; // queries of a KV head
    const AttentionShape shape{kvHeads * c.group, kvHeads, c.dim, c.blockSize, latent ? latentValueOf(c.dim) : 0};
    const PoolingGrid grid{c.kernel, c.stride, c.blockSize};
    const int maxBlocks = grid.blocks(c.maxTokens), windows = grid.windows(c.maxTokens);
    const int budget = c.budget.sink + c.budget.window + (c.budget.windowAddsCurrent ? 1 : 0) + c.budget.queryAware +
                       c.budget.queryAgnostic;
    const int capacity = std::min(budget, maxBlocks), slots = capacity + 3;
    const float scale = 1.f / std::sqrt(float(c.dim));
    const std::size_t element = blockElements(shape);
    const Extents<int, int, int> pooledKeyAt{heads, windows, c.dim}, queryAt{heads, group, c.dim};
    const Extents<int, int> pooledScoreAt{heads, windows}, blockAt{heads, maxBlocks}, slotAt{heads, slots},
        entryAt{heads, capacity}, newAt{heads, c.dim};
    const Extents<int, int, int, int> rangeAt{heads, maxBlocks, 2, c.dim};
    const std::vector<Half> pooledKeys, ranges, store;
    const std::vector<float> pooledScores;
};

/// What a step brings, on the host.
struct SelectStep {
    std::vector<float> given; // [head, maxBlocks]
    std::vector<Half> q, key, value;
    std::vector<std::int32_t> position; // [row]
};

/// The choice for one head by the functions of the CPU, on scores computed in float64.
class HostChoice {
public:
    HostChoice(const SelectInputs& in, const SelectStep& step, int head)
        : in_(in), step_(step), head_(head), at_(step.position[std::size_t(head / in.kvHeads)]),
          // With a sliding window: the first token in sight.
          firstToken_(in.c.slidingWindow > 0 ? std::max(0, at_ + 1 - in.c.slidingWindow) : 0),
          windows_(in.grid.windows(at_ + 1 - in.c.unseen)), current(at_ / in.c.blockSize),
          first(firstToken_ / in.c.blockSize) {
        using Score = SelectArgs::Score;
        if (in.product || in.c.score == Score::PooledSoftmax)
            aware = ofWindows();
        else if (in.c.score == Score::RangeBound)
            aware = ofRanges();
        else if (in.c.score == Score::Given)
            aware.assign(&step.given[in.blockAt.first(head)], &step.given[in.blockAt.first(head)] + current + 1);
        if (in.c.agnostic) {
            agnostic.resize(std::size_t(current + 1));
            poolToBlocks(in.grid, {in.pooledScores.data() + in.pooledScoreAt.first(head), std::size_t(windows_)},
                         agnostic);
        }
        choose();
    }

private:
    std::vector<float> ofWindows() const {
        const int hidden = std::max(0, firstToken_ - in_.c.kernel + 1), // the first window that reaches into sight
            firstSeen = std::min(windows_, (hidden + in_.c.stride - 1) / in_.c.stride);
        std::vector<float> scores(std::size_t(windows_), 0.f);
        for (int query = 0; query < in_.group; ++query) {
            const Half* q = &step_.q[in_.queryAt.first(head_, query)];
            std::vector<double> logits;
            double maximum = -1e300, sum = 0;
            for (int w = firstSeen; w < windows_; ++w) {
                const Half* key = &in_.pooledKeys[in_.pooledKeyAt.first(head_, w)];
                double dot = 0;
                for (int i = 0; i < in_.c.dim; ++i) dot += double(toFloat(q[i])) * double(toFloat(key[i]));
                if (in_.product) scores[std::size_t(w)] = float(dot);
                logits.push_back(dot * double(in_.scale));
                maximum = std::max(maximum, logits.back());
            }
            for (const double logit : logits) sum += std::exp(logit - maximum);
            for (int w = firstSeen; w < windows_ && !in_.product; ++w)
                scores[std::size_t(w)] += float(std::exp(logits[std::size_t(w - firstSeen)] - maximum) / sum);
        }
        std::vector<float> ofBlocks(std::size_t(current + 1));
        poolToBlocks(in_.grid, scores, ofBlocks);
        return ofBlocks;
    }
    std::vector<float> ofRanges() const {
        std::vector<float> scores;
        for (int b = 0; b <= current; ++b) {
            const Half *low = &in_.ranges[in_.rangeAt.first(head_, b, 0)], *high = low + in_.c.dim;
            double total = 0;
            for (int query = 0; query < in_.c.group; ++query)
                for (int i = 0; i < in_.c.dim; ++i) {
                    const double q = double(toFloat(step_.q[in_.queryAt.offset(head_, query, i)]));
                    total += std::max(q * double(toFloat(low[i])), q * double(toFloat(high[i])));
                }
            scores.push_back(float(total));
        }
        return scores;
    }
    void choose() {
        SelectionBudget inSight = in_.c.budget;
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
        selectBlocks(inSight, current - first, from(aware), from(agnostic), blocks);
        for (SelectedBlock& block : blocks) block.block += first;
    }

    const SelectInputs& in_;
    const SelectStep& step_;
    const int head_, at_, firstToken_, windows_;

public:
    const int current, first;           // the newest block, and the first in sight
    std::vector<float> aware, agnostic; // [block]; empty: not scored so
    std::vector<SelectedBlock> blocks;  // chosen, ascending
};

/// The same on the GPU, and what a selection reads and writes there.
struct SelectDevice {
    explicit SelectDevice(const SelectInputs& in)
        : keys(in.pooledKeys), ranges(in.ranges), pool(std::vector<Half>(in.slotAt.size() * in.element, 0)),
          scores(in.pooledScores), windowFirst(firstOf(in.heads, in.windows)),
          blockFirst(firstOf(in.heads, in.maxBlocks)), map(std::vector<std::int32_t>(in.slotAt.size(), -1)),
          listBlock(in.entryAt.size()), listSlot(in.entryAt.size()), listCount(std::size_t(in.heads)),
          loads(in.entryAt.size()), writeBacks(std::size_t(in.heads)),
          previous(std::vector<std::uint8_t>(std::size_t(in.heads * selectionBitmapBytes(in.maxBlocks)), 0)),
          hasPrevious(std::vector<std::uint8_t>(std::size_t(in.heads), 0)), blocksOut(in.entryAt.size()),
          headsOut(std::size_t(in.heads)), scoresOut(in.entryAt.size()), store(in.store.size() * 2, "the store") {
        std::memcpy(store.data(), in.store.data(), in.store.size() * 2);
    }
    static std::vector<std::int64_t> firstOf(int heads, int stride) {
        std::vector<std::int64_t> first;
        for (int h = 0; h < heads; ++h) first.push_back(std::int64_t(h) * stride);
        return first;
    }

    const OnDevice<Half> keys, ranges, pool;
    const OnDevice<float> scores;
    const OnDevice<std::int64_t> windowFirst, blockFirst;
    const OnDevice<std::int32_t> map, listBlock, listSlot, listCount;
    const OnDevice<BlockMove> loads, writeBacks;
    const OnDevice<std::uint8_t> previous, hasPrevious;
    const OnDevice<PackedBlock> blocksOut;
    const OnDevice<SelectionHead> headsOut;
    const OnDevice<float> scoresOut;
    const PinnedMemory store;
};

class CudaSelect : public CudaTest, public ::testing::WithParamInterface<Case> {
protected:
    void SetUp() override {
        CudaTest::SetUp();
        if (IsSkipped()) return;
        in.emplace(
            GetParam(), [this](std::size_t count) { return floats(count); },
            [this](std::size_t count) { return halves(count); });
        device.emplace(*in);
        hostMap.assign(std::size_t(in->heads), std::vector<std::int32_t>(std::size_t(in->slots), -1));
        before.resize(std::size_t(in->heads));
    }
    SelectStep drawStep(const std::vector<std::int32_t>& position) {
        SelectStep step;
        step.given = floats(in->blockAt.size());
        step.q = halves(in->queryAt.size());
        step.key = halves(in->newAt.size());
        step.value = halves(in->newAt.size());
        step.position = position;
        return step;
    }
    void select(const SelectStep& step, const OnDevice<std::uint32_t>& counts, int multiprocessors);
    void readBack();
    void expectChosen(int head, const HostChoice& choice);
    int expectSlots(int head, int at);
    void expectNewToken(int head, int at, const std::vector<std::int32_t>& old, const SelectStep& step);
    void expectCounts(int head, int missed, bool firstStep);
    std::vector<std::int32_t> listOf(int head) const {
        const auto begin = gotList.begin() + std::ptrdiff_t(in->entryAt.first(head));
        return {begin, begin + gotCount[std::size_t(head)]};
    }

    std::optional<SelectInputs> in;
    std::optional<SelectDevice> device;
    std::vector<std::vector<std::int32_t>> hostMap; // [head][slot], by setDifference
    std::vector<std::set<std::int32_t>> before;     // [head] chosen by the step before
    // What the device wrote in the last step.
    std::vector<PackedBlock> gotBlocks;
    std::vector<float> gotScores;
    std::vector<SelectionHead> gotHeads;
    std::vector<std::int32_t> gotList, gotSlots, gotCount, gotMap;
    std::vector<Half> gotPool;
};

/// Chooses, then moves what was missed and what became full. Waits.
void CudaSelect::select(const SelectStep& step, const OnDevice<std::uint32_t>& counts, int multiprocessors) {
    const OnDevice<Half> dq(step.q), dk(step.key), dv(step.value);
    const OnDevice<std::int32_t> dpos(step.position);
    const OnDevice<float> dgiven(step.given);
    SelectArgs a;
    a.shape = in->shape;
    a.rows = SelectInputs::kRows;
    a.position = dpos.get();
    a.q = dq.bf16();
    a.index.kernel = in->c.kernel;
    a.index.stride = in->c.stride;
    a.index.pooledKeys = device->keys.bf16();
    a.index.pooledScores = device->scores.get();
    a.index.ranges = device->ranges.bf16();
    a.index.windowFirst = device->windowFirst.get();
    a.index.blockFirst = device->blockFirst.get();
    a.maxBlocks = in->maxBlocks;
    a.score = in->c.score;
    a.givenScores = dgiven.get();
    a.unseen = in->c.unseen;
    a.slidingWindow = in->c.slidingWindow;
    a.agnostic = in->c.agnostic;
    a.budget = in->c.budget;
    a.scale = in->scale;
    a.capacity = in->capacity;
    a.list = {device->listBlock.get(), device->listSlot.get(), device->listCount.get()};
    a.slots.count = in->slots;
    a.slots.map = device->map.get();
    a.slots.pool = device->pool.bf16();
    a.slots.newKey = dk.bf16();
    a.slots.newValue = dv.bf16();
    a.slots.storeFirst = device->blockFirst.get();
    a.slots.moves = {device->loads.get(), device->writeBacks.get(), counts.get()};
    a.record.previous = device->previous.get();
    a.record.hasPrevious = device->hasPrevious.get();
    a.record.heads = device->headsOut.get();
    a.record.blocks = device->blocksOut.get();
    a.record.scores = device->scoresOut.get();
    Launch how = launch;
    how.multiprocessors = multiprocessors;
    selectBlocksOnDevice(how, a);
    GatherArgs gather;
    gather.shape = in->shape;
    gather.moves = a.slots.moves;
    gather.store = static_cast<const __nv_bfloat16*>(device->store.data());
    gather.storeOut = static_cast<__nv_bfloat16*>(device->store.data());
    gather.pool = device->pool.bf16();
    gatherBlocks(launch, gather);
    check(cudaStreamSynchronize(launch.stream), "testing");
}

void CudaSelect::readBack() {
    gotBlocks = device->blocksOut.read();
    gotScores = device->scoresOut.read();
    gotHeads = device->headsOut.read();
    gotList = device->listBlock.read();
    gotSlots = device->listSlot.read();
    gotCount = device->listCount.read();
    gotMap = device->map.read();
    gotPool = device->pool.read();
}

/// The blocks of the host's choice, or such with scores as good, each with its score and origin.
void CudaSelect::expectChosen(int head, const HostChoice& choice) {
    ASSERT_EQ(gotCount[std::size_t(head)], int(choice.blocks.size()));
    const std::size_t item = in->entryAt.first(head);
    std::array<std::set<int>, kOrigins> taken, expected;
    for (std::size_t i = 0; i < choice.blocks.size(); ++i) {
        const PackedBlock packed = gotBlocks[item + i];
        const int block = packed.id();
        const float reference = packed.origin() == Origin::QueryAgnostic ? choice.agnostic[std::size_t(block)]
                                : choice.aware.empty()                   ? NAN
                                                                         : choice.aware[std::size_t(block)];
        if (std::isfinite(reference)) {
            EXPECT_NEAR(gotScores[item + i], reference, 1e-5 + 2e-4 * std::abs(reference));
        }
        EXPECT_EQ(block, gotList[item + i]);
        taken[std::size_t(packed.origin())].insert(block);
        expected[std::size_t(choice.blocks[i].origin)].insert(choice.blocks[i].block);
    }
    expectTheBest(taken, expected, choice.aware, choice.agnostic, choice.first, choice.current);
    const std::vector<std::int32_t> list = listOf(head);
    EXPECT_TRUE(std::is_sorted(list.begin(), list.end()));
}

/// Slots and hits of the device's own list, and the content of the blocks that were loaded.
/// @return how many blocks were missed
int CudaSelect::expectSlots(int head, int at) {
    const std::vector<std::int32_t> wanted = listOf(head), old = hostMap[std::size_t(head)];
    const std::size_t item = in->entryAt.first(head);
    const auto* store = static_cast<const Half*>(device->store.data()); // full blocks were written back
    std::vector<std::int32_t> load(static_cast<std::size_t>(in->slots));
    setDifference(hostMap[std::size_t(head)], wanted, load);
    const int current = at / in->c.blockSize, fresh = at % in->c.blockSize == 0 ? current : -1;
    int missed = 0;
    for (std::size_t i = 0; i < wanted.size(); ++i) {
        const bool resident = std::find(old.begin(), old.end(), wanted[i]) != old.end();
        missed += !resident && wanted[i] != fresh;
        EXPECT_EQ(gotBlocks[item + i].hit(), resident || wanted[i] == fresh);
        const int slot = gotSlots[item + i];
        EXPECT_EQ(hostMap[std::size_t(head)][std::size_t(slot)], wanted[i]);
        EXPECT_EQ(gotMap[in->slotAt.offset(head, slot)], wanted[i]);
        if (!resident && wanted[i] != fresh && wanted[i] != current) {
            const Half* inPool = &gotPool[in->slotAt.offset(head, slot) * in->element];
            EXPECT_EQ(std::memcmp(inPool, store + in->blockAt.offset(head, wanted[i]) * in->element, in->element * 2),
                      0);
        }
    }
    return missed;
}

/// old: the blocks in the head's slots before the step.
void CudaSelect::expectNewToken(int head, int at, const std::vector<std::int32_t>& old, const SelectStep& step) {
    const std::vector<std::int32_t> list = listOf(head);
    const int bs = in->c.blockSize, dim = in->c.dim, current = at / bs;
    const bool wasThere = std::find(old.begin(), old.end(), current) != old.end();
    if (list.back() == current && !wasThere && at % bs != 0) return; // loaded, after its token was written
    const int tail = gotSlots[in->entryAt.first(head) + list.size() - 1];
    const Half* block = &gotPool[in->slotAt.offset(head, tail) * in->element];
    for (int i = 0; i < dim; ++i) {
        EXPECT_EQ(block[at % bs * dim + i], step.key[in->newAt.offset(head, i)]);
        if (!in->latent) {
            EXPECT_EQ(block[bs * dim + i * bs + at % bs], step.value[in->newAt.offset(head, i)]);
        }
    }
}

void CudaSelect::expectCounts(int head, int missed, bool firstStep) {
    const std::vector<std::int32_t> list = listOf(head);
    const SelectionHead& got = gotHeads[std::size_t(head)];
    EXPECT_EQ(got.selected, int(list.size()));
    EXPECT_EQ(got.misses, missed);
    EXPECT_EQ(got.hits, int(list.size()) - missed);
    int kept = 0;
    for (const std::int32_t block : list) kept += int(before[std::size_t(head)].count(block));
    EXPECT_EQ(got.kept, firstStep ? -1 : kept);
    before[std::size_t(head)] = {list.begin(), list.end()};
}

TEST_P(CudaSelect, FollowsTheHostsSelectionAndSetDifferenceOverManySteps) {
    const int bs = in->c.blockSize, maxTokens = in->c.maxTokens;
    std::vector<std::int32_t> position;
    for (int row = 0; row < SelectInputs::kRows; ++row)
        position.push_back(row == 0 ? uniform(0, 2 * bs)
                                    : uniform(maxTokens / 2, maxTokens - SelectInputs::kSteps - 1));
    for (int number = 0; number < SelectInputs::kSteps; ++number) {
        const SelectStep step = drawStep(position);
        const OnDevice<std::uint32_t> counts(std::vector<std::uint32_t>(2, 0));
        // Fewer multiprocessors: fewer thread blocks for each item, items in turns.
        select(step, counts, std::array{launch.multiprocessors, 20, 4}[std::size_t(number % 3)]);
        readBack();
        std::uint32_t misses = 0, full = 0;
        for (int head = 0; head < in->heads; ++head) {
            SCOPED_TRACE(::testing::Message() << "step " << number << ", head " << head);
            const int at = position[std::size_t(head / in->kvHeads)];
            expectChosen(head, HostChoice(*in, step, head));
            if (HasFatalFailure()) return;
            const std::vector<std::int32_t> old = hostMap[std::size_t(head)];
            const int missed = expectSlots(head, at);
            expectNewToken(head, at, old, step);
            expectCounts(head, missed, number == 0);
            misses += std::uint32_t(missed);
            full += (at + 1) % bs == 0 ? 1u : 0u;
        }
        EXPECT_EQ(counts.read(), (std::vector<std::uint32_t>{misses, full}));
        for (std::int32_t& at : position) ++at;
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
                      Case{64, 16, 64, 32, 16, kPooled, true, {1, 16, true, 15, 31}, 70000}, // 16 thread blocks an item
                      Case{64, 17, 64, 32, 16, kPooled, true, {1, 4, true, 5, 9}, 12000},    // two tiles of heads
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

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::cuda
