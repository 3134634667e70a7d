// Shared by the CUDA kernels: types, warp reductions, the tensor-core instruction and ordering between graph nodes.
#pragma once

#include <cooperative_groups.h>
#include <cstdint>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

namespace kvscope::cuda {

using Bf16 = __nv_bfloat16;

constexpr int kWarp = 32;
constexpr float kLog2e = 1.4426950408889634f;

/// Waits until the kernel before this one has ended. A kernel reads what earlier kernels wrote only after this call; it
/// may read weights, which no kernel writes, before. Every kernel of a step calls this: when one kernel's wait is over,
/// all kernels before it have ended too.
__device__ inline void waitForEarlierKernels() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// Lets the next kernel start on multiprocessors that this kernel leaves free, up to its wait for this kernel.
__device__ inline void letNextKernelStart() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

__device__ inline std::uint64_t globalTimer() {
    std::uint64_t now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    return now;
}

/// Writes the time at which this kernel's work begins. One thread of the grid calls it, after the wait.
__device__ inline void stamp(std::uint64_t* mark) {
    if (mark != nullptr) *mark = globalTimer();
}

/// Writes the time at which the last caller calls; one thread of each thread block is a caller. The mark of an earlier
/// step need not be cleared, because the timer only rises and the largest time stays.
__device__ inline void stampLatest(std::uint64_t* mark) {
    if (mark != nullptr) atomicMax(reinterpret_cast<unsigned long long*>(mark), globalTimer());
}

#if __CUDA_ARCH__ >= 900
__device__ inline auto thisCluster() { return cooperative_groups::this_cluster(); }
#else
/// Stands for a cluster on GPUs without clusters: every thread block is a cluster of its own.
struct Alone {
    __device__ unsigned num_blocks() const { return 1; }
    __device__ unsigned block_rank() const { return 0; }
    template <class T> __device__ T* map_shared_rank(T* at, int) const { return at; }
    __device__ void sync() const { __syncthreads(); }
    __device__ void barrier_arrive() const {}
    __device__ void barrier_wait() const { __syncthreads(); } // a cluster's barrier is a thread block's barrier too
};
__device__ inline Alone thisCluster() { return {}; }
#endif

/// Where a head's part of an array begins: where a table says, or, without a table, behind the parts of `size` elements
/// of all heads before.
__device__ inline std::int64_t partFirst(const std::int64_t* table, int head, int size) {
    return table != nullptr ? table[head] : std::int64_t(head) * size;
}

__device__ inline float warpSum(float value) {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
    return value;
}

__device__ inline float warpMax(float value) {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, offset));
    return value;
}

__device__ inline float silu(float x) { return x / (1.f + __expf(-x)); }

/// 16 bytes of constant data, read once.
__device__ inline uint4 loadStreaming(const void* from) {
    uint4 value;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                 : "l"(from));
    return value;
}

/// 16 bytes that an earlier kernel may have written, read once.
__device__ inline uint4 loadOnce(const void* from) {
    uint4 value;
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                 : "l"(from)
                 : "memory");
    return value;
}

/// Two bf16 packed in a word, widened.
__device__ inline float lowHalf(std::uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ inline float highHalf(std::uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); }

__device__ inline std::uint32_t packBf16(float low, float high) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return reinterpret_cast<const std::uint32_t&>(pair);
}

/// c += a b, one 16x8 tile, 16 deep, bf16 in, float accumulation. Lane l holds of A rows l/4 and l/4+8, of B and C
/// columns as in the PTX manual (mma.m16n8k16).
__device__ inline void mma16816(float (&c)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2, std::uint32_t a3,
                                std::uint32_t b0, std::uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

} // namespace kvscope::cuda
