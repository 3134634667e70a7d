// How many blocks have a slot on the device, counted from selections: exact, without knowing which blocks they are.
#pragma once

#include "base/indexed.h"

#include <cstdint>
#include <vector>

namespace kvscope {

/// A cache gives up a block only when no slot is free, so a pool (sequence, layer, KV head) that begins with the
/// prompt's last block grows by its misses and by every block it begins, up to its slots. Then nothing changes it.
class ResidentPools {
public:
    ResidentPools() = default;
    /// slots: of each pool; perLayer: pools that a layer has at most, 0: not known.
    explicit ResidentPools(int slots, std::int64_t perLayer = 0) : slots_(slots), perLayer_(perLayer) {}
    /// The next selection of a pool, in the order of steps. pool: the last 30 bits of the selection's key.
    void select(std::int64_t pool, std::int64_t misses, bool opensBlock);

    bool empty() const { return pools_ == 0; }
    std::int64_t blocks() const { return blocks_; }           // of all pools
    std::int64_t capacity() const { return pools_ * slots_; } // of the pools seen so far

    /// Neighbouring layers whose selections are worth looking at from here on.
    struct Layers {
        int first = 0, last = 0;
        bool all = true; // else only those with misses or a new block: every pool of these layers is known
    };
    /// The layers without those that are full. Where a layer has few pools, stepping over it would cost more than it
    /// saves.
    const std::vector<Layers>& changing();

private:
    struct Layer {
        std::vector<std::vector<std::int32_t>> held; // [sequence][KV head]; -1: not seen
        std::int64_t seen = 0, full = 0;
    };
    enum class State { Unknown, Known, Full };
    State stateOf(int layer) const;

    int slots_ = 0;
    std::int64_t perLayer_ = 0, pools_ = 0, blocks_ = 0;
    Numbered<Layer> layers_;
    std::vector<Layers> changing_;
    bool stale_ = true; // pools changed since changing_ was made
};

} // namespace kvscope
