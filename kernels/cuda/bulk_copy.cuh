// Barriers in shared memory and the bulk copies that arrive at them.
#pragma once

#include "kernels/cuda/common.cuh"

namespace kvscope::cuda {

__device__ inline unsigned sharedAddress(const void* at) { return unsigned(__cvta_generic_to_shared(at)); }

#if __CUDA_ARCH__ >= 900
__device__ inline void initBarrier(std::uint64_t& barrier, unsigned arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(sharedAddress(&barrier)), "r"(arrivals));
}
__device__ inline void arrive(std::uint64_t& barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(sharedAddress(&barrier)) : "memory");
}
__device__ inline void expectBytes(std::uint64_t& barrier, unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(sharedAddress(&barrier)), "r"(bytes)
                 : "memory");
}
__device__ inline void waitFor(std::uint64_t& barrier, unsigned parity) {
    unsigned done = 0;
    while (done == 0)
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                     : "=r"(done)
                     : "r"(sharedAddress(&barrier)), "r"(parity)
                     : "memory");
}
__device__ inline void bulkLoad(void* to, const void* from, unsigned bytes, std::uint64_t& barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     sharedAddress(to)),
                 "l"(from), "r"(bytes), "r"(sharedAddress(&barrier))
                 : "memory");
}
#endif

} // namespace kvscope::cuda
