// The rows of a step: where the blocks, windows and tokens of each row begin, which token the row feeds next and at
// which position, and the random numbers for sampling. Row = sequence.
#pragma once

#include "core/cuda/batch_layout.h"
#include "core/model/rope.h"
#include "kernels/cuda/token/sample.h"

#include <cstdint>
#include <cuda_runtime_api.h>
#include <span>
#include <vector>

namespace kvscope {

/// Angles of a row of the rotary tables. The kernels rotate all channels of a head: of one that is partly rotated the
/// other channels have angles of 0 (DeviceLayer::qkv).
inline int tableAngles(const ModelConfig& config) { return (config.latent ? config.rope.dim : config.headDim) / 2; }

struct RowTable {
    RowTable(const ModelConfig& config, const CudaEngineOptions& options, const BatchLayout& layout);

    /// Asks the arena for the tables.
    void plan(DeviceArena& arena);
    /// Fills the tables in device memory, after the arena has been taken. setAll waits until they are filled.
    void upload();
    /// Sets the tokens that the next step feeds and its active rows. Copies only what differs from what the device
    /// holds.
    void setInputs(std::span<const std::int32_t> tokens, std::span<const std::uint8_t> active, cudaStream_t stream);
    /// Notes the tokens that a step has chosen: the active rows feed them next.
    void advance(const std::int32_t* tokens);
    /// Notes the first tokens [rows], which follow from the prompts.
    void begin(const std::int32_t* tokens);
    /// Makes all rows active on the device, or none. Waits, because the session's streams do not wait for the default
    /// stream: also for everything else that has been asked for there, as copies from pageable host memory, which may
    /// still be under way when the call that asked for them has returned.
    void setAll(bool active);
    /// Arguments with which the rows' next tokens are chosen. record: where the tokens are reported.
    cuda::NextTokenArgs nextTokens(const float* logits, std::int32_t* record) const;

    // Device memory
    std::int32_t *position = nullptr, *next = nullptr;     // [rows]
    std::uint8_t* active = nullptr;                        // [rows]
    std::int32_t* ropeFirst = nullptr;                     // [rows] row of the rotary tables of position 0
    std::int64_t *cosFirst = nullptr, *sinFirst = nullptr; // [rows] in its place (RowPlaces), see cuda::AppendArgs
    std::int32_t* slotsOf = nullptr;                       // [rows] see cuda::SelectArgs; null: all have as many
    double* draws = nullptr;                               // [rows, drawsPerRow], where tokens are sampled
    std::int32_t* firstSampled = nullptr;                  // [rows] position that takes the first draw
    std::int64_t *blockFirst = nullptr, *windowFirst = nullptr, *tokenFirst = nullptr,
                 *poolFirst = nullptr;            // [rows*kvHeads] as in BatchLayout; poolFirst: the first slot
    float *ropeCos = nullptr, *ropeSin = nullptr; // [rope.rows(), tableAngles()]

    const RopeTables rope; // says where the rows of each sequence lie
    int drawsPerRow = 0;

private:
    void uploadDraws();

    const ModelConfig& config_;
    const CudaEngineOptions& options_;
    const BatchLayout& layout_;
    // The host's copy of what the device holds in `next` and `active`.
    Numbered<std::int32_t> nextHost_;
    Numbered<std::uint8_t> activeHost_;
};

} // namespace kvscope
