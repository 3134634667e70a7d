// The engine's parts that own something of a GPU lose nothing, whatever is refused while they are made. No GPU: the
// calls are counted, not made.
#include "core/cuda/device_memory.h"
#include "core/cuda/select/lagging_transfers.h"
#include "core/cuda/select/side_stream.h"
#include "core/cuda/step_graphs.h"
#include "core/cuda/step_report.h"
#include "core/cuda/transfers.h"
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

TEST(DeviceParts, StepGraphsLoseNothing) {
    expectNothingLost([] { const StepGraphs graphs([](int) {}); });
}

TEST(DeviceParts, ReportsLoseNothing) {
    expectNothingLost([] {
        ReportNeeds needs{4, 2, 3, 16};
        needs.blocks = true;
        StepReports reports;
        reports.layOut(needs);
        DeviceArena arena;
        arena.plan(reports.region(), reports.deviceBytes(), "recorder's buffer");
        arena.take();
        reports.open();
        EXPECT_EQ(reinterpret_cast<std::byte*>(reports.device(1).tokens) -
                      reinterpret_cast<std::byte*>(reports.device(0).tokens),
                  std::ptrdiff_t(reports.deviceBytes() / 2));
    });
}

TEST(DeviceParts, TransfersLoseNothing) {
    ModelConfig config;
    config.layers = 2;
    config.kvHeads = 2;
    config.queryHeads = 4;
    config.headDim = 64;
    CudaEngineOptions options;
    options.maxTokens = {1000};
    const BatchLayout layout(config, options);
    std::vector<DeviceLayerState> layers(2);
    const ChoiceOrder order(layers);
    const RowTable rows(config, options, layout);
    const StepBuffers buffers;
    const std::unique_ptr<DeviceSelector> selector;
    const BlockChoice choice(config, options, layout, layers, order, rows, buffers, selector);
    const cuda::Launch launch;
    StageRanges ranges(nullptr);
    expectNothingLost([&] {
        Transfers transfers(options, layout, layers, order, choice, launch, ranges);
        transfers.openBeside(false);
        EXPECT_NE(transfers.copyStream(), nullptr);
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
