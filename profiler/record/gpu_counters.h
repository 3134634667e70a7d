// Counts what a GPU's hardware does while a run is recorded.
#pragma once

#include "profiler/format/counter_sample.h"

#include <cstdint>
#include <string>
#include <vector>

namespace kvscope {

/// Used by one thread, the engine's.
class GpuCounters {
public:
    virtual ~GpuCounters() = default;
    /// A step is about to begin; counting starts with the first one, and again after everything was taken.
    virtual void atStep(int step) = 0;
    /// The counts since the last call, with times relative to `originNs` of the steady clock. all: the run is over, and
    /// counting ends.
    virtual std::vector<CounterSample> take(std::int64_t originNs, bool all) = 0;
    /// Once, a sentence where counting ended before the run did; else empty.
    virtual std::string remark() { return {}; }
};

} // namespace kvscope
