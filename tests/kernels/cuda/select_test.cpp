// The device's selection where scores are equal and where the choice is made elsewhere, and the gather against plain
// copies.
#include "kernels/cuda/transfer/gather.h"
#include "tests/kernels/cuda/device.h"

#include "kernels/cuda/choice/select.h"
#include "kernels/cuda/methods/lookahead.h"
#include "kernels/cuda/token/token.h"
#include "kernels/selection.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <numeric>
#include <set>
#include <tuple>

namespace kvscope::cuda {
namespace KVSCOPE_TEST_FILE {

using namespace test;

/// Few different scores, and none that are numbers, and scores of every size, and such as differ in their last bits:
/// exactly the host's choice, the lower block of equal ones. Slots that are free are taken the longest unused first.
TEST_F(CudaTest, SelectionBreaksTiesAsTheHostDoes) {
    constexpr int kRows = 2, kKvHeads = 2, kHeads = kRows * kKvHeads, kDim = 64, kBlockSize = 16;
    constexpr int kEverySize = 0, kNear = -1;
    const AttentionShape shape{8, kKvHeads, kDim, kBlockSize};
    for (const int maxBlocks : {40, 250, 512, 700, 2048, 5000})
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
                a.list = {listBlock.get(), listSlot.get(), listCount.get()};
                a.slots.count = slots;
                a.slots.map = map.get();
                a.slots.lastUse = lastUse.get();
                a.slots.pool = pool.bf16();
                a.slots.newKey = a.slots.newValue = dkey.bf16();
                a.slots.storeFirst = dfirst.get();
                a.slots.moves = {loads.get(), back.get(), counts.get()};
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
        a.chosen = {dchosen.get(), dcount.get(), dscores.get()};
        a.unseen = 1;
        a.capacity = kCapacity;
        a.list = {listBlock.get(), listSlot.get(), listCount.get()};
        a.slots.count = kSlots;
        a.slots.map = map.get();
        a.slots.pool = pool.bf16();
        a.slots.storeFirst = dfirst.get();
        a.slots.moves = {loads.get(), writeBacks.get(), counts.get()};
        a.record = {headsOut.get(), blocksOut.get(), scoresOut.get()};
        a.marks.end = end.get();
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

/// Queries of a Forecast that the selection rotates give the choice and the scores of queries that came rotated, to the
/// last bit.
TEST_F(CudaTest, SelectionRotatesGuessedQueries) {
    constexpr int kRows = 3, kKvHeads = 2, kHeads = kRows * kKvHeads, kBlockSize = 64, kCapacity = 24, kAngles = 400;
    for (const int dim : {64, 128})
        for (const bool interleaved : {false, true})
            for (const int maxBlocks : {30, 300, 700}) {
                SCOPED_TRACE(::testing::Message()
                             << dim << (interleaved ? " interleaved, " : ", ") << maxBlocks << " blocks");
                const int windows = maxBlocks * 4, table = maxBlocks * kBlockSize + kAngles;
                const std::vector<std::int32_t> position{uniform(0, 999), maxBlocks * kBlockSize - 2,
                                                         uniform(1000, 1900)},
                    ropeFirst{0, uniform(1, kAngles), uniform(1, kAngles)};
                std::vector<std::int64_t> first;
                for (int h = 0; h < kHeads; ++h) first.push_back(std::int64_t(h) * windows);
                const OnDevice<float> projected(floats(std::size_t(kHeads * dim))),
                    cosines(floats(std::size_t(table * dim / 2))), sines(floats(std::size_t(table * dim / 2)));
                const OnDevice<Half> keys(halves(std::size_t(kHeads * windows) * std::size_t(dim))),
                    rotated(std::size_t(kHeads * dim));
                const OnDevice<std::int32_t> dposition(position), dropeFirst(ropeFirst);
                const OnDevice<std::uint8_t> active(std::vector<std::uint8_t>{1, 1, 1});
                const OnDevice<std::int64_t> dfirst(first);
                GuessArgs guess;
                guess.rows = kRows, guess.heads = kKvHeads, guess.dim = dim;
                guess.projected = projected.get();
                guess.cos = cosines.get(), guess.sin = sines.get();
                guess.ropeFirst = dropeFirst.get(), guess.position = dposition.get();
                guess.interleaved = interleaved;
                guess.q = rotated.bf16();
                rotateGuess(launch, guess);
                const auto choice = [&](bool rotates) {
                    const OnDevice<std::int32_t> blocks(std::size_t(kHeads * kCapacity)),
                        count(static_cast<std::size_t>(kHeads));
                    const OnDevice<float> scores(std::size_t(kHeads * kCapacity));
                    SelectArgs a;
                    a.shape = {8, kKvHeads, dim, kBlockSize};
                    a.rows = kRows;
                    a.position = dposition.get();
                    a.active = active.get();
                    a.index.pooledKeys = keys.bf16();
                    a.index.windowFirst = dfirst.get();
                    a.maxBlocks = maxBlocks;
                    a.score = SelectArgs::Score::PooledProduct;
                    if (rotates)
                        a.guess = {projected.get(), cosines.get(), sines.get(), dropeFirst.get(), interleaved};
                    else
                        a.q = rotated.bf16();
                    a.budget = {1, 2, true, 20, 0};
                    a.unseen = 1;
                    a.capacity = kCapacity;
                    a.list = {blocks.get(), nullptr, count.get()};
                    a.record.scores = scores.get();
                    selectBlocksOnDevice(launch, a);
                    check(cudaStreamSynchronize(launch.stream), "testing");
                    std::vector<std::uint32_t> bits;
                    for (const float score : scores.read()) bits.push_back(std::bit_cast<std::uint32_t>(score));
                    return std::tuple(count.read(), blocks.read(), bits);
                };
                const auto want = choice(false);
                EXPECT_EQ(choice(true), want);
                EXPECT_EQ(std::get<0>(want)[kKvHeads], kCapacity);
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

/// Slots of full blocks in a format of their own: a prompt's last block and the tokens behind it lie beside them, and
/// a block that a token fills is listed with its slot.
TEST_F(CudaTest, SelectionWritesTokensBesideSlotsOfFullBlocks) {
    constexpr int kRows = 2, kKvHeads = 2, kHeads = kRows * kKvHeads, kDim = 64, kSize = 16, kMaxBlocks = 12,
                  kSlots = 6, kCapacity = 5;
    const AttentionShape shape{8, kKvHeads, kDim, kSize};
    const std::size_t element = blockElements(kSize, kDim);
    std::vector<std::int64_t> first;
    for (int h = 0; h < kHeads; ++h) first.push_back(std::int64_t(h) * kMaxBlocks);
    const OnDevice<std::int64_t> dfirst(first);
    const OnDevice<Half> pool(std::size_t(kHeads * kSlots) * element), newest(std::size_t(kHeads) * element);
    const OnDevice<std::int32_t> map(std::vector<std::int32_t>(std::size_t(kHeads * kSlots), -1)),
        lastUse(std::vector<std::int32_t>(std::size_t(kHeads * kSlots), -1)),
        listBlock(std::size_t(kHeads * kCapacity)), listSlot(std::size_t(kHeads * kCapacity)),
        listCount(static_cast<std::size_t>(kHeads));
    const OnDevice<BlockMove> loads(std::size_t(kHeads * kCapacity)), back(static_cast<std::size_t>(kHeads));
    const auto poolBefore = pool.read();
    auto expected = newest.read();
    std::vector<std::int32_t> position{30, 48}; // prompts of so many tokens: the second one ends with a full block
    const auto prompt = halves(std::size_t(kKvHeads * kMaxBlocks) * element);
    const OnDevice<Half> blocks(prompt);
    const std::int64_t headStride = std::int64_t(kMaxBlocks * element);
    for (int row = 0; row < kRows; ++row)
        placeTail(launch, shape, blocks.bf16(), headStride, row, position[std::size_t(row)], pool.bf16(), kSlots,
                  map.get(), lastUse.get(), newest.bf16());
    check(cudaStreamSynchronize(launch.stream), "testing");
    for (std::size_t g = 0; g < kKvHeads; ++g)
        std::copy_n(prompt.begin() + std::ptrdiff_t((g * kMaxBlocks + 1) * element), element,
                    expected.begin() + std::ptrdiff_t(g * element));
    EXPECT_EQ(newest.read(), expected) << "the first prompt's tail";
    const auto mapBefore = map.read();
    for (int h = 0; h < kHeads; ++h) EXPECT_EQ(mapBefore[std::size_t(h * kSlots)], h < kKvHeads ? 1 : -1);
    for (int step = 0; step < 20; ++step) {
        SCOPED_TRACE(::testing::Message() << "step " << step);
        const auto key = halves(std::size_t(kHeads * kDim)), value = halves(std::size_t(kHeads * kDim));
        const OnDevice<Half> dkey(key), dvalue(value);
        const OnDevice<float> scores(floats(std::size_t(kHeads * kMaxBlocks)));
        const OnDevice<std::int32_t> dpos(position);
        const OnDevice<std::uint32_t> counts(std::vector<std::uint32_t>(2, 0));
        SelectArgs a;
        a.shape = shape;
        a.rows = kRows;
        a.position = dpos.get();
        a.maxBlocks = kMaxBlocks;
        a.score = SelectArgs::Score::Given;
        a.givenScores = scores.get();
        a.budget = {1, 1, true, 2, 0};
        a.capacity = kCapacity;
        a.list = {listBlock.get(), listSlot.get(), listCount.get()};
        a.slots.count = kSlots;
        a.slots.map = map.get();
        a.slots.lastUse = lastUse.get();
        a.slots.pool = pool.bf16();
        a.slots.newest = newest.bf16();
        a.slots.newKey = dkey.bf16(), a.slots.newValue = dvalue.bf16();
        a.slots.storeFirst = dfirst.get();
        a.slots.moves = {loads.get(), back.get(), counts.get()};
        selectBlocksOnDevice(launch, a);
        check(cudaStreamSynchronize(launch.stream), "testing");
        std::set<std::pair<std::int64_t, std::int64_t>> full;
        const auto list = listBlock.read(), slots = listSlot.read(), count = listCount.read(), mapped = map.read();
        for (int h = 0; h < kHeads; ++h) {
            const int at = position[std::size_t(h / kKvHeads)], last = h * kCapacity + count[std::size_t(h)] - 1;
            putToken(&expected[std::size_t(h) * element], kSize, kDim, at % kSize, &key[std::size_t(h * kDim)],
                     &value[std::size_t(h * kDim)]);
            ASSERT_EQ(list[std::size_t(last)], at / kSize) << "the newest block comes last, head " << h;
            const int slot = slots[std::size_t(last)];
            EXPECT_EQ(mapped[std::size_t(h * kSlots + slot)], at / kSize) << "and has a slot, head " << h;
            if (at % kSize == kSize - 1)
                full.insert({std::int64_t(h) * kMaxBlocks + at / kSize, std::int64_t(h) * kSlots + slot});
        }
        EXPECT_EQ(newest.read(), expected);
        EXPECT_EQ(pool.read(), poolBefore) << "slots hold full blocks, which the gather brings";
        ASSERT_EQ(counts.read()[1], full.size());
        const auto moves = back.read();
        std::set<std::pair<std::int64_t, std::int64_t>> got;
        for (std::size_t i = 0; i < full.size(); ++i) got.insert({moves[i].store, moves[i].slot});
        EXPECT_EQ(got, full);
        for (auto& at : position) ++at;
    }
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::cuda
