// How large the KV block of one KV head is on each backend.
#pragma once

#include <cstdint>

namespace kvscope {

/// The KV block of one KV head as it is transferred.
struct BlockFormat {
    int blockSize = 64, dim = 64;
    bool hasBias = false;
    int valueDim = -1; // of the stored values; -1: as the keys, 0: none (latent attention)
};
std::int64_t cpuBlockBytes(const BlockFormat& format);
std::int64_t cudaBlockBytes(const BlockFormat& format);

} // namespace kvscope
