// The GPU's own PCIe counters over a run, as samples on its clock.
#pragma once

#include "profiler/record/gpu_counters.h"

#include <memory>
#include <string>
#include <vector>

namespace kvscope {

/// Reads the counters every few milliseconds on its own thread.
class PcieSampler final : public GpuCounters {
public:
    /// @return null, with the reason in `refusal`, where the counters are missing
    static std::unique_ptr<PcieSampler> start(const std::string& pciBusId, std::string& refusal);
    ~PcieSampler() override;
    PcieSampler(const PcieSampler&) = delete;
    PcieSampler& operator=(const PcieSampler&) = delete;

    /// Ends an interval where the prompt ends. The ends of decode steps are not marked so: reading the counters takes
    /// longer than a short step.
    void atStep(int step) override;
    std::vector<CounterSample> take(std::int64_t originNs, bool all) override;

private:
    struct Impl;
    explicit PcieSampler(std::unique_ptr<Impl> impl);
    std::unique_ptr<Impl> impl_;
};

} // namespace kvscope
