// Which of a chip's counters can be sampled together, and their values from what CUPTI decoded. Needs no GPU.
#pragma once

#include "profiler/cupti/cupti_library.h"
#include "profiler/cupti/pm_source.h"
#include "profiler/cupti/pm_tracks.h"

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvscope {

/// Bytes over the link and bytes of the GPU's memory. How busy the multiprocessors are would fit into the same pass,
/// but that is a counter for each multiprocessor, and fetching and writing samples would take twice as long.
std::span<const PmMetric> pmMetrics();

/// What to tell a person when CUPTI refuses. code: a CUptiResult. doing, text: what was being done and what CUPTI says,
/// for codes that have no sentence of their own.
std::string pmRefusal(int code, std::string_view doing, std::string_view text);

class PmHost {
public:
    /// Takes the required metrics, and of the others what the chip has and counts in the same pass.
    /// chip: as CUPTI names it, e.g. "GH100". @return null, with the reason
    static std::unique_ptr<PmHost> make(const CuptiLibrary& library, const std::string& chip, std::string& refusal);
    ~PmHost();
    PmHost(const PmHost&) = delete;
    PmHost& operator=(const PmHost&) = delete;

    const std::vector<PmMetric>& metrics() const;
    /// The names of the metrics, as CUPTI's calls want them.
    std::span<const char*> names() const;
    /// What the hardware is told to count. Lives as long as this object.
    const std::vector<std::uint8_t>& config() const;
    /// The values of a decoded sample. @return false if CUPTI cannot
    bool evaluate(const std::vector<std::uint8_t>& image, std::size_t sample, PmSample& values) const;

private:
    struct Impl;
    explicit PmHost(std::unique_ptr<Impl> impl);
    std::unique_ptr<Impl> impl_;
};

} // namespace kvscope
