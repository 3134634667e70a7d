#include "core/cuda/step_graphs.h"

#include "kernels/cuda/device/check.h"

#include <cstdlib>
#include <utility>

namespace kvscope {

StepGraphs::StepGraphs(std::function<void(int entry)> kernels)
    : kernels_(std::move(kernels)), oneByOne_(std::getenv("KVSCOPE_NO_GRAPH") != nullptr) {}

void StepGraphs::open() {
    for (cuda::Event& event : done_) event = cuda::Event::make();
    stream_ = cuda::Stream::make();
}

void StepGraphs::capture() {
    for (int entry = 0; entry < StepReports::kEntries && !oneByOne_; ++entry) {
        graphs_[entry] = cuda::Executable::of(cuda::Graph::capture(stream_.get(), [&] { kernels_(entry); }));
        cuda::check(cudaGraphUpload(graphs_[entry].get(), stream_.get()), "preparing a step");
    }
    cuda::check(cudaStreamSynchronize(stream_.get()), "preparing a step");
}

void StepGraphs::launch(int entry) {
    if (oneByOne_)
        kernels_(entry);
    else
        cuda::check(cudaGraphLaunch(graphs_[entry].get(), stream_.get()), "starting a step");
}

void StepGraphs::follow(int entry, cudaStream_t copy) const {
    cuda::check(cudaEventRecord(done_[entry].get(), stream_.get()), "starting a step");
    cuda::check(cudaStreamWaitEvent(copy, done_[entry].get()), "starting a step");
}

} // namespace kvscope
