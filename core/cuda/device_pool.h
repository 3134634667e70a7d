// cache=global-lru on a GPU: one pool of slots for all rows, layers and KV heads of an engine, and the tables by which
// its kernels find the rows. core/serve/slot_pool.h is the same rule on the host.
#pragma once

#include "core/cuda/cuda_engine_options.h"
#include "core/cuda/device_memory.h"
#include "core/cuda/device_selector.h"
#include "kernels/cuda/transfer/slot_pool.h"

#include <cstdint>
#include <vector>

namespace kvscope {

class DevicePool {
public:
    /// rows: most at a time. slots: most that may be in use at a time. capacity: most blocks that a KV head selects in
    /// a layer. Takes no memory.
    DevicePool(const cuda::AttentionShape& shape, const LayerPlans& plans, int rows, std::int64_t slots, int capacity);

    /// Asks the engine's arena for the slots and the tables.
    void plan(DeviceArena& arena);
    /// After the arena has been taken.
    void open(const cuda::Launch& launch);

    /// From now on a row's offloaded layers have their blocks here. row: its number in the engine
    void join(int row, PerLayer<DeviceLayerState>& layers) const;
    /// Bytes of the newest blocks of one row, which lie beside the slots.
    std::int64_t newestBytes() const;
    __nv_bfloat16* blocks() const { return state_.blocks; }

    /// Sets how many slots the next steps may use. Blocks that new tokens fill in a layer get slots beyond this number
    /// until the next layer makes other blocks leave.
    void setSlots(std::int64_t slots) { hostInputs_->slots = slots; }
    /// Sets a row's entry in the table of a layer: where the row's newest block is and which of its `blocks` blocks
    /// have slots. @return the entry; the caller sets its other fields. at: the row's place in the order in which rows
    /// get their slots. row: its number in the engine
    cuda::PoolRow& put(LayerId layer, int at, int row, const DeviceLayerState& state, int blocks);
    /// Copies what put() and setSlots() have set to the device, for a step of so many rows. moved: put() was called
    void begin(int rows, bool moved, cudaStream_t stream);
    /// Launches the kernel that finds slots for the blocks which the rows have chosen in a layer. capacity: of the
    /// longest of the rows' lists
    void lookUp(const cuda::Launch& launch, LayerId layer, int capacity, bool valuesByToken) const;
    /// After a step's kernels: copies the pool's counts to the host, in the stream's order.
    void end(cudaStream_t stream);
    /// Called after end(), when the stream has been waited for. @throws std::logic_error where a block got no slot
    void check() const;
    /// Slots in use. Called after end(), when the stream has been waited for.
    std::int64_t used() const { return hostCounts_->used; }

    /// Launches the return of all slots that the row has. Its newest blocks stay.
    void release(const cuda::Launch& launch, const PerLayer<DeviceLayerState>& layers, int blocks) const;

private:
    int newestOf(int row, LayerId layer) const {
        return state_.slots + (row * offloaded_ + placeOf_[layer]) * shape_.kvHeads;
    }

    const cuda::AttentionShape shape_;
    const int rows_;
    int offloaded_ = 0;
    PerLayer<int> placeOf_; // its number among the offloaded layers; -1: it is none
    cuda::PoolState state_;
    cuda::PoolInputs *inputs_ = nullptr, *hostInputs_ = nullptr;
    cuda::PoolRow *table_ = nullptr, *hostTable_ = nullptr; // [layers, rows]
    cuda::PoolCounts* hostCounts_ = nullptr;
};

} // namespace kvscope
