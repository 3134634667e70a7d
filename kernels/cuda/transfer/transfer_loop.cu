#include "kernels/cuda/transfer/transfer_loop.h"

#include "kernels/cuda/device/common.cuh"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/transfer/copy_ring.cuh"

namespace kvscope::cuda {
namespace {

__device__ inline std::uint32_t acquire(const std::uint32_t* from) {
    std::uint32_t value;
    asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
    return value;
}

__device__ inline void waitFor(const std::uint32_t* word, std::uint32_t atLeast) {
    while (acquire(word) < atLeast) __nanosleep(100);
}

template <class Rings>
__global__ void __launch_bounds__(Rings::kDrivers* kWarp) loopKernel(TransferLoopArgs a, int blockBytesTotal) {
#if __CUDA_ARCH__ >= 900
    extern __shared__ __align__(128) char stages[];
    __shared__ __align__(8) std::uint64_t barriers[Rings::kDrivers * Rings::kStages];
    letNextKernelStart();
    waitForEarlierKernels();
    if (threadIdx.x % kWarp != 0) return;
    CopyRing<Rings> ring(stages, barriers, int(threadIdx.x) / kWarp);
    for (int layer = a.first; layer <= a.layers; ++layer) {
        waitFor(a.flags.listed + layer, a.step);
        if (layer < a.layers) {
            const GatherArgs gather = a.gathers[layer];
            const unsigned loads = gather.moves.counts[0];
            if (blockIdx.x == 0 && threadIdx.x == 0) {
                stamp(gather.mark);
                if (gather.recordCounts != nullptr) gather.recordCounts[0] = loads;
            }
            moveBlocks(ring, gather, loads, 0, blockBytesTotal);
            stampLatest(gather.endMark);
            __threadfence();
            atomicAdd(a.flags.loaded + layer, 1u);
        }
        if (layer > a.first) { // the token of the layer before was in its block before this layer was listed
            GatherArgs gather = a.gathers[layer - 1];
            gather.late = nullptr;
            const unsigned writes = gather.moves.counts[1];
            if (blockIdx.x == 0 && threadIdx.x == 0 && gather.recordCounts != nullptr) gather.recordCounts[1] = writes;
            moveBlocks(ring, gather, 0, writes, blockBytesTotal);
        }
    }
#endif
}

__global__ void handOverKernel(TransferFlags flags, int listed, int awaited, int drivers, std::uint64_t* mark) {
    waitForEarlierKernels(); // without letNextKernelStart: a waiting kernel could take the room that the loop needs
    stamp(mark);
    if (listed >= 0) {
        __threadfence();
        atomicAdd(flags.listed + listed, 1u);
    }
    // `loaded` lags one step behind `listed`: the step that is tried out before the first one runs without the loop.
    if (awaited >= 0) waitFor(flags.loaded + awaited, (acquire(flags.listed + awaited) - 1) * std::uint32_t(drivers));
}

constexpr std::uint64_t kPatienceNs = 20'000'000;

__global__ void sayGo(std::uint32_t* word) { atomicExch(word, 1u); }

__global__ void awaitGo(const std::uint32_t* word, std::uint32_t* seen) {
    const std::uint64_t begin = globalTimer();
    while (acquire(word) == 0 && globalTimer() - begin < kPatienceNs) __nanosleep(200);
    *seen = acquire(word);
}

template <class Rings> void launchLoop(const Launch& how, const TransferLoopArgs& args, int blocks) {
    const auto kernel = loopKernel<Rings>;
    allowShared(kernel, kRingBytes<Rings>, "preparing the transfers");
    leaveRoom(kernel, "preparing the transfers");
    launch(how, {dim3(unsigned(blocks)), dim3(Rings::kDrivers * kWarp), kRingBytes<Rings>}, kernel, "moving KV blocks",
           args, int(blockBytes(args.blockSize, args.dim)));
}

} // namespace

void runTransferLoop(const Launch& how, const TransferLoopArgs& args, int blocks) {
    takesWideRings(how, blocks) ? launchLoop<WideRings>(how, args, blocks) : launchLoop<NarrowRings>(how, args, blocks);
}

bool kernelsRunTogether(const Launch& one, const Launch& other, const TransferFlags& flags) {
    constexpr const char* kWhat = "trying two kernels at once";
    const auto clear = [&] {
        check(cudaMemset(flags.listed, 0, sizeof(std::uint32_t)), kWhat);
        check(cudaMemset(flags.loaded, 0, sizeof(std::uint32_t)), kWhat);
        check(cudaDeviceSynchronize(), kWhat);
    };
    Launch waits = other, goes = other;
    waits.joined = goes.joined = true;
    const auto await = [&] {
        launch(waits, {dim3(1), dim3(1)}, awaitGo, kWhat, static_cast<const std::uint32_t*>(flags.listed),
               flags.loaded);
    };
    const auto go = [&] { launch(goes, {dim3(1), dim3(1)}, sayGo, kWhat, flags.listed); };
    clear();
    go(); // one after the other, so that both are loaded: CUDA may wait for running kernels to end before it loads one
    await();
    check(cudaDeviceSynchronize(), kWhat);
    clear();
    waits.stream = one.stream;
    await();
    go();
    check(cudaDeviceSynchronize(), kWhat);
    std::uint32_t seen = 0;
    check(cudaMemcpy(&seen, flags.loaded, sizeof seen, cudaMemcpyDeviceToHost), kWhat);
    clear();
    return seen == 1;
}

void handOver(const Launch& how, const TransferFlags& flags, int listed, int awaited, int blocks,
              std::uint64_t* readyMark) {
    const int drivers = blocks * (takesWideRings(how, blocks) ? WideRings::kDrivers : NarrowRings::kDrivers);
    launch(how, {dim3(1), dim3(1)}, handOverKernel, "handing a layer's list over", flags, listed, awaited, drivers,
           readyMark);
}

} // namespace kvscope::cuda
