#include "core/cuda/select/lagging_transfers.h"

#include "kernels/cuda/check.h"

#include <utility>

namespace kvscope {
namespace {

cudaEvent_t newEvent() {
    cudaEvent_t event = nullptr;
    cuda::check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "making an event");
    return event;
}

} // namespace

LaggingTransfers::~LaggingTransfers() {
    if (stream_ != nullptr) cudaStreamSynchronize(stream_);
    for (cudaEvent_t event : arrived_)
        if (event != nullptr) cudaEventDestroy(event);
    for (cudaEvent_t event : {fork_, all_})
        if (event != nullptr) cudaEventDestroy(event);
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
}

void LaggingTransfers::open(std::vector<int> layers, int blocks) {
    layers_ = std::move(layers);
    blocks_ = blocks;
    if (!any()) return;
    firstCrossing_ = layers_[layers_.size() / 2];
    int lowest = 0, highest = 0;
    cuda::check(cudaDeviceGetStreamPriorityRange(&lowest, &highest), "opening a stream");
    cuda::check(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, highest), "opening a stream");
    fork_ = newEvent();
    all_ = newEvent();
    arrived_.resize(std::size_t(layers_.back()) + 1);
    for (const int layer : layers_)
        if (crosses(layer)) arrived_[std::size_t(layer)] = newEvent();
}

void LaggingTransfers::send(const cuda::Launch& launch, int layer, const cuda::GatherArgs& args) {
    cuda::check(cudaEventRecord(fork_, launch.stream), "starting a transfer");
    cuda::check(cudaStreamWaitEvent(stream_, fork_), "starting a transfer");
    cuda::Launch beside = launch;
    beside.stream = stream_;
    beside.joined = true;
    cuda::gatherBlocks(beside, args, blocks_);
    if (crosses(layer)) cuda::check(cudaEventRecord(arrived_[std::size_t(layer)], stream_), "starting a transfer");
}

cuda::Launch LaggingTransfers::join(const cuda::Launch& launch, int layer) {
    cuda::Launch how = launch;
    if (!crosses(layer)) return how;
    cuda::check(cudaStreamWaitEvent(launch.stream, arrived_[std::size_t(layer)]), "waiting for a transfer");
    how.joined = true;
    return how;
}

cuda::Launch LaggingTransfers::joinAll(const cuda::Launch& launch) {
    cuda::check(cudaEventRecord(all_, stream_), "waiting for transfers");
    cuda::check(cudaStreamWaitEvent(launch.stream, all_), "waiting for transfers");
    cuda::Launch how = launch;
    how.joined = true;
    return how;
}

} // namespace kvscope
