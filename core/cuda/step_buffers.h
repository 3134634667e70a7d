// Device memory that the layers of a step use one after another, and the layers of a prompt too.
#pragma once

#include "core/cuda/step_report.h"

#include <cstdint>
#include <cuda_bf16.h>

namespace kvscope {

/// together: BatchLayout::pieceTokens. A pointer is null where the session does not need the buffer.
struct StepBuffers {
    float* x = nullptr;         // [rows, hidden] the residual stream
    float* qkv = nullptr;       // [together, (queryHeads + 2 kvHeads)*dim] before rotation
    float* plainQ = nullptr;    // [together, queryHeads*queryDim] made from the queries' latent
    __nv_bfloat16* q = nullptr; // [together, queryHeads*dim] rotated
    __nv_bfloat16 *newKey = nullptr, *newValue = nullptr; // [rows, kvHeads*dim] of the tokens being fed, rotated
    __nv_bfloat16* attended = nullptr;                    // [together, queryHeads*valueDim] the attention's output
    __nv_bfloat16* output = nullptr;                      // [together, queryHeads*outputDim] out of the latent space
    __nv_bfloat16* hidden = nullptr;                      // [together, ffn] of the feed-forward
    float* logits[StepReports::kEntries] = {};            // [rows, vocab]
    float* partial = nullptr;                             // parts of an attention before they are merged
    std::uint32_t* arrivals = nullptr;                    // how many parts of each list have arrived
    float* blockLogSums = nullptr;                        // [rows, queryHeads, maxUnits] with the oracle
};

} // namespace kvscope
