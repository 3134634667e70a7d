// Published model shapes, for benchmarks with random weights.
#pragma once

#include "core/model/model_config.h"

#include <string_view>

namespace kvscope::bench {

struct ModelShape {
    std::string_view name;
    int layers, hidden, queryHeads, kvHeads, headDim, ffn, vocab;
    bool evictionHead;
};

inline constexpr ModelShape kModelShapes[] = {
    {"nosa-1b", 28, 2048, 16, 2, 128, 6144, 73448, true},     {"nosa-3b", 32, 2560, 32, 2, 128, 10240, 73448, true},
    {"nosa-8b", 32, 4096, 32, 2, 128, 16384, 73448, true},    {"llama3-8b", 32, 4096, 32, 8, 128, 14336, 128256, false},
    {"qwen3-8b", 36, 4096, 32, 8, 128, 12288, 151936, false},
};

/// @throws Error(BadInput) listing the known names
ModelConfig shapeConfig(std::string_view name, int maxPositions);
bool shapeHasEvictionHead(std::string_view name);

} // namespace kvscope::bench
