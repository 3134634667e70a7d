// Products on this GPU: which machine a table of products must be for, and how long each kernel takes for a product.
#pragma once

#include "core/cuda/device_memory.h"
#include "core/session/products.h"
#include "kernels/cuda/linear/linear.h"
#include "kernels/cuda/linear/matrix_library.h"

#include <functional>
#include <memory>

namespace kvscope {

/// The GPU in use and the library's version. library: null: only our own kernels multiply. @throws Error(Device |
/// Unsupported)
ProductMachine productMachine(const cuda::MatrixLibrary* library);

/// The arguments of a product of one shape, with copies of the weights that together are larger than any cache, so that
/// products that take the copies in turns read all weights from memory.
class ProductJob {
public:
    /// maxInputs: of run(). @throws Error(OutOfMemory | Device)
    ProductJob(const ProductShape& shape, int maxInputs);

    int copies() const { return copies_; }
    std::size_t weightBytes() const { return Elements(shape_.rows, shape_.cols) * sizeof(__nv_bfloat16); }
    cuda::DeviceMatrix weights(int copy) const;
    cuda::LinearOutput output() const;
    /// An output of floats that replace what was there, whatever is computed behind the shape's product.
    cuda::LinearOutput plainOutput() const { return {y_, shape_.rows, false, nullptr, nullptr}; }
    const __nv_bfloat16* halfInputs() const { return half_; }
    /// Computes the product with what the shape names before and after it (ProductFinish), once. copy: of the weights
    void run(cuda::Linear& linear, int inputs, int copy) const;

private:
    const ProductShape shape_;
    const int copies_;
    DeviceArena arena_;
    __nv_bfloat16 *w_ = nullptr, *half_ = nullptr, *hidden_ = nullptr;
    float *x_ = nullptr, *y_ = nullptr, *norm_ = nullptr;
};

/// Measures how long a job's run() takes, by graphs of many calls. It works on its own stream.
class ProductTimer {
public:
    /// @throws Error(OutOfMemory | Device | Unsupported)
    ProductTimer(const ProductShape& shape, int maxInputs);
    const ProductMachine& machine() const { return machine_; }
    /// Median seconds of one run(). Infinite where the kernel cannot compute it, or the library has no such proposal.
    double seconds(int inputs, ProductChoice choice, int repeats = 5);
    /// Median seconds of what `chain` launches on stream() for a copy of the weights.
    double secondsOf(const std::function<void(int copy)>& chain, int repeats = 5);
    cudaStream_t stream() const { return launch_.stream; }
    ProductJob& job() { return job_; }
    cuda::Linear& linear() { return *linear_; }

private:
    ProductMachine machine_;
    const ProductShape shape_;
    ProductJob job_;
    cuda::Launch launch_;
    std::unique_ptr<cuda::Linear> linear_;
    cuda::Stream stream_; // the last member: its destructor waits for what uses the others
};

} // namespace kvscope
