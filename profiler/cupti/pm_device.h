// One GPU's hardware counters, sampled by the hardware itself and fetched through CUPTI.
#pragma once

#include "profiler/cupti/pm_source.h"
#include "profiler/cupti/pm_tracks.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace kvscope {

struct PmDevice {
    std::unique_ptr<PmSource> source;
    std::vector<PmMetric> metrics; // what its samples hold
};

/// gpu: CUDA's number of a device that is in use. Loads CUPTI and its host library. A GpuTracer must have been started
/// before, because it sets the clock of CUPTI's time stamps. Takes an eighth of a second.
/// @return no source, with the reason, where the GPU, the driver or its settings allow none
PmDevice openPmDevice(int gpu, std::int64_t intervalNs, std::string& refusal);

} // namespace kvscope
