// What one layer of a block-diffusion session has on a GPU.
#pragma once

#include <cstdint>
#include <cuda_bf16.h>

namespace kvscope {

/// Device memory. Rows are sequences; the tokens of a row are those of its block.
struct DenoiserLayer {
    __nv_bfloat16* blocks = nullptr; // KV blocks of all sequences
    __nv_bfloat16* ranges = nullptr; // of pages, where the method chooses pages
    float* before = nullptr;         // queries of the forward before, where they are compared
    float* prefix = nullptr;         // attention over the prefix, where tokens reuse it
    float* prefixSums = nullptr;     // its log sums
    std::int32_t* tiles = nullptr;   // of the prefix that each query head keeps, where each has a mask (TileMaskArgs)
    std::int32_t* tileCount = nullptr;
    float* beforeKv = nullptr; // keys and values of the forward before, where their changes are recorded
};

} // namespace kvscope
