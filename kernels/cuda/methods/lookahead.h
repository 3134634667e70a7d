// SparDA, NOSA and InfLLM-V2 with ahead=forecast, InfiniGen, and ArkVale with prefetch_layers=1: queries that are
// guessed one layer before the layer that they are for. Of the first three this is used while a prompt is read.
#pragma once

#include "kernels/cuda/device/check.h"
#include "kernels/cuda/device/kv_shape.h"
#include "kernels/cuda/token/token.h"

#include <cstdint>
#include <cuda_bf16.h>

namespace kvscope::cuda {

/// Makes rotated queries of a projection's outputs, as the layer itself would.
struct GuessArgs {
    int rows = 0, heads = 0, dim = 0;
    const float* projected = nullptr;           // [rows, heads*dim]
    const float *cos = nullptr, *sin = nullptr; // [table rows, dim/2]
    const std::int32_t* ropeFirst = nullptr;    // [rows] table row of a sequence's position 0
    const std::int32_t* position = nullptr;     // [rows]
    bool interleaved = false;                   // see RotateArgs
    bool oneSequence = false; // rows are consecutive tokens of one sequence from firstPosition on; ropeFirst has one
    int firstPosition = 0;
    const std::uint8_t* active = nullptr; // [rows] 0: skip the row; null: all
    const float* norm = nullptr;          // [dim] RMS norm of every head before the rotation; null: none
    float eps = 0;
    __nv_bfloat16* q = nullptr; // [rows, heads*dim]
};
void rotateGuess(const Launch& launch, const GuessArgs& args);

} // namespace kvscope::cuda
