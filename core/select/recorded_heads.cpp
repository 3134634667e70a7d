#include "core/select/recorded_heads.h"

#include <algorithm>

namespace kvscope {

ModelConfig configOfHeads(int queryHeads, int kvHeads, int headDim) {
    constexpr int kMost = 1 << 12; // query heads of a configuration
    ModelConfig config;
    config.kvHeads = std::clamp(kvHeads, 1, kMost);
    config.queryHeads =
        queryHeads >= 1 && queryHeads <= kMost && queryHeads % config.kvHeads == 0 ? queryHeads : config.kvHeads;
    config.headDim = headDim;
    return config;
}

} // namespace kvscope
