// How full the device's block cache was: blocks with a slot after each step.
#pragma once

#include "profiler/store/sqlite.h"

#include <cstdint>
#include <optional>
#include <unordered_map>

namespace kvscope {

/// A cache gives up a block only when no slot is free, so a pool (sequence, layer, KV head) that begins with the
/// prompt's last block grows by its misses and by every block it begins, up to its slots.
class ResidentBlocks {
public:
    /// `connection` outlives it. `deviceSlots`: of each pool; 0: everything is resident and there is nothing to count.
    ResidentBlocks(Connection& connection, int runId, int deviceSlots);
    /// Of all pools. Steps in ascending order; absent before the first selection, or with everything resident.
    std::optional<std::int64_t> after(std::int32_t step);

private:
    Statement rows_;
    int slots_;
    bool waits_ = false;
    std::unordered_map<std::int64_t, std::int64_t> pools_; // by the selection key's last 30 bits
    std::int64_t total_ = 0;
};

} // namespace kvscope
