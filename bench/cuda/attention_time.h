// How long decode attention over scattered blocks takes.
#pragma once

#include "bench/cuda/gpu.h"
#include "kernels/cuda/device/kv_shape.h"

#include <cstddef>

namespace kvscope::bench {

struct AttentionTime {
    double seconds = 0;    // of one layer
    std::size_t bytes = 0; // of keys and values that one layer reads
};

/// Attends to 64 blocks of each KV head, which lie in any order in the pool. So many layers take turns that their
/// blocks do not fit the cache. @throws Error(OutOfMemory | Device)
AttentionTime timeAttention(Gpu& gpu, const cuda::AttentionShape& shape, int rows, float scale);

} // namespace kvscope::bench
