// Kernels that only some models need, each beside the read probe: quantised layers, experts, latent attention.
#pragma once

#include "bench/bench.h"
#include "bench/cuda/gpu.h"

#include <nlohmann/json.hpp>
#include <string>

namespace kvscope::bench {

/// type, layer: only this format ("q4_K") or layer ("8b_o"); empty: all.
nlohmann::ordered_json quantisedLayers(Gpu& gpu, double readRate, const std::string& type, const std::string& layer,
                                       const Log& log);
nlohmann::ordered_json expertLayers(Gpu& gpu, double readRate, const Log& log);
nlohmann::ordered_json latentAttention(Gpu& gpu, double readRate, const Log& log);

} // namespace kvscope::bench
