// How full the device's block cache was: blocks with a slot after each step.
#pragma once

#include "profiler/read/resident_pools.h"
#include "profiler/sqlite/sqlite.h"

#include <cstdint>
#include <optional>

namespace kvscope {

class ResidentBlocks {
public:
    /// `connection` outlives it. `deviceSlots`: of each pool; 0: everything is resident and there is nothing to count.
    ResidentBlocks(Connection& connection, int runId, int deviceSlots);
    /// Blocks in all pools after the step; steps are asked for in ascending order. Nothing before the first selection,
    /// or where everything is resident.
    std::optional<std::int64_t> after(std::int32_t step);

private:
    Statement rows_;
    ResidentPools pools_; // by the selection key's last 30 bits
    bool waits_ = false;
};

} // namespace kvscope
