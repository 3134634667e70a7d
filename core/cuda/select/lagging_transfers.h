// Blocks that travel beside a step for the next one's use: a layer's deadline is the same layer, one step later.
#pragma once

#include "core/cuda/select/side_stream.h"
#include "kernels/cuda/choice/select.h"
#include "kernels/cuda/transfer/gather.h"

#include <vector>

namespace kvscope {

/// A graph ends when everything in it has ended, so no transfer can cross from one step's into the next. The first half
/// of the layers therefore send theirs as soon as their slots are free, with half a step to arrive by the end; the
/// second half's leave when the next step begins, with half a step until they are needed.
class LaggingTransfers {
public:
    /// blocks: thread blocks of a transfer. Layers are the offloaded ones, ascending.
    void open(std::vector<int> layers, int blocks);
    bool any() const { return !layers_.empty(); }
    const std::vector<int>& layers() const { return layers_; }
    /// The first layer whose transfers leave with the next step.
    int firstCrossing() const { return firstCrossing_; }
    bool crosses(int layer) const { return layer >= firstCrossing_; }

    /// A layer's transfer, from here on.
    void send(const cuda::Launch& launch, int layer, const cuda::GatherArgs& args);
    /// The launches of what needs a layer's blocks: those of a layer that crosses follow its transfer.
    cuda::Launch join(const cuda::Launch& launch, int layer);
    /// The launch after the step's last use: follows all that has been sent.
    cuda::Launch joinAll(const cuda::Launch& launch) { return side_.join(launch); }

private:
    std::vector<int> layers_;
    int firstCrossing_ = 0, blocks_ = 0;
    std::vector<cuda::Event> arrived_; // [layer], of those that cross
    SideStream side_;
};

} // namespace kvscope
