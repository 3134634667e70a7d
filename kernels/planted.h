// Planted selections: block scores that are drawn at random in place of a method's own, so that selections of a given
// locality can be had of random weights. Integer arithmetic, so that every backend draws the same scores.
#pragma once

#include <cstdint>

namespace kvscope {

/// One row in one layer. Each of its KV heads draws for itself.
struct PlantedStream {
    std::uint32_t stream = 0;
    /// Share of the blocks whose scores are drawn anew in a step, times 2^32: at most kPlantedWhole.
    std::uint64_t rate = 0;
};
constexpr std::uint64_t kPlantedWhole = std::uint64_t(1) << 32;

constexpr std::uint32_t plantedHash(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
    std::uint32_t x = a * 0x9E3779B1u ^ b * 0x85EBCA77u ^ c * 0xC2B2AE3Du;
    x = (x ^ x >> 15) * 0x2C1B3C6Du;
    x = (x ^ x >> 12) * 0x297A2D39u;
    return x ^ x >> 15;
}

/// The stream of one KV head of a row.
constexpr std::uint32_t plantedHead(std::uint32_t stream, int kvHead) {
    return plantedHash(stream, std::uint32_t(kvHead), 0x5EED);
}
/// 0 to 1. A block's score changes once in 1/rate steps, at another step for each block.
constexpr float plantedScore(std::uint32_t head, int block, int position, std::uint64_t rate) {
    const std::uint64_t phase = plantedHash(head, std::uint32_t(block), 0),
                        draws = (std::uint64_t(std::uint32_t(position)) * rate + phase) >> 32;
    return float(plantedHash(head, std::uint32_t(block), 2 + std::uint32_t(draws))) * 0x1p-32f;
}
/// The score that does not depend on the query, 0 to 1. It never changes.
constexpr float plantedPrior(std::uint32_t head, int block) {
    return float(plantedHash(head, std::uint32_t(block), 1)) * 0x1p-32f;
}

} // namespace kvscope
