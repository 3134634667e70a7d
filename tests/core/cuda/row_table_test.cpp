// Which rows are active is known on the GPU before any kernel asks.
#include "core/cuda/row_table.h"

#include "core/cuda/device_memory.h"
#include "tests/kernels/cuda/device.h"

#include <chrono>
#include <gtest/gtest.h>
#include <thread>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

// The stream of a session does not wait for the default stream, on which a session is prepared. Other programs on the
// GPU delay what is asked for there; here a function of the host does.
TEST(RowTable, HasSetItsActiveRowsBeforeASessionsStreamReadsThem) {
    KVSCOPE_NEEDS_GPU();
    ModelConfig config;
    config.layers = 1;
    config.kvHeads = 1;
    config.queryHeads = 2;
    config.headDim = 64;
    config.rope.dim = 64;
    CudaEngineOptions options;
    options.maxTokens = {100, 100, 100};
    const BatchLayout layout(config, options);
    RowTable rows(config, options, layout);
    DeviceArena arena;
    rows.plan(arena);
    arena.take();
    const cuda::Stream stream = cuda::Stream::make();
    std::uint8_t seen[3];
    for (const bool all : {true, false, true}) {
        cuda::check(
            cudaLaunchHostFunc(
                cudaStreamLegacy, [](void*) { std::this_thread::sleep_for(std::chrono::milliseconds(100)); }, nullptr),
            "delaying the default stream");
        rows.setAll(all);
        cuda::check(cudaMemcpyAsync(seen, rows.active, sizeof seen, cudaMemcpyDeviceToHost, stream.get()), "reading");
        cuda::check(cudaStreamSynchronize(stream.get()), "reading");
        for (const std::uint8_t active : seen) EXPECT_EQ(active, all ? 1 : 0);
    }
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
