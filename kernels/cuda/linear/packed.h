// Stages qkv_linear, o_linear, ffn and lm_head with packed weights: GGUF's blocks, or bf16, with the bytes of the file
// rearranged into the order in which the tensor cores take them.
#pragma once

#include "kernels/cuda/device/check.h"
#include "kernels/cuda/linear/linear.h"
#include "kernels/kernels.h"

#include <cstddef>
#include <cstdint>
#include <cuda_bf16.h>

namespace kvscope::cuda {

/// 16 rows x `cols` columns: the unit of the packed order, [row tile][chunk]. A chunk has as many bits as the blocks of
/// the file. Lane l of a warp finds its share of the rows l/4 and l/4 + 8 in a few 16-byte pieces, beside those of the
/// neighbouring lanes. Matrices whose columns do not fill the last chunk, or whose rows do not fill the last tile, end
/// in zero weights.
struct PackedChunk {
    int cols, bytes;
};
constexpr PackedChunk packedChunk(DType type) {
    switch (type) {
    case DType::Q8_0:
        return {128, 2176};
    case DType::Q4_0:
        return {128, 1152};
    case DType::Q4_1:
        return {128, 1280};
    case DType::Q5_0:
        return {128, 1408};
    case DType::Q5_1:
        return {128, 1536};
    case DType::Q4_K:
        return {256, 2304};
    case DType::Q5_K:
        return {256, 2816};
    case DType::Q6_K:
        return {256, 3360};
    default: // bf16
        return {64, 2048};
    }
}
constexpr int packedChunks(DType type, int cols) {
    return (cols + packedChunk(type).cols - 1) / packedChunk(type).cols;
}
constexpr int packedTiles(int rows) { return (rows + 15) / 16; }
constexpr std::size_t packedBytes(DType type, int rows, int cols) {
    return std::size_t(packedTiles(rows)) * std::size_t(packedChunks(type, cols)) *
           std::size_t(packedChunk(type).bytes);
}

/// Packs rows of a file (device memory, row-major blocks as in ggml, or bf16) to `packed`, which is 16-byte aligned.
/// high null: `low` holds all rows. Else `low` and `high` are gate and up, of which every tile gets 8 rows each (see
/// interleavedRow). rows: those of the packed matrix, gate and up together.
void packRows(const Launch& launch, DType type, const void* low, const void* high, int rows, int cols,
              std::byte* packed);

/// Writes the packed rows [firstRow, firstRow + rows) as bf16, row-major. firstRow is a multiple of 16.
void unpackRows(const Launch& launch, DType type, const std::byte* packed, int cols, int firstRow, int rows,
                __nv_bfloat16* out);

/// x[i, :] = scale * row ids[i] of the packed matrix. Sets `clear` to zero, as embedTokens does.
void embedPacked(const Launch& launch, DType type, const std::byte* packed, int cols, const std::int32_t* ids, int n,
                 float* x, float scale, std::uint32_t* clear, int clearCount, std::uint64_t* mark);

/// The lists of each expert's inputs, on the device. counts null: there is one matrix for all inputs.
struct ExpertGroups {
    const std::int32_t* counts = nullptr; // [experts] number of inputs
    const std::int32_t* pairs = nullptr;  // [experts, capacity] inputs as pairs token * used + choice, ascending
    int experts = 0, capacity = 0, used = 1;
    bool inputPerPair = false; // the input of a pair is row `pair`; else row pair / used
    std::size_t bytes = 0;     // from one expert's packed matrix to the next one's
};

/// y = W x with packed weights, for a few inputs or for the inputs of many experts.
struct PackedProduct {
    const std::byte* w = nullptr;
    DType type = DType::BF16;
    int rows = 0, cols = 0;
    const float* x = nullptr;             // one float input [cols], normalised by normWeight if that is set; or null
    const __nv_bfloat16* xHalf = nullptr; // [n, cols] inputs in bf16, where x is null
    int n = 0;
    const float* normWeight = nullptr;
    float normEps = 0;
    float* y = nullptr; // this and the next fields: see LinearOutput
    int stride = 0;
    bool accumulate = false;
    const float* bias = nullptr;
    __nv_bfloat16* hidden = nullptr;
    GateRule gate = {};
    std::uint64_t* mark = nullptr;
    ExpertGroups groups; // the output of a pair is row `pair`
};

/// Most inputs that one launch takes without groups.
constexpr int kPackedInputs = 16;
/// Most columns of a float input, which lies in shared memory: some GPUs have more of it than others.
int packedFloatCols(const Launch& launch);

/// A single input is split into the sum of two bf16 numbers, which keeps 16 bits of it. Several inputs are bf16. The
/// weights' integers are exact, and sums are float32. With groups, n is the number of tokens, and every expert takes
/// the inputs of its list.
void multiplyPacked(const Launch& launch, const PackedProduct& product);

} // namespace kvscope::cuda
