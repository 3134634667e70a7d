// The rows of a step: where each one's blocks, windows and tokens begin, which token it feeds next, at which position,
// and the random numbers that its samples take. Row = sequence.
#pragma once

#include "core/cuda/batch_layout.h"
#include "core/model/rope.h"
#include "kernels/cuda/token/sample.h"

#include <cstdint>
#include <cuda_runtime_api.h>
#include <span>
#include <vector>

namespace kvscope {

struct RowTable {
    RowTable(const ModelConfig& config, const CudaEngineOptions& options, const BatchLayout& layout);

    /// Fills the device memory, once it is there: all rows active. Waits.
    void upload();
    /// What the next step feeds; only what differs from the device's own state is copied.
    void setInputs(std::span<const std::int32_t> tokens, std::span<const std::uint8_t> active, cudaStream_t stream);
    /// A step has chosen these tokens: its active rows feed them next.
    void advance(const std::int32_t* tokens);
    /// The prompts have been read, and these are the first tokens. [rows]
    void begin(const std::int32_t* tokens);
    /// All rows on the device take part, or none. Waits.
    void setAll(bool active);
    /// How the rows' next tokens are chosen. record: where they are reported.
    cuda::NextTokenArgs nextTokens(const float* logits, std::int32_t* record) const;

    // Device memory
    std::int32_t *position = nullptr, *next = nullptr; // [rows]
    std::uint8_t* active = nullptr;                    // [rows]
    std::int32_t* ropeFirst = nullptr;                 // [rows] row of the rotary tables of position 0
    double* draws = nullptr;                           // [rows, drawsPerRow], where tokens are sampled
    std::int32_t* firstSampled = nullptr;              // [rows] position that takes the first draw
    std::int64_t *blockFirst = nullptr, *windowFirst = nullptr, *tokenFirst = nullptr,
                 *poolFirst = nullptr;            // [rows*kvHeads] as in BatchLayout, and the first slot
    float *ropeCos = nullptr, *ropeSin = nullptr; // [rope.rows(), rope.dim/2]

    RopeTables rope;
    int drawsPerRow = 0;

private:
    void uploadDraws();

    const CudaEngineOptions& options_;
    const BatchLayout& layout_;
    const int vocab_, ropeDim_;
    // What the device holds
    std::vector<std::int32_t> nextHost_;
    std::vector<std::uint8_t> activeHost_;
};

} // namespace kvscope
