// How fast a prompt attends to itself: the kernel that the GPU gets beside the one of all GPUs.
#pragma once

#include "bench/bench.h"
#include "bench/cuda/gpu.h"

#include <nlohmann/json.hpp>

namespace kvscope::bench {

/// Prompts of several lengths, whole and by pieces, with biases, a window and heads of 64. TFLOP/s count the products
/// that causality and the window leave: 4 dim for each query head and key in sight.
nlohmann::ordered_json prefillAttention(Gpu& gpu, const Log& log);

} // namespace kvscope::bench
