// Larger blocks: recorded ones merged, against sets merged by hand.
#include "profiler/replay/merged_blocks.h"
#include "profiler/replay/replay.h"
#include "tests/profiler/synthetic_run.h"
#include "tests/profiler/temporary_folder.h"

#include "base/error.h"

#include <gmock/gmock.h>
#include <map>
#include <set>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

/// A pool of one (layer, sequence, KV head) that keeps what is selected, block by block: misses of each step.
struct KeepSelected {
    std::set<std::int32_t> resident;
    int step(const std::set<std::int32_t>& wanted, std::int32_t fresh) {
        int misses = 0;
        for (const std::int32_t block : wanted) misses += block != fresh && !resident.contains(block);
        resident = wanted;
        return misses;
    }
};

TEST(MergedBlocks, AreTheRecordedSelectionsInLargerPieces) {
    for (const int promptTokens :
         {200, 208, 192, 224}) // ends within a block, at a block's end, at a larger block's end
        for (const int factor : {1, 2, 3, 4}) {
            SCOPED_TRACE(testing::Message() << promptTokens << " tokens, " << factor << " blocks");
            synthetic::RunShape shape;
            shape.promptTokens = promptTokens;
            shape.decodeSteps = 70; // opens several blocks
            const test::Folder folder;
            const std::string file = (folder / "run.kvtrace").string();
            synthetic::recordFile(file, shape);
            const TraceReader reader(file);
            const SelectionTrace recorded = loadSelectionTrace(reader, 1), merged = withMergedBlocks(recorded, factor);
            EXPECT_EQ(merged.run.blockSize, 16 * factor);
            EXPECT_EQ(merged.run.blockBytes, recorded.run.blockBytes * factor);
            EXPECT_EQ(merged.run.deviceSlots, (recorded.run.deviceSlots + factor - 1) / factor);

            // From the rows of the trace, without the replay's own structures.
            std::map<std::pair<int, int>, std::int64_t> expected; // [step, layer] misses
            std::int64_t selected = 0, misses = 0;
            int largest = 0;
            for (int layer = 0; layer < shape.layers; ++layer)
                for (int head = 0; head < shape.kvHeads; ++head) {
                    KeepSelected cache;
                    if (promptTokens % (16 * factor) != 0) cache.resident = {promptTokens / (16 * factor)};
                    for (const SelectionRow& row : reader.selections(1, layer, 0, head)) {
                        std::set<std::int32_t> wanted;
                        for (const PackedBlock block : row.blocks) wanted.insert(block.id() / factor);
                        const int position = promptTokens + row.step - 1;
                        const int missed =
                            cache.step(wanted, position % (16 * factor) == 0 ? position / (16 * factor) : -1);
                        expected[{row.step, layer}] += missed;
                        misses += missed;
                        selected += std::int64_t(wanted.size());
                        largest = std::max(largest, int(wanted.size()));
                    }
                }
            EXPECT_EQ(merged.largest, largest);
            // What enters a request and does not begin is what a cache of the last request misses.
            for (const PoolTrace& pool : merged.pools) {
                const auto& visits = pool.visits;
                for (std::size_t r = 0; r < visits.requests(); ++r) {
                    int entered = 0;
                    for (const BlockVisits::Entry& e : visits.entered(r)) entered += !e.begins();
                    if (pool.steps[r] < 0) continue;
                    expected[{recorded.steps[std::size_t(pool.steps[r])].step, pool.layer}] -= entered;
                }
            }
            for (const auto& [place, rest] : expected)
                EXPECT_EQ(rest, 0) << "step " << place.first << " layer " << place.second;
            const ReplayConfig config = replay(merged, {{"lru"}, {1 << 20}, {}, 1}).front();
            EXPECT_EQ(config.blockSize, 16 * factor);
            EXPECT_EQ(config.hits + config.misses, selected);
            EXPECT_EQ(config.misses, config.compulsory) << "it has room for everything";
            EXPECT_EQ(config.h2dBytes, config.misses * merged.run.blockBytes);
            EXPECT_LE(config.misses, misses);
        }
}

TEST(MergedBlocks, OfOneAreTheRecordingItself) {
    const test::Folder folder;
    const std::string file = (folder / "run.kvtrace").string();
    synthetic::recordFile(file, {.sequences = 2, .decodeSteps = 40});
    const SelectionTrace trace = loadSelectionTrace(TraceReader(file), 1), same = withMergedBlocks(trace, 1);
    EXPECT_EQ(reproduce(same)->requests, reproduce(trace)->requests);
    const SelectionTrace twice = withMergedBlocks(trace, 2);
    EXPECT_FALSE(reproduce(withSharedPools(twice)));
    const SelectionTrace shared = withSharedPools(twice);
    const ReplayConfig alone = replay(twice, {{"lru"}, {1 << 20}, {}, 1}).front(),
                       together = replay(shared, {{"lru"}, {1 << 20}, {}, 1}).front();
    EXPECT_EQ(alone.misses, together.misses) << "a pool with room for all is no smaller than two";
    EXPECT_EQ(alone.hits, together.hits);
}

TEST(MergedBlocks, RefuseWhatHasNoMeaning) {
    const test::Folder folder;
    const std::string file = (folder / "run.kvtrace").string();
    synthetic::recordFile(file, {});
    const SelectionTrace trace = loadSelectionTrace(TraceReader(file), 1);
    EXPECT_THROW(withMergedBlocks(trace, 0), Error);
    EXPECT_THROW(withMergedBlocks(trace, 1 << 30), Error);
    EXPECT_THROW(withMergedBlocks(withSharedPools(trace), 2), Error);
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
