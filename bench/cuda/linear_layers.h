// Projections of bf16 weights, each beside cuBLASLt's first proposal and in every way that the table of products could
// choose.
#pragma once

#include "bench/bench.h"

#include <nlohmann/json.hpp>
#include <string>

namespace kvscope::bench {

struct LinearSettings {
    std::string layer;  // only those whose name begins so ("8b", "8b_down"); empty: all
    std::string peer;   // bench/peer/linear_torch.py, run before; empty: no torch.mm
    std::string python; // that runs it
};

/// readRate: bytes per second of a pure read. "table": what ProductTable's compiled-in rows would be on this machine.
nlohmann::ordered_json linearLayers(double readRate, const LinearSettings& settings, const Log& log);

} // namespace kvscope::bench
