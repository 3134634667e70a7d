// Traces of any size for benchmarks of heatmaps and masks, written through the recorder's own store. Run 1 has many
// layers and no selections, run 2 the selections of one KV head.
#pragma once

#include "bench/bench.h"

#include <cstdint>
#include <string>

namespace kvscope::bench {

struct HeatTraceShape {
    int steps = 100'000; // the prefill included
    int layers = 100;    // of the first run: 10 million rows, about 1 GB
    int blocks = 4'096;  // of the second run's mask; 0: no second run
    int selected = 256;  // blocks a step selects
    std::uint64_t seed = 1;
};

/// Replaces the file. The same shape gives the same rows. @return bytes written. @throws Error(Storage)
std::int64_t writeHeatTrace(const std::string& path, const HeatTraceShape& shape, const Log& log);

/// The shape that steps, layers, blocks, selected and seed in `settings` describe. @throws Error(BadInput) naming what
/// cannot be read
HeatTraceShape heatTraceShape(const Settings& settings);

} // namespace kvscope::bench
