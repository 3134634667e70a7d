// The transfer loop against plain copies, and whether kernels run beside each other, which it needs.
#include "kernels/cuda/transfer/transfer_loop.h"

#include "tests/kernels/cuda/device.h"

#include <numeric>

namespace kvscope::cuda {
namespace KVSCOPE_TEST_FILE {

using namespace test;

class CudaTransferLoop : public CudaTest {
protected:
    /// What a trial on the launch's stream and another one says, which leaves all words at 0.
    bool runTogether(const Launch& other) const {
        const OnDevice<std::uint32_t> listed(std::vector<std::uint32_t>(3, 0)),
            loaded(std::vector<std::uint32_t>(2, 0));
        const bool together = kernelsRunTogether(launch, other, {listed.get(), loaded.get()});
        EXPECT_EQ(listed.read(), std::vector<std::uint32_t>(3, 0));
        EXPECT_EQ(loaded.read(), std::vector<std::uint32_t>(2, 0));
        return together;
    }
};

TEST_F(CudaTransferLoop, KernelsOfTwoStreamsRunTogether) {
    const Stream second = Stream::make(StreamKind::Urgent);
    Launch other = launch;
    other.stream = second.get();
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(runTogether(other)) << "unless a tool runs kernels one at a time";
}

TEST_F(CudaTransferLoop, KernelsOfOneStreamDoNot) { EXPECT_FALSE(runTogether(launch)); }

/// Layers with lists of their own, some of which are empty, and blocks of any size, on few thread blocks with large
/// rings and on many with small ones. The layers before kFirst have no slots.
class CudaLoopOfLayers : public CudaTransferLoop {
protected:
    static constexpr int kLayers = 7, kFirst = 1, kSlots = 60, kStored = 90, kNewest = 6;
    struct Layer {
        std::vector<BlockMove> loads, writeBacks;
        std::vector<std::uint8_t> expected; // bytes of the slots after the step
        OnDevice<BlockMove> dloads{std::size_t(kSlots)}, dwriteBacks{std::size_t(kNewest)};
        OnDevice<std::uint32_t> counts{std::size_t(2)}, recorded{std::size_t(2)};
        OnDevice<std::uint64_t> marks{std::size_t(2)};
    };

    std::vector<std::uint8_t> drawn(std::size_t count) {
        std::vector<std::uint8_t> bytes(count);
        for (std::size_t i = 0; i + 4 <= count; i += 4) {
            const auto word = std::uint32_t(random());
            std::memcpy(&bytes[i], &word, sizeof word);
        }
        return bytes;
    }
    void run(int blockBytes, int threadBlocks, bool writesBack) {
        const auto bytes = std::size_t(blockBytes);
        const PinnedMemory store(kLayers * kStored * bytes, "the store");
        auto stored = drawn(kLayers * kStored * bytes), slots = drawn(kLayers * kSlots * bytes);
        std::copy(stored.begin(), stored.end(), store.as<std::uint8_t>());
        const OnDevice<std::uint8_t> pool(slots);
        std::vector<Layer> layers(kLayers);
        std::vector<GatherArgs> gathers(kLayers);
        for (int l = kFirst; l < kLayers; ++l) {
            const std::size_t at = std::size_t(l);
            GatherArgs& gather = gathers[at];
            gather.moves = {layers[at].dloads.get(), layers[at].dwriteBacks.get(), layers[at].counts.get()};
            gather.store = reinterpret_cast<__nv_bfloat16*>(store.as<char>() + at * kStored * bytes);
            gather.storeOut = const_cast<__nv_bfloat16*>(gather.store);
            gather.pool = reinterpret_cast<__nv_bfloat16*>(pool.get() + at * kSlots * bytes);
            gather.recordCounts = layers[at].recorded.get();
            gather.mark = layers[at].marks.get(), gather.endMark = gather.mark + 1;
        }
        const OnDevice<GatherArgs> dgathers(gathers);
        const OnDevice<std::uint32_t> listed(std::vector<std::uint32_t>(kLayers + 1, 1)),
            loaded(std::vector<std::uint32_t>(kLayers, 0));
        const TransferFlags flags{listed.get(), loaded.get()};
        const Stream second = Stream::make(StreamKind::Urgent);
        Launch other = launch;
        other.stream = second.get(), other.joined = true;
        handOver(launch, flags, -1, -1, threadBlocks, true, nullptr); // so that it is loaded
        for (std::uint32_t step = 2; step < 6; ++step) {
            for (int l = kFirst; l < kLayers; ++l) {
                Layer& layer = layers[std::size_t(l)];
                // Slots of loads and of write-backs differ, as a session's do: a block that fills stays where it is.
                std::vector<int> places(kSlots), blocks(kStored);
                std::iota(places.begin(), places.end(), 0), std::iota(blocks.begin(), blocks.end(), 0);
                std::shuffle(places.begin(), places.end(), random), std::shuffle(blocks.begin(), blocks.end(), random);
                const int loads = l == 3 ? 0 : uniform(0, kSlots - kNewest), writes = uniform(0, kNewest);
                layer.loads.clear(), layer.writeBacks.clear();
                for (int i = 0; i < loads; ++i) layer.loads.push_back({blocks[std::size_t(i)], places[std::size_t(i)]});
                for (int i = 0; i < writes; ++i)
                    layer.writeBacks.push_back({blocks[std::size_t(loads + i)], places[std::size_t(loads + i)]});
                const std::uint32_t counts[] = {std::uint32_t(loads), std::uint32_t(writes)};
                const auto upload = [](void* to, const void* from, std::size_t size) {
                    check(cudaMemcpy(to, from, size, cudaMemcpyHostToDevice), "testing");
                };
                upload(layer.dloads.get(), layer.loads.data(), layer.loads.size() * sizeof(BlockMove));
                upload(layer.dwriteBacks.get(), layer.writeBacks.data(), layer.writeBacks.size() * sizeof(BlockMove));
                upload(layer.counts.get(), counts, sizeof counts);
                check(cudaMemset(layer.marks.get(), 0, 2 * sizeof(std::uint64_t)), "testing");
                const auto copy = [&](auto& to, std::int64_t toBlock, const auto& from, std::int64_t fromBlock) {
                    std::copy_n(from.begin() + fromBlock * blockBytes, bytes, to.begin() + toBlock * blockBytes);
                };
                for (const BlockMove& move : layer.loads)
                    copy(slots, l * kSlots + move.slot, stored, l * kStored + move.store);
                if (!writesBack) continue;
                for (const BlockMove& move : layer.writeBacks)
                    copy(stored, l * kStored + move.store, slots, l * kSlots + move.slot);
            }
            TransferLoopArgs args;
            args.gathers = dgathers.get();
            args.first = kFirst, args.layers = kLayers;
            args.blockBytes = blockBytes;
            args.writesBack = writesBack;
            args.step = step;
            args.flags = flags;
            runTransferLoop(other, args, threadBlocks);
            handOver(launch, flags, kFirst, -1, threadBlocks, false, nullptr);
            for (int l = kFirst; l < kLayers; ++l) handOver(launch, flags, l + 1, l, threadBlocks, l > kFirst, nullptr);
            check(cudaStreamSynchronize(launch.stream), "testing");
            EXPECT_TRUE(pool.read() == slots) << "after the last layer was awaited, with " << threadBlocks;
            check(cudaStreamSynchronize(other.stream), "testing");
            EXPECT_TRUE(std::equal(stored.begin(), stored.end(), store.as<std::uint8_t>()));
            for (int l = kFirst; l < kLayers; ++l) {
                const Layer& layer = layers[std::size_t(l)];
                const auto recorded = layer.recorded.read();
                EXPECT_EQ(recorded[0], layer.loads.size());
                EXPECT_EQ(recorded[1], writesBack ? std::uint32_t(layer.writeBacks.size()) : 0xffffffffu);
                EXPECT_GT(layer.marks.read()[0], 0u);
                EXPECT_GE(layer.marks.read()[1], layer.marks.read()[0]);
            }
        }
    }
};

TEST_F(CudaLoopOfLayers, MovesWhatEveryLayerLists) {
    if (!launch.clusters) GTEST_SKIP() << "the loop needs compute capability 9";
    const Stream second = Stream::make(StreamKind::Urgent);
    Launch other = launch;
    other.stream = second.get();
    if (!runTogether(other)) GTEST_SKIP() << "a tool runs kernels one at a time";
    for (const int bytes : {4096, 9728, 16768, 32768})
        for (const int threadBlocks : {1, 4, 12})
            for (const bool writesBack : {true, false}) {
                SCOPED_TRACE(::testing::Message() << bytes << " bytes, " << threadBlocks << " thread blocks");
                run(bytes, threadBlocks, writesBack);
            }
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::cuda
