#include "profiler/export/resident_blocks.h"

#include "profiler/format/trace_keys.h"

namespace kvscope {

ResidentBlocks::ResidentBlocks(Connection& connection, int runId, int deviceSlots)
    : rows_(connection, "SELECT id, misses, opens_block FROM selection WHERE id BETWEEN ? AND ? ORDER BY id"),
      pools_(deviceSlots) {
    const auto [low, high] = trace::keysOfSteps(runId, 0, trace::kMaxStep, trace::kSelectionShift);
    rows_.bindAll(low, high);
    if (deviceSlots > 0) waits_ = rows_.step();
}

std::optional<std::int64_t> ResidentBlocks::after(std::int32_t step) {
    constexpr std::int64_t kPoolMask = (std::int64_t(1) << trace::kSelectionShift) - 1;
    for (; waits_ && trace::stepOf(rows_.int64(0), trace::kSelectionShift) <= step; waits_ = rows_.step())
        pools_.select(rows_.int64(0) & kPoolMask, rows_.int32(1), rows_.int64(2) != 0);
    if (pools_.empty()) return std::nullopt;
    return pools_.blocks();
}

} // namespace kvscope
