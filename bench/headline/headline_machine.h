// What a headline says about its machine: the GPU and its driver, and the clocks that it ran with.
#pragma once

#include "bench/child_program.h"
#include "bench/headline/headline_file.h"

#include <nlohmann/json_fwd.hpp>

#include <optional>
#include <string>

namespace kvscope::bench {

/// Whether this build can use a GPU of this machine.
bool gpuIsHere();

/// The GPU and its driver; without a GPU the processor with the number of threads that this program may use.
HeadlinePlace placeHere(const std::string& commit);

/// Pure reads of the GPU's memory, GB/s. @throws Error(Device | Unsupported)
double readProbeGbPerSecond();

/// Asks nvidia-smi twice a second for clocks, power and temperature while it lives.
class ClockSamples {
public:
    ClockSamples();
    /// Ends the samples. @return the least, the middle and the most of those while the GPU was at work; null where
    /// nvidia-smi tells nothing
    nlohmann::ordered_json finish();

private:
    std::optional<ChildProgram> sampler_;
};

} // namespace kvscope::bench
