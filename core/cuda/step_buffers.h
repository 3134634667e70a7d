// Device memory that the layers of a step use in turn, and those of a prompt.
#pragma once

#include "core/cuda/step_report.h"

#include <cstdint>
#include <cuda_bf16.h>

namespace kvscope {

/// chunk: BatchLayout::chunk. Null where the session needs none.
struct StepBuffers {
    float* x = nullptr;                                   // [rows, hidden] the residual stream
    float* qkv = nullptr;                                 // [chunk, (queryHeads + 2 kvHeads)*dim] before rotation
    float* plainQ = nullptr;                              // [chunk, queryHeads*dim] from the queries' own latent
    __nv_bfloat16* q = nullptr;                           // [chunk, queryHeads*dim] rotated
    __nv_bfloat16 *newKey = nullptr, *newValue = nullptr; // [rows, kvHeads*dim] of the tokens being fed, rotated
    __nv_bfloat16* attended = nullptr;                    // [chunk, queryHeads*valueDim] the attention's output
    __nv_bfloat16* output = nullptr;                      // [chunk, queryHeads*outputDim] back from the latent space
    __nv_bfloat16* hidden = nullptr;                      // [chunk, ffn] of the feed-forward
    float* logits[StepReports::kEntries] = {};            // [rows, vocab]
    float* partial = nullptr;                             // parts of an attention that are not merged yet
    std::uint32_t* arrivals = nullptr;                    // and which of them are there
    float* blockLogSums = nullptr;                        // [rows, queryHeads, maxUnits] with the oracle
};

} // namespace kvscope
