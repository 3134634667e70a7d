#include "core/cuda/select/side_stream.h"

namespace kvscope {

void SideStream::open() {
    fork_ = cuda::Event::make();
    join_ = cuda::Event::make();
    stream_ = cuda::Stream::make(cuda::StreamKind::Urgent);
}

cuda::Launch SideStream::fork(const cuda::Launch& from) {
    cuda::check(cudaEventRecord(fork_.get(), from.stream), "beginning beside a step");
    cuda::check(cudaStreamWaitEvent(stream_.get(), fork_.get()), "beginning beside a step");
    cuda::Launch beside = from;
    beside.stream = stream_.get();
    beside.joined = true;
    return beside;
}

cuda::Launch SideStream::join(const cuda::Launch& to) {
    cuda::check(cudaEventRecord(join_.get(), stream_.get()), "joining a step");
    cuda::check(cudaStreamWaitEvent(to.stream, join_.get()), "joining a step");
    cuda::Launch how = to;
    how.joined = true;
    return how;
}

} // namespace kvscope
