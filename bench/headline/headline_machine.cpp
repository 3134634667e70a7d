#include "bench/headline/headline_machine.h"

#include "base/error.h"
#include "bench/machine.h"
#include "core/session/processor.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <vector>

#ifdef KVSCOPE_HAVE_CUDA
#include "bench/cuda/gpu.h"
#include "core/cuda/gpu_device.h"
#endif

namespace kvscope::bench {
namespace {

using Json = nlohmann::ordered_json;

#ifdef KVSCOPE_HAVE_CUDA
/// What nvidia-smi says of the GPU in use; empty where it says nothing.
std::string askNvidiaSmi(const std::string& query) {
    ChildProgram asked(
        {"/usr/bin/env", "nvidia-smi", "--id=" + gpuBusId(), "--query-gpu=" + query, "--format=csv,noheader,nounits"});
    if (asked.wait() != 0) return {};
    return asked.output().substr(0, asked.output().find('\n'));
}
#endif

} // namespace

bool gpuIsHere() {
#ifdef KVSCOPE_HAVE_CUDA
    try {
        usableGpu();
        return true;
    } catch (const Error&) {
    }
#endif
    return false;
}

HeadlinePlace placeHere(const std::string& commit) {
#ifdef KVSCOPE_HAVE_CUDA
    if (gpuIsHere()) {
        std::string driver = askNvidiaSmi("driver_version");
        int version = 0;
        if (driver.empty() && cudaDriverGetVersion(&version) == cudaSuccess)
            driver = fmt::format("CUDA {}.{}", version / 1000, version % 1000 / 10);
        return {usableGpu().name, driver, commit};
    }
#endif
    return {fmt::format("{}, {} threads", processorName(), hardwareThreads()), "", commit};
}

double readProbeGbPerSecond() {
#ifdef KVSCOPE_HAVE_CUDA
    return Gpu().readBytesPerSecond() * 1e-9;
#else
    throw Error(ErrorKind::Unsupported, "this build has no CUDA backend");
#endif
}

ClockSamples::ClockSamples() {
#ifdef KVSCOPE_HAVE_CUDA
    if (gpuIsHere())
        sampler_.emplace(std::vector<std::string>{"/usr/bin/env", "nvidia-smi", "--id=" + gpuBusId(),
                                                  "--query-gpu=utilization.gpu,clocks.sm,power.draw,temperature.gpu",
                                                  "--format=csv,noheader,nounits", "-lms", "500"});
#endif
}

Json ClockSamples::finish() {
    if (!sampler_) return nullptr;
    sampler_->terminate();
    sampler_->wait();
    Json out = clocksOf(sampler_->output());
    sampler_.reset();
    return out;
}

} // namespace kvscope::bench
