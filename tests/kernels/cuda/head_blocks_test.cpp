// Blocks of query heads, united for their KV head, against brute force.
#include "tests/kernels/cuda/device.h"

#include "kernels/cuda/choice/select.h"
#include "kernels/cuda/methods/head_blocks.h"

#include <algorithm>
#include <map>

namespace kvscope::cuda {
namespace KVSCOPE_TEST_FILE {

using namespace test;

TEST_F(CudaTest, HeadsBlocksAreUnitedWithTheirBestScores) {
    for (int round = 0; round < 5; ++round) {
        SCOPED_TRACE(round);
        const int kvHeads = uniform(1, 3), group = uniform(1, 5), rows = 3, queryHeads = kvHeads * group,
                  heads = rows * queryHeads, maxBlocks = round == 0 ? 8192 : uniform(60, 900), capacity = group * 40;
        const AttentionShape shape{queryHeads, kvHeads, 64, 16};
        const std::vector<std::uint8_t> active{1, 1, std::uint8_t(round % 2)};
        std::vector<PackedBlock> blocks(std::size_t(heads * capacity), PackedBlock::ofWord(5));
        const std::vector<float> scores = floats(blocks.size(), 10);
        std::vector<std::int32_t> count, unitedSlots;
        for (int i = 0; i < rows * kvHeads * capacity; ++i) unitedSlots.push_back(uniform(0, 1000));
        for (int head = 0; head < heads; ++head) {
            const int last = maxBlocks - 1 - head / queryHeads;
            const auto mine = randomBlocks(uniform(1, 40), last, random);
            for (std::size_t i = 0; i < mine.size(); ++i) { // the newest is forced for every head, others are not
                const Origin origin = mine[i] == last ? Origin::Window : Origin::QueryAware;
                blocks[std::size_t(head * capacity) + i] = PackedBlock(mine[i], origin, true);
            }
            count.push_back(std::int32_t(mine.size()));
        }
        const OnDevice<PackedBlock> dblocks(blocks), chosen(std::size_t(rows * kvHeads * capacity));
        const OnDevice<float> dscores(scores), chosenScores(std::size_t(rows * kvHeads * capacity));
        const OnDevice<std::int32_t> dcount(count), chosenCount(static_cast<std::size_t>(rows * kvHeads)),
            places(blocks.size()), dunitedSlots(unitedSlots), slots(blocks.size());
        const OnDevice<std::uint8_t> dactive(active);
        UniteBlocksArgs unite;
        unite.shape = shape;
        unite.rows = rows;
        unite.maxBlocks = maxBlocks;
        unite.active = dactive.get();
        unite.blocks = dblocks.get();
        unite.scores = dscores.get();
        unite.count = dcount.get();
        unite.capacity = capacity;
        unite.chosen = chosen.get();
        unite.chosenScores = chosenScores.get();
        unite.chosenCount = chosenCount.get();
        unite.places = places.get();
        uniteBlocks(launch, unite);
        takeHeadSlots(launch, {shape, rows, capacity, dactive.get(), places.get(), dcount.get(), dunitedSlots.get(),
                               slots.get()});
        check(cudaStreamSynchronize(launch.stream), "uniting");
        const auto got = chosen.read();
        const auto gotScores = chosenScores.read();
        const auto gotCount = chosenCount.read(), gotPlaces = places.read(), gotSlots = slots.read();
        for (int item = 0; item < rows * kvHeads; ++item) {
            SCOPED_TRACE(item);
            if (active[std::size_t(item / kvHeads)] == 0) {
                EXPECT_EQ(gotCount[std::size_t(item)], -1) << "an inactive row is left alone";
                continue;
            }
            std::map<std::int32_t, std::pair<PackedBlock, float>> all; // by block: the entry, the best score
            const auto eachEntry = [&](auto&& visit) {
                for (int head = item * group; head < (item + 1) * group; ++head)
                    for (int i = 0; i < count[std::size_t(head)]; ++i) visit(std::size_t(head * capacity + i));
            };
            eachEntry([&](std::size_t at) {
                const PackedBlock block = blocks[at];
                const auto [found, isNew] = all.try_emplace(block.id(), block.withHit(false), scores[at]);
                found->second.second = std::max(found->second.second, scores[at]);
            });
            ASSERT_EQ(gotCount[std::size_t(item)], int(all.size()));
            std::size_t at = std::size_t(item * capacity);
            for (const auto& [block, entry] : all) {
                EXPECT_EQ(got[at], entry.first);
                EXPECT_EQ(gotScores[at++], entry.second);
            }
            eachEntry([&](std::size_t entry) {
                const auto place = std::size_t(std::distance(all.begin(), all.find(blocks[entry].id())));
                ASSERT_EQ(gotPlaces[entry], int(place));
                ASSERT_EQ(gotSlots[entry], unitedSlots[std::size_t(item * capacity) + place]);
            });
        }
    }
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::cuda
