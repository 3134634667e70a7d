// The engine's parts that own something of a GPU lose nothing, whatever is refused while they are made. No GPU: the
// calls are counted, not made.
#include "core/cuda/device_memory.h"
#include "core/cuda/select/lagging_transfers.h"
#include "core/cuda/select/side_stream.h"
#include "tests/kernels/cuda/counting_calls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvscope {
namespace {

using cuda::test::CountingCalls;
using cuda::test::expectNothingLost;

TEST(DeviceParts, ASideStreamLosesNothing) {
    expectNothingLost([] {
        SideStream side;
        EXPECT_FALSE(side.isOpen());
        side.open();
        EXPECT_TRUE(side.isOpen());
    });
}

TEST(DeviceParts, LaggingTransfersLoseNothing) {
    expectNothingLost([] {
        LaggingTransfers transfers;
        transfers.open({1, 2, 5, 6, 7}, 4);
        EXPECT_EQ(transfers.firstCrossing(), 5);
    });
}

TEST(DeviceParts, AnArenaLosesNothing) {
    expectNothingLost([] {
        DeviceArena arena;
        float* scores = nullptr;
        std::int32_t* ids = nullptr;
        arena.plan(scores, 1000, "scores");
        arena.plan(ids, 10, "ids");
        arena.take();
        EXPECT_EQ(reinterpret_cast<std::byte*>(ids) - reinterpret_cast<std::byte*>(scores), 4096);
    });
}

TEST(DeviceParts, AnArenaThatDoesNotFitAsksForNothing) {
    CountingCalls calls;
    const cuda::ScopedDeviceCalls use(calls);
    DeviceArena arena;
    char* blocks = nullptr;
    arena.plan(blocks, std::size_t(9) << 30, "KV slots"); // of 8 GiB that are free
    try {
        arena.take();
        ADD_FAILURE() << "9 GiB fit into 8";
    } catch (const Error& error) {
        EXPECT_EQ(error.kind, ErrorKind::OutOfMemory);
        EXPECT_THAT(error.what(), testing::HasSubstr("KV slots 9.00 GiB"));
    }
    EXPECT_EQ(calls.created(), 0);
    EXPECT_EQ(blocks, nullptr);
}

TEST(DeviceParts, WhatAnArenaHoldsIsCounted) {
    CountingCalls calls;
    const cuda::ScopedDeviceCalls use(calls);
    const cuda::Living before = cuda::living();
    DeviceArena arena;
    float* scores = nullptr;
    arena.plan(scores, 1000, "scores");
    EXPECT_EQ(cuda::living(), before);
    arena.take();
    EXPECT_EQ(cuda::living().deviceBytes - before.deviceBytes, std::int64_t(arena.bytes()));
}

} // namespace
} // namespace kvscope
