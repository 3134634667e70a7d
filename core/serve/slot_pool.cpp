#include "core/serve/slot_pool.h"

namespace kvscope::serve {

std::size_t SlotPool::Hash::operator()(const PooledBlock& b) const {
    std::uint64_t key = (std::uint64_t(b.row) << 48) ^ (std::uint64_t(b.layer) << 36) ^
                        (std::uint64_t(b.kvHead) << 26) ^ std::uint64_t(std::uint32_t(b.block));
    key *= 0x9E3779B97F4A7C15; // spreads neighbours over the table
    return std::size_t(key ^ (key >> 32));
}

std::span<const PooledBlock> SlotPool::select(std::span<const PooledBlock> blocks, std::int64_t slots) {
    missed_.clear();
    for (const PooledBlock& block : blocks) {
        const auto found = places_.find(block);
        if (found == places_.end())
            missed_.push_back(block);
        else
            order_.splice(order_.begin(), order_, found->second);
    }
    for (const PooledBlock& block : missed_) keep(block);
    while (used() > slots && !order_.empty()) {
        places_.erase(order_.back());
        order_.pop_back();
    }
    return missed_;
}

void SlotPool::keep(const PooledBlock& block) {
    const auto found = places_.find(block);
    if (found != places_.end()) {
        order_.splice(order_.begin(), order_, found->second);
        return;
    }
    order_.push_front(block);
    places_.emplace(block, order_.begin());
}

void SlotPool::release(int row) {
    for (auto block = order_.begin(); block != order_.end();) {
        if (block->row != row) {
            ++block;
            continue;
        }
        places_.erase(*block);
        block = order_.erase(block);
    }
}

} // namespace kvscope::serve
