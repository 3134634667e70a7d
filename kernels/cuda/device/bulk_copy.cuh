// Barriers in shared memory and the bulk copies that arrive at them.
#pragma once

#include "kernels/cuda/device/common.cuh"

#include <cuda.h>

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
/// One box of a tensor map, see block_maps.h.
__device__ inline void boxLoad(void* to, const CUtensorMap& map, int x, int y, int z, std::uint64_t& barrier) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, "
                 "%3, %4}], [%5];" ::"r"(sharedAddress(to)),
                 "l"(&map), "r"(x), "r"(y), "r"(z), "r"(sharedAddress(&barrier))
                 : "memory");
}
__device__ inline void boxLoad(void* to, const CUtensorMap& map, int x, int y, int z, int w, std::uint64_t& barrier) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, "
                 "%3, %4, %5}], [%6];" ::"r"(sharedAddress(to)),
                 "l"(&map), "r"(x), "r"(y), "r"(z), "r"(w), "r"(sharedAddress(&barrier))
                 : "memory");
}
__device__ inline void prefetchMap(const CUtensorMap& map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}
/// Brings a line of memory into the L2 cache. May be called before the wait for earlier kernels that write the line,
/// because nobody reads it here and the L2 cache sees their writes.
__device__ inline void prefetchLine(const void* at) { asm volatile("prefetch.global.L2 [%0];" ::"l"(at)); }
#endif

} // namespace kvscope::cuda
