// The rates of this machine that a decode step's cost is predicted from, as an entry of the GPU table.
#pragma once

#include "bench/bench.h"
#include "profiler/roofline/gpu_table.h"

namespace kvscope::bench {

/// The processor as the device of the CPU backend: what it reads from memory and from its last cache, and its float32
/// multiply-adds. The link is modelled there, so it is PCIe 5's. Takes some seconds.
GpuSpec measureCpu(const Log& log);

/// The first GPU, over its own link. @throws Error(Device | Unsupported) in a sentence where there is none
GpuSpec measureGpu(const Log& log);

} // namespace kvscope::bench
