// InfLLM-V2 with lse=compressed: block scores with MiniCPM4's shortcut. A query head's softmax over pooled keys divides
// by a sum over keys that are pooled four times as coarsely. A coarse key is the mean of four fine keys, so its product
// with the query is the mean of their products.
#pragma once

#include "kernels/cuda/choice/select.h"

namespace kvscope::cuda {

struct CoarseScoreArgs {
    AttentionShape shape;
    int rows = 0, maxBlocks = 0, maxWindows = 0;
    const std::int32_t* position = nullptr; // [rows]
    const std::uint8_t* active = nullptr;   // [rows] or null
    const __nv_bfloat16* q = nullptr;       // [rows, queryHeads*dim]
    DeviceIndex index;                      // its pooling window is a multiple of its stride
    float scale = 1;
    float* logits = nullptr;  // [rows*queryHeads, maxWindows] work space
    float* logSums = nullptr; // [rows*queryHeads] work space
    float* scores = nullptr;  // [rows, kvHeads, maxBlocks] out: the largest of a block's windows; -inf without one
    std::uint64_t* mark = nullptr;
};
/// Scores the blocks of every row: logits and their sums first, then the largest score among each block's windows.
void scoreByCoarseSums(const Launch& launch, const CoarseScoreArgs& args);

} // namespace kvscope::cuda
