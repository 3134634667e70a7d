// How many blocks have a slot on the device, counted from selections: exact, without knowing which blocks they are.
#pragma once

#include <algorithm>
#include <cstdint>
#include <unordered_map>

namespace kvscope {

/// A cache gives up a block only when no slot is free, so a pool (sequence, layer, KV head) that begins with the
/// prompt's last block grows by its misses and by every block it begins, up to its slots.
class ResidentPools {
public:
    ResidentPools() = default;
    /// slots: of each pool.
    explicit ResidentPools(int slots) : slots_(slots) {}
    /// The next selection of a pool, in the order of steps.
    void select(std::int64_t pool, std::int64_t misses, bool opensBlock) {
        const auto [at, isNew] = held_.try_emplace(pool, 0);
        std::int64_t& held = at->second;
        const std::int64_t before = held;
        // A first selection that opens a block counts that one; else the prompt's last block was there already.
        if (isNew && !opensBlock) held = 1;
        held = std::clamp<std::int64_t>(held + misses + (opensBlock ? 1 : 0), 0, slots_);
        blocks_ += held - before;
    }
    bool empty() const { return held_.empty(); }
    std::int64_t blocks() const { return blocks_; }                               // of all pools
    std::int64_t capacity() const { return std::int64_t(held_.size()) * slots_; } // of the pools seen so far

private:
    int slots_ = 0;
    std::unordered_map<std::int64_t, std::int64_t> held_;
    std::int64_t blocks_ = 0;
};

} // namespace kvscope
