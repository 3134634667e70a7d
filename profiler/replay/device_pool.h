// One pool of block slots for everything on a device: all sequences or requests, layers and KV heads. A step asks for
// the blocks of one layer after the other.
#pragma once

#include "profiler/replay/replay.h"
#include "profiler/replay/selection_trace.h"

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace kvscope {

/// What the steps of a run ask of such a pool, in blocks.
struct DeviceDemand {
    std::int64_t largest = 0;  // most that one layer of one step selects: a smaller pool cannot run it
    std::int64_t mostStep = 0; // most that one step selects, all layers together
    double meanStep = 0;       // over the steps that select
};

/// The requests of a run to the pool, made once for all policies and sizes. Blocks are numbered over all pools.
///
/// In each layer of a step all rows look their selections up together. The newest block of a sequence has a place of
/// its own until it is full: it is a hit, and when the sequence begins the next block it gets a slot without a load.
/// Steps in which a head attends to every block (dense_len) look nothing up. A paused or released request takes
/// its blocks with it.
class DeviceRequests {
public:
    /// `trace` has separate pools. @throws Error(Unsupported) for more blocks than can be numbered
    explicit DeviceRequests(const SelectionTrace& trace);

    struct Layer {
        std::int32_t step = 0, layer = 0; // index into SelectionTrace::steps
        std::size_t end = 0, keptEnd = 0; // where its blocks end in the lists of all layers' blocks
        std::int32_t newest = 0;          // further blocks that it selects: the newest ones of sequences
    };
    struct Block {
        std::int32_t block = 0;
        std::int32_t next = 0; // the next of layers() that asks for it, or kNever: none before it leaves
        bool first = false;    // no earlier one has asked for it, and it did not begin while the run went on
    };
    static constexpr std::int32_t kNever = BlockVisits::kNever;

    const std::vector<Layer>& layers() const { return layers_; } // in the order of time
    std::span<const Block> blocks(std::size_t layer) const;
    /// The blocks that have become full when the step has passed this layer. They get a slot.
    std::span<const Block> kept(std::size_t layer) const;
    /// The blocks that leave before the layer: those of paused and released requests, as ranges [first, second).
    const std::vector<std::pair<std::int32_t, std::int32_t>>& leaving(std::size_t layer) const;
    std::int32_t blockLimit() const { return blockLimit_; }
    const DeviceDemand& demand() const { return demand_; }

private:
    std::vector<Layer> layers_;
    std::vector<Block> blocks_, kept_;
    Numbered<std::vector<std::pair<std::int32_t, std::int32_t>>> leaving_; // of the layers that have any
    std::vector<std::int32_t> leavingOf_;                                  // [layer] index into leaving_; -1: none
    std::int32_t blockLimit_ = 0;
    DeviceDemand demand_;
};

/// The policies that a device-wide pool has: lru and belady. @throws Error(BadInput) for others
enum class DevicePolicy : std::uint8_t { Lru, Belady };
constexpr const char* nameOf(DevicePolicy policy) { return policy == DevicePolicy::Lru ? "lru" : "belady"; }
DevicePolicy parseDevicePolicy(const std::string& name);

/// A layer's selection stays in the pool until all of it has been looked up, and while its layer attends. Of blocks
/// used last in the same layer of a step, the lowest leaves first under lru. The result has no counts of single pools.
/// slotCount: not called `slots`, which is a macro of Qt's. @throws Error(BadInput) if the pool is smaller than
/// demand().largest, Error(Cancelled)
CacheReplay replayDevice(const SelectionTrace& trace, const DeviceRequests& requests, DevicePolicy policy,
                         std::int64_t slotCount, const std::stop_token& stop = {});

/// As replay(), with a device-wide pool: every policy of the options that it has (none named: both), every size
/// (none: some around the blocks of the largest step) and every link.
/// @throws Error(BadInput | Unsupported | Cancelled)
std::vector<ReplayConfig> replayDevicePool(const SelectionTrace& trace, const DeviceRequests& requests,
                                           const ReplayOptions& options, const Progress& progress = {},
                                           const std::stop_token& stop = {});

/// Sizes around which a device-wide pool changes: shares of the blocks of the largest step, none smaller than
/// demand.largest, ascending.
std::vector<int> deviceSizes(const DeviceDemand& demand);

} // namespace kvscope
