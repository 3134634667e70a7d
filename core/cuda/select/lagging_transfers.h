// Transfers of blocks that a step chooses for the next step. The blocks of a layer must have arrived when the next step
// comes to the same layer.
#pragma once

#include "base/indexed.h"
#include "core/cuda/select/side_stream.h"
#include "kernels/cuda/choice/select.h"
#include "kernels/cuda/transfer/gather.h"

#include <vector>

namespace kvscope {

/// A step graph ends when everything in it has ended, so a transfer cannot begin in one step and end in the next. The
/// transfers of the first half of the layers therefore start as soon as the layer's slots are free, and have half a
/// step until the step ends. The transfers of the second half start when the next step begins, and have half a step
/// until their blocks are needed.
class LaggingTransfers {
public:
    /// layers: the offloaded layers, ascending. blocks: thread blocks of a transfer.
    void open(std::vector<LayerId> layers, int blocks);
    bool any() const { return !layers_.empty(); }
    const std::vector<LayerId>& layers() const { return layers_; }
    /// The first layer whose transfers start when the next step begins ("cross" into it).
    LayerId firstCrossing() const { return firstCrossing_; }
    bool crosses(LayerId layer) const { return layer >= firstCrossing_; }

    /// Starts a layer's transfer on the side stream, after everything that `launch` has so far.
    void send(const cuda::Launch& launch, LayerId layer, const cuda::GatherArgs& args);
    /// @return how kernels that need a layer's blocks are launched. If the layer crosses, they wait for its transfer.
    cuda::Launch join(const cuda::Launch& launch, LayerId layer);
    /// @return how the kernel after the last use of blocks in the step is launched: it waits for all transfers sent.
    cuda::Launch joinAll(const cuda::Launch& launch) { return side_.join(launch); }

private:
    std::vector<LayerId> layers_;
    LayerId firstCrossing_{};
    int blocks_ = 0;
    PerLayer<cuda::Event> arrived_; // set for layers that cross
    SideStream side_;
};

} // namespace kvscope
