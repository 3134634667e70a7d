#include "core/cuda/select/lagging_transfers.h"

#include "kernels/cuda/transfer/gather.h"
#include <utility>

namespace kvscope {

void LaggingTransfers::open(std::vector<LayerId> layers, int blocks) {
    layers_ = std::move(layers);
    blocks_ = blocks;
    if (!any()) return;
    firstCrossing_ = layers_[layers_.size() / 2];
    side_.open();
    arrived_.resize(int(next(layers_.back())));
    for (const LayerId layer : layers_)
        if (crosses(layer)) arrived_[layer] = cuda::Event::make();
}

void LaggingTransfers::send(const cuda::Launch& launch, LayerId layer, const cuda::GatherArgs& args) {
    cuda::gatherBlocks(side_.fork(launch), args, blocks_);
    if (crosses(layer)) cuda::check(cudaEventRecord(arrived_[layer].get(), side_.stream()), "starting a transfer");
}

cuda::Launch LaggingTransfers::join(const cuda::Launch& launch, LayerId layer) {
    cuda::Launch how = launch;
    if (!crosses(layer)) return how;
    cuda::check(cudaStreamWaitEvent(launch.stream, arrived_[layer].get()), "waiting for a transfer");
    how.joined = true;
    return how;
}

} // namespace kvscope
