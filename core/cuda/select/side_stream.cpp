#include "core/cuda/select/side_stream.h"

namespace kvscope {

cudaEvent_t newEvent() {
    cudaEvent_t event = nullptr;
    cuda::check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "making an event");
    return event;
}

SideStream::~SideStream() {
    if (stream_ != nullptr) cudaStreamSynchronize(stream_);
    for (cudaEvent_t event : {fork_, join_})
        if (event != nullptr) cudaEventDestroy(event);
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
}

void SideStream::open() {
    int lowest = 0, highest = 0;
    cuda::check(cudaDeviceGetStreamPriorityRange(&lowest, &highest), "opening a stream");
    cuda::check(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, highest), "opening a stream");
    fork_ = newEvent();
    join_ = newEvent();
}

cuda::Launch SideStream::fork(const cuda::Launch& from) {
    cuda::check(cudaEventRecord(fork_, from.stream), "beginning beside a step");
    cuda::check(cudaStreamWaitEvent(stream_, fork_), "beginning beside a step");
    cuda::Launch beside = from;
    beside.stream = stream_;
    beside.joined = true;
    return beside;
}

cuda::Launch SideStream::join(const cuda::Launch& to) {
    cuda::check(cudaEventRecord(join_, stream_), "joining a step");
    cuda::check(cudaStreamWaitEvent(to.stream, join_), "joining a step");
    cuda::Launch how = to;
    how.joined = true;
    return how;
}

} // namespace kvscope
