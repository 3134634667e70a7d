// The graph of a step of rows that come and go.
#pragma once

#include "kernels/cuda/device/check.h"
#include "kernels/cuda/device/owners.h"

#include <algorithm>
#include <cstdlib>
#include <utility>
#include <vector>

namespace kvscope {

/// The graph of a step. It is captured when a step has the same rows as the step before, later steps of these rows are
/// one launch of it, and it is dropped when one of the rows is closed.
class RowGraph {
public:
    RowGraph() : oneByOne_(std::getenv("KVSCOPE_NO_GRAPH") != nullptr) {}

    /// Launches the kernels that `work` launches on the stream. rows: the numbers of the step's rows
    template <class Work> void launch(const std::vector<int>& rows, cudaStream_t stream, Work&& work) {
        if (rows != rows_ || oneByOne_) {
            work(); // makes what must not be made during a capture: cuBLASLt's plans, attributes of kernels
            forget();
            rows_ = rows;
            return;
        }
        if (!graph_) graph_ = cuda::Executable::of(cuda::Graph::capture(stream, work));
        cuda::check(cudaGraphLaunch(graph_.get(), stream), "starting a step");
    }
    /// The row leaves: its memory may become another row's, so a graph that uses it is dropped.
    void leave(int row) {
        if (std::find(rows_.begin(), rows_.end(), row) != rows_.end()) forget();
    }

private:
    void forget() { graph_ = {}, rows_.clear(); }

    const bool oneByOne_;
    std::vector<int> rows_; // of the last step
    cuda::Executable graph_;
};

} // namespace kvscope
