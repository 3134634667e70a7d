#include "core/cuda/gpu_device.h"

#include "core/session/engine.h"
#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/device/check.h"
#include "kernels/cuda/device/generations.h"

#include <fmt/format.h>

namespace kvscope {

cudaDeviceProp usableGpu() {
    int count = 0;
    const cudaError_t code = cudaGetDeviceCount(&count);
    if (code != cudaSuccess || count == 0) {
        cudaGetLastError();
        throw Error(ErrorKind::Device,
                    fmt::format("there is no NVIDIA GPU that KVScope can use ({})",
                                code == cudaSuccess ? "none was found" : cudaGetErrorString(code)),
                    "use --backend cpu, or install the NVIDIA driver");
    }
    cudaDeviceProp properties{};
    cuda::check(cudaGetDeviceProperties(&properties, 0), "asking for the GPU's properties");
    if (properties.major < 8)
        throw Error(ErrorKind::Unsupported,
                    fmt::format("{} has compute capability {}.{}; KVScope needs 8.0", properties.name, properties.major,
                                properties.minor),
                    "use --backend cpu, or a GPU of the Ampere generation or later");
    // A kernel that failed earlier fails every call from then on, and code for this GPU would seem to be missing.
    std::size_t free = 0, total = 0;
    cuda::check(cudaMemGetInfo(&free, &total), "using the GPU");
    if (!cuda::holdsCodeForThisGpu())
        throw Error(
            ErrorKind::Unsupported,
            fmt::format("this KVScope was built for GPUs of the generations {}; {} has compute capability {}.{}",
                        cuda::compiledGenerations(), properties.name, properties.major, properties.minor),
            fmt::format("use --backend cpu, or build with -DKVSCOPE_CUDA_ARCHITECTURES={}{}", properties.major,
                        properties.minor));
    return properties;
}

void requireGpu() { usableGpu(); }

std::string describeGpu() {
    const cudaDeviceProp properties = usableGpu();
    int driver = 0;
    cudaDriverGetVersion(&driver);
    return fmt::format("{}, {:.0f} GiB, CUDA {}.{}", properties.name, double(properties.totalGlobalMem) / (1 << 30),
                       driver / 1000, driver % 1000 / 10);
}

int gpuNumber() {
    int device = 0;
    cuda::check(cudaGetDevice(&device), "asking for the GPU in use");
    return device;
}

std::string gpuBusId() {
    char id[32] = {};
    cuda::check(cudaDeviceGetPCIBusId(id, int(sizeof id), gpuNumber()), "asking for the GPU's place on the bus");
    return id;
}

} // namespace kvscope
