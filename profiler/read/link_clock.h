// On which clock a run's transfers are drawn, and where in their layer. Stages carry the GPU timer's marks, kernels the
// time stamps of CUPTI; the two clocks of one GPU lie about a microsecond apart. A transfer is drawn on the kernel that
// moved its bytes, so on the kernels' clock where kernels were recorded.
#pragma once

#include "profiler/sqlite/sqlite.h"

#include <cstdint>
#include <string>

namespace kvscope {

struct LinkClock {
    enum class Source : std::uint8_t {
        Modelled, // no clock ran: the time belongs to the modelled link
        Engine,   // another engine's own
        GpuTimer, // the stages' clock
        Cupti     // the kernels' clock
    };
    Source source = Source::Modelled;
    /// Added to a time of the GPU timer, this gives the time on CUPTI's clock: the median, over the first layers that
    /// loaded on demand, of the end of the kernel that moved the blocks minus the end of its offloading stage.
    std::int64_t offsetNs = 0;
    std::int64_t spreadNs = 0; // median distance from that median: what remains between bar and kernel
    int samples = 0;           // layers that the two are medians of

    /// "modelled", "engine's clock", "GPU timer", "CUPTI's clock"
    const char* name() const;
};

/// Reads a few hundred kernels at most. @throws Error as TraceReader does
LinkClock linkClockOf(Connection& connection, int runId);

/// When a layer's blocks began to move. Modelled: with the offloading stage. Measured: as long before the stage's end
/// as the link was busy, because the stage chooses slots first and ends with the last block.
std::int64_t transferStart(const LinkClock& clock, std::int64_t stageStartNs, std::int64_t stageNs, std::int64_t h2dNs,
                           std::int64_t d2hNs);

} // namespace kvscope
