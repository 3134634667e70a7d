// Copies of 16 bytes by a thread, from memory to shared memory.
#pragma once

#include "kernels/cuda/device/common.cuh"

namespace kvscope::cuda {

__device__ inline void copyToShared(void* to, const void* from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" ::"r"(unsigned(__cvta_generic_to_shared(to))), "l"(from)
                 : "memory");
}
__device__ inline void closeCopies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kOpen> __device__ inline void waitForCopies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(kOpen) : "memory");
}

} // namespace kvscope::cuda
