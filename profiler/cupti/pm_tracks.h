// From samples of the GPU's hardware counters to a trace's counter tracks.
#pragma once

#include "profiler/cupti/pm_source.h"
#include "profiler/format/counter_sample.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace kvscope {

/// One of the hardware's counters and the track that holds it.
struct PmMetric {
    const char* name;      // CUPTI's
    const char* track;     // ours
    bool required = false; // without it there is no point in sampling
};

/// Intervals in which nothing was counted are joined, so that an idle GPU fills no disk.
class PmTracks {
public:
    PmTracks(std::vector<PmMetric> metrics, std::int64_t intervalNs);

    /// Adds samples in the order of time. A sample that goes back in time, or has no length, is lost.
    void add(std::span<const PmSample> samples);
    /// The hardware's buffer was full, so at least one sample is missing. lost() does not count a sample twice that
    /// add() sees missing, too.
    void overflowed() { ++overflows_; }
    /// Returns what was added since the last call. Times are relative to `originNs`.
    std::vector<CounterSample> take(std::int64_t originNs);
    /// Sampling has paused: the time up to the next sample does not count as missing samples.
    void pause() { lastEndNs_ = 0; }
    std::int64_t lost() const { return std::max(missing_, overflows_) + invalid_; }

private:
    struct Open { // the newest interval of a track, which may still grow
        std::int64_t startNs = 0, endNs = 0, value = 0;
    };
    void give(std::size_t metric);

    std::vector<PmMetric> metrics_;
    std::int64_t intervalNs_;
    std::vector<Open> open_;
    std::vector<CounterSample> done_;
    std::int64_t lastEndNs_ = 0, missing_ = 0, overflows_ = 0, invalid_ = 0;
};

} // namespace kvscope
