// PM sampling over a run: the GPU's own counters every so often, fetched and decoded on a thread of its own.
#pragma once

#include "profiler/cupti/pm_source.h"
#include "profiler/cupti/pm_tracks.h"
#include "profiler/record/gpu_counters.h"

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace kvscope {

class PmSampling final : public GpuCounters {
public:
    static constexpr std::int64_t kIntervalNs = 50'000;

    /// Samples the GPU in use from here on. @return null, with the reason, where its counters cannot be sampled
    static std::unique_ptr<GpuCounters> open(std::string& refusal);

    PmSampling(std::unique_ptr<PmSource> source, std::vector<PmMetric> metrics, std::int64_t intervalNs,
               std::chrono::milliseconds pause);
    ~PmSampling() override;
    PmSampling(const PmSampling&) = delete;
    PmSampling& operator=(const PmSampling&) = delete;

    /// @return empty, or why the hardware does not sample
    std::string begin();
    void atStep(int step) override;
    /// At the end of a run the remark also says how many samples were lost.
    std::vector<CounterSample> take(std::int64_t originNs, bool all) override;
    std::string remark() override;

private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

} // namespace kvscope
