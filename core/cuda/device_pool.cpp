#include "core/cuda/device_pool.h"

#include <algorithm>
#include <bit>
#include <stdexcept>

namespace kvscope {

DevicePool::DevicePool(const cuda::AttentionShape& shape, const LayerPlans& plans, int rows, std::int64_t slots,
                       int capacity)
    : shape_(shape), rows_(rows) {
    for (const LayerPlan& plan : plans) placeOf_.push_back(plan.offloaded ? offloaded_++ : -1);
    // The blocks that new tokens fill in a layer have a slot before the next layer makes others leave.
    state_.slots = int(slots) + rows * shape.kvHeads;
    const int ofLayer = rows * shape.kvHeads * (capacity + 1);
    // With more entries than are needed the log is seldom cleaned.
    state_.entries = int(std::bit_ceil(unsigned(4 * std::int64_t(state_.slots) + 2 * std::int64_t(ofLayer))));
}

std::int64_t DevicePool::newestBytes() const {
    return std::int64_t(offloaded_) * shape_.kvHeads * std::int64_t(cuda::blockBytes(shape_));
}

void DevicePool::plan(DeviceArena& arena) {
    constexpr const char* kWhat = "the pool of slots";
    const Elements slots(state_.slots), heads(rows_, shape_.kvHeads), table(placeOf_.size(), rows_);
    const std::size_t all = slots + Elements(heads, offloaded_);
    arena.plan(state_.blocks, {all, cuda::blockElements(shape_)}, {"kv_slots", "KV slots", Holds::Kv},
               std::max(cuda::blockBytes(shape_), DeviceArena::kAlignment));
    arena.plan(state_.log, state_.entries, kWhat);
    arena.plan(state_.lastAt, slots, kWhat);
    arena.plan(state_.owner, slots, kWhat);
    arena.plan(state_.free, slots, kWhat);
    arena.plan(state_.filled, heads, kWhat);
    arena.plan(state_.counts, 1, kWhat);
    arena.plan(inputs_, 1, kWhat);
    arena.plan(table_, table, kWhat);
    arena.planHost(hostInputs_, 1, kWhat);
    arena.planHost(hostTable_, table, kWhat);
    arena.planHost(hostCounts_, 1, kWhat);
}

void DevicePool::open(const cuda::Launch& launch) {
    *hostInputs_ = {};
    cuda::clearPool(launch, state_);
    end(launch.stream);
    cuda::check(cudaStreamSynchronize(launch.stream), "emptying the pool of slots");
}

void DevicePool::join(int row, PerLayer<DeviceLayerState>& layers) const {
    const RowsOf blocks(state_.blocks, cuda::blockElements(shape_));
    for (const LayerId i : layers.ids()) {
        if (!layers[i].offloaded) continue;
        layers[i].blocks = state_.blocks;
        layers[i].newest = blocks[newestOf(row, i)];
    }
}

cuda::PoolRow& DevicePool::put(LayerId layer, int at, int row, const DeviceLayerState& state, int blocks) {
    cuda::PoolRow& entry = RowsOf(hostTable_, rows_)[int(layer)][at];
    entry = {};
    entry.slotOf = state.map;
    entry.blocks = blocks;
    entry.newest = newestOf(row, layer);
    return entry;
}

void DevicePool::begin(int rows, bool moved, cudaStream_t stream) {
    hostInputs_->rows = rows;
    cuda::check(cudaMemcpyAsync(inputs_, hostInputs_, sizeof *inputs_, cudaMemcpyHostToDevice, stream),
                "copying how many slots there are");
    if (!moved) return;
    const std::size_t bytes = Elements(placeOf_.size(), rows_) * sizeof *table_;
    cuda::check(cudaMemcpyAsync(table_, hostTable_, bytes, cudaMemcpyHostToDevice, stream), "copying the rows' tables");
}

void DevicePool::lookUp(const cuda::Launch& launch, LayerId layer, int capacity, bool valuesByToken) const {
    cuda::PoolArgs args;
    args.shape = shape_;
    args.capacity = capacity;
    args.valuesByToken = valuesByToken;
    args.state = state_;
    args.inputs = inputs_;
    args.rows = RowsOf(table_, rows_)[int(layer)];
    cuda::lookUpInPool(launch, args);
}

void DevicePool::end(cudaStream_t stream) {
    cuda::check(cudaMemcpyAsync(hostCounts_, state_.counts, sizeof *hostCounts_, cudaMemcpyDeviceToHost, stream),
                "fetching the counts of the pool");
}

void DevicePool::check() const {
    if (hostCounts_->failed != 0) throw std::logic_error("a step needs more slots than the pool has");
}

void DevicePool::release(const cuda::Launch& launch, const PerLayer<DeviceLayerState>& layers, int blocks) const {
    for (const DeviceLayerState& layer : layers)
        if (layer.offloaded) cuda::releaseFromPool(launch, state_, layer.map, shape_.kvHeads * blocks);
}

} // namespace kvscope
