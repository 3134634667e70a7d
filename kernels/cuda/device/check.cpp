#include "kernels/cuda/device/check.h"

#include "kernels/cuda/device/kv_shape.h"
#include "kernels/cuda/device/latent_shape.h"

#include <fmt/format.h>

namespace kvscope::cuda {

void check(cudaError_t code, const char* what) {
    if (code == cudaSuccess) return;
    cudaGetLastError(); // a sticky error would otherwise be reported by the next call too
    if (code == cudaErrorMemoryAllocation)
        throw Error(ErrorKind::OutOfMemory, fmt::format("the GPU is out of memory while {}", what),
                    "use a smaller batch, context or --device-kv, or close other programs on the GPU");
    throw Error(ErrorKind::Device,
                fmt::format("the GPU failed while {}: {} ({})", what, cudaGetErrorString(code), cudaGetErrorName(code)),
                "run again; if it repeats, use --backend cpu and report it");
}

void refuseContext(int blocks, int blockSize) {
    throw Error(ErrorKind::Unsupported,
                fmt::format("{} blocks of {} tokens are too many for the GPU to select from", blocks, blockSize),
                "use a shorter context, larger blocks or --backend cpu");
}

void checkAttentionShape(const AttentionShape& shape) {
    const bool latent = hasLatentKernels(shape.dim, shape.latentValue) && shape.kvHeads == 1;
    const int mostGroup = latent ? kMostLatentHeads : kMostGroup;
    if (!latent && (shape.latentValue > 0 || (shape.dim != 64 && shape.dim != 128)))
        throw Error(ErrorKind::Unsupported,
                    fmt::format("the GPU backend has no attention for heads of {} dimensions", shape.dim),
                    "use --backend cpu; the GPU handles 64 and 128, and latent attention of 512 + 64 and 256 + 32");
    if (shape.group() < 1 || shape.group() > mostGroup)
        throw Error(ErrorKind::Unsupported, fmt::format("{} query heads share one KV head", shape.group()),
                    fmt::format("use --backend cpu; the GPU handles groups of 1 to {}", mostGroup));
    if (shape.blockSize < 16 || shape.blockSize > 256 || shape.blockSize % 16 != 0)
        throw Error(ErrorKind::Unsupported, fmt::format("a block holds {} tokens", shape.blockSize),
                    "the GPU handles multiples of 16 tokens, at most 256");
}

} // namespace kvscope::cuda
