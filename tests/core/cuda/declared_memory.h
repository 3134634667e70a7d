// Holds an engine on a GPU to the memory that it declares.
#pragma once

#include "core/plan/memory_plan.h"
#include "kernels/cuda/device/owners.h"

#include <gtest/gtest.h>

namespace kvscope::test {

/// Calls make(), which returns an engine. Expects that the engine's memory() declares what was planned, that the owners
/// hold that and no more while the engine lives, and that they hold what they held before when it is gone.
template <class Make> void expectDeclaredMemory(const MemoryPlan& planned, const Make& make) {
    const cuda::Living before = cuda::living();
    {
        const auto engine = make();
        const cuda::Living taken = cuda::living();
        std::int64_t device = 0, host = 0;
        for (const MemoryPlan::Part& part : engine->memory().parts())
            (part.need.tier == MemoryTier::Device ? device : host) += part.bytes;
        EXPECT_EQ(taken.deviceBytes - before.deviceBytes, device);
        EXPECT_EQ(taken.hostBytes - before.hostBytes, host);
        ASSERT_EQ(planned.parts().size(), engine->memory().parts().size());
        for (const MemoryPlan::Part& part : planned.parts())
            EXPECT_EQ(part.bytes, engine->memory().bytes(part.need.key)) << part.need.key;
    }
    const cuda::Living after = cuda::living();
    EXPECT_EQ(after.deviceBytes, before.deviceBytes);
    EXPECT_EQ(after.hostBytes, before.hostBytes);
    EXPECT_EQ(after.executables, before.executables);
}

} // namespace kvscope::test
