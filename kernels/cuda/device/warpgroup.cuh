// Products of a warpgroup (four consecutive warps) on the Hopper generation, PTX's wgmma: operands come from shared
// memory, run asynchronously, and results stay in registers. Only files compiled for sm_90a have these instructions.
#pragma once

#include "kernels/cuda/device/bulk_copy.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

namespace kvscope::cuda {

constexpr int kWarpgroup = 128;

/// How a matrix of rows of 128 bytes (64 channels or tokens, bf16) lies in shared memory, as the tensor cores want to
/// be told: eight rows, permuted as bulk copies with the 128-byte swizzle leave them, are one piece of 1024 bytes.
/// `at`: on a multiple of 1024 bytes, plus 32 bytes for each 16 channels.
__device__ inline std::uint64_t rowsOf128Bytes(unsigned at) {
    constexpr std::uint64_t kPieceBytes = 1024, kSwizzle128 = std::uint64_t(1) << 62;
    return std::uint64_t((at & 0x3ffffu) >> 4) | std::uint64_t(1) << 16 | (kPieceBytes >> 4) << 32 | kSwizzle128;
}

/// Called after ordinary instructions have written registers that the next product adds to or multiplies.
__device__ inline void productsBegin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
/// The products asked for since the last call become one group.
__device__ inline void productsAsked() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
/// Waits until at most kLeft groups are under way.
template <int kLeft> __device__ inline void awaitProducts() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kLeft) : "memory");
}
/// The compiler puts a wait for products as early as it can, also before arithmetic that has nothing to do with them. A
/// store that it cannot leave out, of a value that is never infinite, keeps the wait behind the value's arithmetic.
__device__ inline void waitAfter(float value, float& spare) {
    asm volatile("{ .reg .pred never; setp.eq.f32 never, %0, 0f7F800000; @never st.shared.f32 [%1], %0; }" ::"f"(value),
                 "r"(sharedAddress(&spare))
                 : "memory");
}
/// Keeps the compiler from moving instructions on these registers across this place: it does not know that a product
/// under way writes them.
template <int kCount> __device__ inline void pinRegisters(float (&d)[kCount]) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

/// The whole warpgroup gives registers back, or takes them. Counts are multiples of 8.
template <int kRegisters> __device__ inline void keepRegisters() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters> __device__ inline void takeRegisters() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

/// Waits until `threads` threads have called this for the named barrier; 0 is that of __syncthreads.
template <int kBarrier> __device__ inline void joinNamed(int threads) {
    asm volatile("bar.sync %0, %1;" ::"n"(kBarrier), "r"(threads) : "memory");
}

// Lane l of warp w holds of a result d[64, n]: d[4j], d[4j+1] in row 16w + l/4, columns 8j + 2(l%4) and the next;
// d[4j+2], d[4j+3] in the row 8 below. Of an operand a[64, 16] in registers: the same columns of j = 0 in a[0] (row
// l/4) and a[1] (8 below), of j = 1 in a[2] and a[3].
#define KVSCOPE_EIGHT(d, i)                                                                                            \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]),        \
        "+f"(d[i + 7])

/// d[64, 128] = a[64, 16] b[128, 16]^T, or d += the same: both operands in shared memory.
__device__ inline void multiplyShared(float (&d)[64], std::uint64_t a, std::uint64_t b, bool add) {
    asm volatile("{ .reg .pred add; setp.ne.b32 add, %66, 0; "
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
                 "}, %64, %65, add, 1, 1, 0, 0; }"
                 : KVSCOPE_EIGHT(d, 0), KVSCOPE_EIGHT(d, 8), KVSCOPE_EIGHT(d, 16), KVSCOPE_EIGHT(d, 24),
                   KVSCOPE_EIGHT(d, 32), KVSCOPE_EIGHT(d, 40), KVSCOPE_EIGHT(d, 48), KVSCOPE_EIGHT(d, 56)
                 : "l"(a), "l"(b), "r"(int(add)));
}

/// d[64, 128] = a[64, 16] b[128, 16]^T, or d += the same: a in registers, b in shared memory.
__device__ inline void multiplyRegisters(float (&d)[64], const std::uint32_t (&a)[4], std::uint64_t b, bool add) {
    asm volatile("{ .reg .pred add; setp.ne.b32 add, %69, 0; "
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
                 "}, {%64, %65, %66, %67}, %68, add, 1, 1, 0; }"
                 : KVSCOPE_EIGHT(d, 0), KVSCOPE_EIGHT(d, 8), KVSCOPE_EIGHT(d, 16), KVSCOPE_EIGHT(d, 24),
                   KVSCOPE_EIGHT(d, 32), KVSCOPE_EIGHT(d, 40), KVSCOPE_EIGHT(d, 48), KVSCOPE_EIGHT(d, 56)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int(add)));
}

/// d[64, 64] = a[64, 16] b[64, 16]^T, or d += the same: a in registers, b in shared memory.
__device__ inline void multiplyRegisters(float (&d)[32], const std::uint32_t (&a)[4], std::uint64_t b, bool add) {
    asm volatile("{ .reg .pred add; setp.ne.b32 add, %37, 0; "
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
                 "}, {%32, %33, %34, %35}, %36, add, 1, 1, 0; }"
                 : KVSCOPE_EIGHT(d, 0), KVSCOPE_EIGHT(d, 8), KVSCOPE_EIGHT(d, 16), KVSCOPE_EIGHT(d, 24)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int(add)));
}

/// d[64, 32] = a[64, 16] b[32, 16]^T, or d += the same: a in registers, b in shared memory.
__device__ inline void multiplyRegisters(float (&d)[16], const std::uint32_t (&a)[4], std::uint64_t b, bool add) {
    asm volatile("{ .reg .pred add; setp.ne.b32 add, %21, 0; "
                 "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
                 "}, {%16, %17, %18, %19}, %20, add, 1, 1, 0; }"
                 : KVSCOPE_EIGHT(d, 0), KVSCOPE_EIGHT(d, 8)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int(add)));
}

/// d[64, 16] = a[64, 16] b[16, 16]^T, or d += the same: a in registers, b in shared memory.
__device__ inline void multiplyRegisters(float (&d)[8], const std::uint32_t (&a)[4], std::uint64_t b, bool add) {
    asm volatile("{ .reg .pred add; setp.ne.b32 add, %13, 0; "
                 "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7"
                 "}, {%8, %9, %10, %11}, %12, add, 1, 1, 0; }"
                 : KVSCOPE_EIGHT(d, 0)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int(add)));
}

#undef KVSCOPE_EIGHT

} // namespace kvscope::cuda

#endif
