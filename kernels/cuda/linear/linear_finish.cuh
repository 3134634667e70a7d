// What is done with the products of a linear layer: each struct is a `Finish`, see one_input.cuh.
#pragma once

#include "kernels/cuda/device/common.cuh"
#include "kernels/cuda/linear/gate.cuh"

namespace kvscope::cuda {

/// y = W x or y += W x, with a bias where there is one.
struct StoreFloats {
    static constexpr bool kPairs = false, kOnce = false;
    struct Ready {
        float bias, before;
    };
    float* y;
    int stride;
    bool accumulate;
    const float* bias;
    __device__ float& at(int output, int input) const { return y[std::size_t(input) * stride + output]; }
    __device__ int row(int output) const { return output; }
    __device__ int apart(int) const { return 0; }
    __device__ void prepare(Ready& ready, int output, int) const { ready.bias = bias != nullptr ? bias[output] : 0.f; }
    __device__ void await(Ready& ready, int output, int input) const {
        ready.before = accumulate ? at(output, input) : 0.f;
    }
    __device__ void finish(const Ready& ready, int output, int input, float value, float) const {
        value += ready.bias;
        at(output, input) = accumulate ? ready.before + value : value;
    }
};

/// What the rule makes of gate and up; the rows lie as interleavedRow says.
struct StoreGated {
    static constexpr bool kPairs = true, kOnce = false;
    struct Ready {};
    Bf16* hidden;
    int outputs;
    GateRule rule;
    __device__ int row(int output) const { return interleavedRow(output, false); }
    __device__ int apart(int) const { return 8; }
    __device__ void prepare(Ready&, int, int) const {}
    __device__ void await(Ready&, int, int) const {}
    __device__ void finish(const Ready&, int output, int input, float gate, float up) const {
        hidden[std::size_t(input) * outputs + output] = __float2bfloat16(gated(gate, up, rule));
    }
};

} // namespace kvscope::cuda
