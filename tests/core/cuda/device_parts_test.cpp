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
#include <type_traits>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using cuda::test::CountingCalls;
using cuda::test::expectNothingLost;

// Calls that swap two ids do not compile.
template <auto Function, class... Arguments>
constexpr bool kTakes = std::is_invocable_v<decltype(Function), Arguments...>;
using Bf16 = __nv_bfloat16;
static_assert(kTakes<&DeviceSelector::promptDone, DeviceSelector&, LayerId, RowId, int, const Bf16*, std::int64_t>);
static_assert(!kTakes<&DeviceSelector::promptDone, DeviceSelector&, RowId, LayerId, int, const Bf16*, std::int64_t>);
static_assert(!kTakes<&DeviceSelector::storedBytes, DeviceSelector&, RowId, LayerId>);
static_assert(!kTakes<&DeviceSelector::storedBytes, DeviceSelector&, int, int>);
static_assert(!kTakes<&BatchLayout::headOf, BatchLayout&, LayerId>);
static_assert(!kTakes<&Transfers::besideLater, Transfers&, int, bool, bool, const StepReport&>);

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
        transfers.open({LayerId{1}, LayerId{2}, LayerId{5}, LayerId{6}, LayerId{7}}, 4);
        EXPECT_EQ(transfers.firstCrossing(), LayerId{5});
    });
}

TEST(DeviceParts, AnArenaLosesNothing) {
    expectNothingLost([] {
        DeviceArena arena;
        float* scores = nullptr;
        std::int32_t* ids = nullptr;
        double* marks = nullptr;
        arena.plan(scores, 1000, "scores");
        arena.plan(ids, 10, "ids");
        arena.planHost(marks, 100, "marks");
        arena.take();
        EXPECT_NE(marks, nullptr);
        EXPECT_EQ(reinterpret_cast<std::byte*>(ids) - reinterpret_cast<std::byte*>(scores), 4096);
    });
}

TEST(DeviceParts, ArraysThatAreTakenSeparatelyLoseNothing) {
    ::setenv("KVSCOPE_SEPARATE_ARRAYS", "1", 1);
    expectNothingLost([] {
        DeviceArena arena;
        char *first = nullptr, *empty = nullptr, *aligned = nullptr;
        arena.plan(first, 1000, "scores");
        arena.plan(empty, 0, "scores");
        arena.plan(aligned, 10, "scores", 1024);
        const std::int64_t before = cuda::living().deviceBytes;
        arena.take();
        EXPECT_EQ(cuda::living().deviceBytes - before, 1000 + 1 + 10 + 1023);
        EXPECT_NE(empty, nullptr);
        EXPECT_EQ(reinterpret_cast<std::uintptr_t>(aligned) % 1024, 0u);
    });
    ::unsetenv("KVSCOPE_SEPARATE_ARRAYS");
}

TEST(DeviceParts, StepGraphsLoseNothing) {
    expectNothingLost([] {
        StepGraphs graphs([](int) {});
        EXPECT_EQ(graphs.stream(), nullptr);
        graphs.open();
        EXPECT_NE(graphs.stream(), nullptr);
    });
}

TEST(DeviceParts, ReportsLoseNothing) {
    expectNothingLost([] {
        ReportNeeds needs{4, 2, 3, 16};
        needs.blocks = true;
        StepReports reports;
        DeviceArena arena;
        reports.plan(arena, needs);
        arena.take();
        reports.open();
        const auto apart = [](const StepReport& first, const StepReport& second) {
            return reinterpret_cast<std::byte*>(second.tokens) - reinterpret_cast<std::byte*>(first.tokens);
        };
        EXPECT_EQ(apart(reports.device(0), reports.device(1)) * 2, arena.declared().bytes("recorder's buffer"));
        EXPECT_EQ(apart(reports.host(0), reports.host(1)) * 2, arena.declared().bytes("the recorder's buffer"));
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
    PerLayer<DeviceLayerState> layers(2);
    const ChoiceOrder order(layers);
    const RowTable rows(config, options, layout);
    const StepBuffers buffers;
    const std::unique_ptr<DeviceSelector> selector;
    const BlockChoice choice(config, options, layout, layers, order, rows, buffers, selector);
    const cuda::Launch launch;
    StageRanges ranges(nullptr);
    expectNothingLost([&] {
        Transfers transfers(options, layout, layers, order, choice, launch, ranges);
        transfers.planBeside(true, false);
        EXPECT_EQ(transfers.copyStream(), nullptr);
        transfers.open();
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
    std::int32_t *ids = nullptr, *more = nullptr;
    char *store = nullptr, *borrowed = nullptr;
    const PinnedMemory shop(5000, "a store that is lent");
    const cuda::Living withShop = cuda::living();
    EXPECT_EQ(withShop.hostBytes - before.hostBytes, 5000);
    arena.plan(scores, 1000, "scores");
    arena.plan(ids, 10, "ids");
    arena.plan(more, 20, {"ids", "ids", Holds::Scratch});
    arena.planHost(store, 700, {"store", "the KV store", Holds::Kv});
    arena.planStore(borrowed, 5000, {"lent_store", "the KV store", Holds::Kv}, &shop);
    EXPECT_EQ(cuda::living(), withShop) << "nothing is taken while it is planned";
    arena.take();
    const MemoryPlan& declared = arena.declared();
    EXPECT_EQ(declared.bytes("scores"), 4000);
    EXPECT_EQ(declared.bytes("ids"), 40 + 80);
    EXPECT_EQ(declared.bytes("gaps between arrays"), 96 + 216 + 176);
    EXPECT_EQ(declared.most(MemoryTier::Device), 4096 + 256 + 256);
    EXPECT_EQ(declared.most(MemoryTier::Host), 700 + 5000);
    EXPECT_EQ(std::int64_t(arena.bytes()), declared.most(MemoryTier::Device));
    EXPECT_EQ(arena.hostBytes(), std::size_t(700));
    EXPECT_EQ(cuda::living().deviceBytes - before.deviceBytes, declared.most(MemoryTier::Device));
    EXPECT_EQ(cuda::living().hostBytes - withShop.hostBytes, 700) << "what is lent is not taken";
    EXPECT_EQ(borrowed, shop.as<char>());
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
