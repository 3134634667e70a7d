#include "bench/limits.h"

#include "base/error.h"
#include "bench/machine.h"
#include "core/session/processor.h"
#include "core/transfer/link.h"
#include "kernels/kernels.h"

#include <algorithm>
#include <fmt/format.h>
#include <unistd.h>

namespace kvscope::bench {

GpuSpec measureCpu(const Log& log) {
    const int threads = hardwareThreads();
    const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE), cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
    GpuSpec spec;
    spec.name = kLocalCpu;
    spec.title = makeCpuKernels(threads)->description();
    spec.processor = processorName();
    const Link link = Link::parse("pcie5");
    spec.link = link.name + " (modelled)";
    spec.linkGbps = link.gigabytesPerSecond;
    spec.latencyUs = link.latencyUs;
    spec.memoryGib = double(pages) * double(page) / (1 << 30);
    spec.readGbps = streamingReadBytesPerSecond(std::size_t(512) << 20, threads, 7) / 1e9;
    log(fmt::format("memory is read at {:.1f} GB/s by {} threads", spec.readGbps, threads));
    // A virtual machine may name the whole last cache although other machines use it too. The size that counts as ours
    // is that of the largest buffer that is read clearly faster than memory.
    constexpr std::int64_t kSmallest = 4 << 20, kLargest = 256 << 20, kRead = std::int64_t(1) << 30;
    for (std::int64_t bytes = std::min<std::int64_t>(cache, kLargest); bytes >= kSmallest; bytes /= 2) {
        const double rate = streamingReadBytesPerSecond(std::size_t(bytes), threads, int(kRead / bytes)) / 1e9;
        if (rate < 1.5 * spec.readGbps) continue;
        spec.cacheMib = double(bytes) / (1 << 20);
        spec.cacheReadGbps = rate;
        log(fmt::format("{:.0f} MiB that stay in the last cache are read at {:.1f} GB/s", spec.cacheMib, rate));
        break;
    }
    const double products = std::max(registerFmaFlops(threads), openBlasFlops(1024, 1024, 1024, 5).value_or(0));
    if (products <= 0)
        throw Error(ErrorKind::Unsupported, "this processor's multiply-adds cannot be measured",
                    "write an entry of your own into the GPU table, docs/roofline.md shows one");
    spec.tflops = products / 1e12;
    log(fmt::format("{:.3f} TFLOP/s in float32", spec.tflops));
    spec.measured = {"read_gbps", "tflops", "memory_gib"};
    if (spec.cacheMib > 0) spec.measured.insert(spec.measured.end(), {"cache_mib", "cache_read_gbps"});
    return spec;
}

#ifndef KVSCOPE_HAVE_CUDA
GpuSpec measureGpu(const Log&) {
    throw Error(ErrorKind::Unsupported, "this build has no CUDA backend", "measure the processor with --measure=cpu");
}
#endif

} // namespace kvscope::bench
