// How much there is on the tracks of a run that other sources recorded: kernels, copies, an imported timeline.
#pragma once

#include "profiler/read/trace_reader.h"

#include <cstdint>
#include <string>
#include <vector>

namespace kvscope {

struct SpanTotals {
    struct Track {
        std::string name;
        std::int64_t spans = 0;
        std::int64_t totalNs = 0; // of the spans at depth 0: what lies inside them is not added again
    };
    std::int64_t spans = 0, counterValues = 0, flows = 0;
    std::int64_t firstNs = 0, lastNs = 0; // from the first start to the last end
    std::vector<Track> tracks;            // by name
};

/// Reads every span of the run once. @throws Error(BadInput | Cancelled)
SpanTotals spanTotals(const TraceReader& reader, int runId);

} // namespace kvscope
