// For hopper_prefill and hopper_blocks: the stages of shared memory through which the warpgroup that loads hands tiles
// of keys and values to the warpgroups that compute, and the question whether a GPU has code for such kernels.
#pragma once

#include "kernels/cuda/device/warpgroup.cuh"

#include <cstdint>

namespace kvscope::cuda {

constexpr int kGroupRows = 64; // queries of a warpgroup

/// The barriers of a ring of stages. A stage is full when its copies have arrived, and empty when all have read it.
template <int kRing> struct StageBarriers { std::uint64_t full[kRing], empty[kRing]; };

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/// One thread calls this before the others use the barriers. readers: how many arrivals say that a stage was read
template <int kRing>
__device__ inline void initStages(StageBarriers<kRing>& keys, StageBarriers<kRing>& values, unsigned readers) {
    for (int i = 0; i < kRing; ++i) {
        initBarrier(keys.full[i], 1), initBarrier(keys.empty[i], readers);
        initBarrier(values.full[i], 1), initBarrier(values.empty[i], readers);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/// The next stage of a ring, and how often it has been used.
template <int kRing> struct StageTurn {
    int stage = 0;
    unsigned round = 0;
    __device__ void advance() {
        if (++stage == kRing) stage = 0, ++round;
    }
    __device__ void awaitFull(StageBarriers<kRing>& ring) const { waitFor(ring.full[stage], round & 1); }
    __device__ void awaitEmpty(StageBarriers<kRing>& ring) const { waitFor(ring.empty[stage], ~round & 1); }
};

/// Writes zeros in the place of all but the first `known` of eight neighbouring numbers of 2 bytes.
__device__ inline void clearBehind(uint4& eight, int known) {
    if (known <= 0) {
        eight = make_uint4(0, 0, 0, 0);
    } else {
        for (int i = known; i < 8; ++i) reinterpret_cast<std::uint16_t*>(&eight)[i] = 0;
    }
}

/// Called after ordinary stores to shared memory, and before products that read it.
__device__ inline void showToProducts() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/// The sum over the four lanes that hold one row of a product.
__device__ inline float quadSum(float sum) {
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    return sum + __shfl_xor_sync(0xffffffffu, sum, 2);
}

#endif

/// Whether the driver finds code for this GPU in a kernel that is compiled for compute capability 9.0 alone.
template <class... Parameters> bool runsHere(void (*kernel)(Parameters...)) {
    cudaFuncAttributes attributes{};
    const cudaError_t code = cudaFuncGetAttributes(&attributes, kernel);
    if (code != cudaSuccess) cudaGetLastError(); // the refusal is answered here and must not be reported again
    return code == cudaSuccess;
}

inline bool onSixteenBytes(const void* at) { return reinterpret_cast<std::uintptr_t>(at) % 16 == 0; }

} // namespace kvscope::cuda
