#include "profiler/export/resident_blocks.h"

#include "profiler/store/trace_keys.h"

#include <algorithm>

namespace kvscope {

ResidentBlocks::ResidentBlocks(Connection& connection, int runId, int deviceSlots)
    : rows_(connection, "SELECT id, misses, opens_block FROM selection WHERE id BETWEEN ? AND ? ORDER BY id"),
      slots_(deviceSlots) {
    const auto [low, high] = trace::keysOfSteps(runId, 0, trace::kMaxStep, trace::kSelectionShift);
    rows_.bindAll(low, high);
    if (slots_ > 0) waits_ = rows_.step();
}

std::optional<std::int64_t> ResidentBlocks::after(std::int32_t step) {
    constexpr std::int64_t kPoolMask = (std::int64_t(1) << trace::kSelectionShift) - 1;
    for (; waits_ && trace::stepOf(rows_.int64(0), trace::kSelectionShift) <= step; waits_ = rows_.step()) {
        const auto [pool, isNew] = pools_.try_emplace(rows_.int64(0) & kPoolMask, 0);
        std::int64_t& held = pool->second;
        const std::int64_t before = held;
        // A first selection that opens a block counts that one; else the prompt's last block was there already.
        if (isNew && rows_.int64(2) == 0) held = 1;
        held = std::clamp<std::int64_t>(held + rows_.int32(1) + (rows_.int64(2) != 0 ? 1 : 0), 0, slots_);
        total_ += held - before;
    }
    if (pools_.empty()) return std::nullopt;
    return total_;
}

} // namespace kvscope
