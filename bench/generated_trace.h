// Traces of any size for benchmarks: a run like a recorded one on a GPU, with its kernels and copies, made from a
// formula.
#pragma once

#include "bench/bench.h"

#include <cstdint>
#include <string>

namespace kvscope::bench {

struct GeneratedTrace {
    std::int64_t spans = 10'000'000; // about so many spans on the timeline: stages, transfers, kernels and copies
    int layers = 32, kvHeads = 8, sequences = 4;
    int kernelsPerLayer = 20; // on two streams
    std::uint64_t seed = 1;
};

struct GeneratedSize {
    std::int64_t spans = 0; // the exact number of spans on the timeline
    std::int64_t bytes = 0; // size of the file
    int steps = 0;
};

/// Writes a finished run of level counters, replacing the file. The same shape and seed give the same rows.
/// @throws Error(Storage)
GeneratedSize writeGeneratedTrace(const std::string& path, const GeneratedTrace& shape, const Log& log);

} // namespace kvscope::bench
