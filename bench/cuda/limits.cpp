#include "bench/limits.h"
#include "base/elements.h"
#include "kernels/cuda/transfer/gather.h"

#include "bench/cuda/gpu.h"
#include "core/cuda/cuda_engine.h"
#include "core/cuda/gpu_device.h"
#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/linear/linear.h"

#include <algorithm>
#include <fmt/format.h>
#include <random>
#include <unistd.h>
#include <vector>

namespace kvscope::bench {
namespace {

using Bf16 = __nv_bfloat16;

/// Blocks over the link as a decode step loads them: the gather kernel, shuffled blocks of 32 KiB.
struct LinkRate {
    double bytesPerSecond = 0, latencySeconds = 0;
};

LinkRate measureLink(Gpu& gpu, std::size_t hostBytes) {
    const cuda::AttentionShape shape{16, 1, 128, 64};
    const std::size_t element = cuda::blockElements(shape.blockSize, shape.dim), bytes = element * sizeof(Bf16);
    constexpr std::uint32_t kMany = 8192;
    const PinnedMemory host(hostBytes / bytes * bytes, "the link probe");
    Bf16* pool = nullptr;
    cuda::BlockMove* loads = nullptr;
    std::uint32_t* counts = nullptr;
    DeviceArena arena;
    arena.plan(pool, kMany * element, "the link probe");
    arena.plan(loads, kMany, "the link probe");
    arena.plan(counts, 2, "the link probe");
    arena.take();
    std::vector<cuda::BlockMove> list(kMany);
    std::mt19937_64 random(3);
    for (std::uint32_t i = 0; i < kMany; ++i) list[i] = {std::uint32_t(random() % (hostBytes / bytes)), i};
    cuda::check(cudaMemcpy(loads, list.data(), list.size() * sizeof(list[0]), cudaMemcpyHostToDevice), "preparing");
    cuda::GatherArgs args;
    args.shape = shape;
    args.moves = {loads, nullptr, counts};
    args.store = static_cast<const Bf16*>(host.data());
    args.storeOut = static_cast<Bf16*>(host.data());
    args.pool = pool;
    constexpr int kNodes = 16;
    const auto gather = [&](std::uint32_t moves) { // seconds of one, inside a graph like a step's
        const std::uint32_t both[] = {moves, 0};
        cuda::check(cudaMemcpy(counts, both, sizeof(both), cudaMemcpyHostToDevice), "preparing");
        return gpu.graphSeconds(
                   [&] {
                       for (int i = 0; i < kNodes; ++i) cuda::gatherBlocks(gpu.launch, args);
                   },
                   9) /
               kNodes;
    };
    const double few = gather(64), many = gather(kMany), none = gather(0);
    LinkRate rate;
    rate.bytesPerSecond = double(kMany - 64) * double(bytes) / (many - few);
    rate.latencySeconds = std::max(0.0, few - none - 64.0 * double(bytes) / rate.bytesPerSecond);
    return rate;
}

/// The largest of a few products, in operations per second.
double measureProducts(Gpu& gpu) {
    constexpr int kRows = 8192, kCols = 8192, kInputs = 4096;
    Bf16 *w = nullptr, *x = nullptr;
    float* y = nullptr;
    DeviceArena arena;
    arena.plan(w, {kRows, kCols}, "the product probe");
    arena.plan(x, {kInputs, kCols}, "the product probe");
    arena.plan(y, {kInputs, kRows}, "the product probe");
    arena.take();
    cuda::fillNormal(w, Elements(kRows, kCols), 0.02f, 1);
    cuda::fillNormal(x, Elements(kInputs, kCols), 1, 2);
    cuda::Linear product(gpu.launch, kInputs, kCols);
    const cuda::DeviceMatrix matrix{w, kRows, kCols};
    const cuda::LinearOutput out{y, kRows, false, nullptr, nullptr};
    product.prepare(matrix, kInputs, out);
    return 2.0 * kRows * kCols * kInputs / gpu.seconds([&] { product.run(matrix, x, kInputs, out); }, 21);
}

} // namespace

GpuSpec measureGpu(const Log& log) {
    const cudaDeviceProp properties = usableGpu();
    Gpu gpu;
    GpuSpec spec;
    spec.name = kLocalGpu;
    spec.title = properties.name;
    spec.memoryGib = double(properties.totalGlobalMem) / (1 << 30);
    spec.readGbps = gpu.readBytesPerSecond() / 1e9;
    log(fmt::format("device memory is read at {:.0f} GB/s", spec.readGbps));
    const double copy = gpu.copyBytesPerSecond() / 1e9;
    const double hostGib = double(sysconf(_SC_PHYS_PAGES)) * double(sysconf(_SC_PAGESIZE)) / (1 << 30);
    const LinkRate link = measureLink(gpu, std::size_t(std::clamp(hostGib / 8, 0.25, 4.0) * (1 << 30)));
    spec.linkGbps = link.bytesPerSecond / 1e9;
    spec.latencyUs = link.latencySeconds * 1e6;
    log(fmt::format("blocks of 32 KiB are gathered at {:.1f} GB/s with {:.2f} us per transfer; one copy reaches {:.1f}",
                    spec.linkGbps, spec.latencyUs, copy));
    spec.link = "PCIe";
    spec.note = fmt::format("link: gather of 32 KiB blocks by 4 thread blocks; a plain copy reaches {:.1f} GB/s", copy);
    spec.tflops = measureProducts(gpu) / 1e12;
    log(fmt::format("bf16 products reach {:.0f} TFLOP/s", spec.tflops));
    spec.hostGib = hostGib;
    spec.measured = {"read_gbps", "tflops", "memory_gib", "link_gbps", "latency_us", "host_gib"};
    return spec;
}

} // namespace kvscope::bench
