// Measures the rates of this machine from which the time of a decode step is predicted, as an entry of the GPU table.
#pragma once

#include "bench/bench.h"
#include "profiler/roofline/gpu_table.h"

namespace kvscope::bench {

/// Measures the processor, the device of the CPU backend: how fast it reads memory and its last cache, and its float32
/// multiply-adds. The link of the CPU backend is modelled, so that the entry has PCIe 5's. Takes some seconds.
GpuSpec measureCpu(const Log& log);

/// Measures the first GPU and its link. @throws Error(Device | Unsupported) in a sentence where there is none
GpuSpec measureGpu(const Log& log);

} // namespace kvscope::bench
