// The GPU's own PCIe counters over a run, as samples on its clock.
#pragma once

#include "profiler/record/counter_sample.h"

#include <memory>
#include <string>
#include <vector>

namespace kvscope {

/// Reads the counters every few milliseconds on a thread of its own.
class PcieSampler {
public:
    /// @return null, with the reason, where the counters are missing
    static std::unique_ptr<PcieSampler> start(const std::string& pciBusId, std::string& refusal);
    ~PcieSampler();
    PcieSampler(const PcieSampler&) = delete;
    PcieSampler& operator=(const PcieSampler&) = delete;

    /// Ends the running interval here, so that what comes now and what came before are told apart. Any thread.
    void cut();
    /// What was sampled since the last call; times relative to `originNs` of the steady clock.
    std::vector<CounterSample> take(std::int64_t originNs);

private:
    struct Impl;
    explicit PcieSampler(std::unique_ptr<Impl> impl);
    std::unique_ptr<Impl> impl_;
};

} // namespace kvscope
