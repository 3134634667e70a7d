#include "kernels/cuda/transfer/gather.h"

#include "kernels/cuda/device/common.cuh"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/transfer/copy_ring.cuh"

namespace kvscope::cuda {
namespace {

template <class Rings> __global__ void __launch_bounds__(512) gatherKernel(GatherArgs a, BlockPieces pieces) {
    using Part = GatherArgs::Part;
#if __CUDA_ARCH__ >= 900
    extern __shared__ __align__(128) char stages[];
    __shared__ RingMemory<Rings> memory;
    letNextKernelStart();
    if (threadIdx.x % kWarp != 0) return;
    CopyRing<Rings> ring(stages, memory, int(threadIdx.x) / kWarp);
    waitForEarlierKernels();
    const unsigned loads = a.part == Part::WriteBacks ? 0 : a.moves.counts[0],
                   writes = a.part == Part::Loads ? 0 : a.moves.counts[1];
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        stamp(a.mark);
        if (a.recordCounts != nullptr && a.part != Part::WriteBacks) a.recordCounts[0] = loads;
        if (a.recordCounts != nullptr && a.part != Part::Loads) a.recordCounts[1] = writes;
    }
    moveBlocks(ring, a, loads, writes, pieces);
    stampLatest(a.endMark);
#else
    // Plain 16-byte loads, four in flight per thread.
    letNextKernelStart();
    waitForEarlierKernels();
    const std::uint32_t loads = a.part == Part::WriteBacks ? 0 : a.moves.counts[0],
                        writes = a.part == Part::Loads ? 0 : a.moves.counts[1], all = loads + writes;
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        stamp(a.mark);
        if (a.recordCounts != nullptr && a.part != Part::WriteBacks) a.recordCounts[0] = loads;
        if (a.recordCounts != nullptr && a.part != Part::Loads) a.recordCounts[1] = writes;
    }
    const int words = pieces.blockBytes / 16;
    for (std::uint32_t m = blockIdx.x; m < all; m += gridDim.x) {
        const bool load = m < loads;
        const BlockMove move = load ? a.moves.loads[m] : a.moves.writeBacks[m - loads];
        const char* store = reinterpret_cast<const char*>(a.store) +
                            std::size_t(move.store) * unsigned(a.moves.storeUnits > 1 ? kStoreUnit : pieces.blockBytes);
        char* slot = reinterpret_cast<char*>(a.pool) + std::size_t(move.slot) * unsigned(pieces.blockBytes);
        const uint4* from = reinterpret_cast<const uint4*>(load ? store : slot);
        uint4* to = reinterpret_cast<uint4*>(load ? slot : const_cast<char*>(store));
#pragma unroll 4
        for (int i = threadIdx.x; i < words; i += blockDim.x) to[i] = loadOnce(from + i);
        __syncthreads();
        if (threadIdx.x == 0 && load && a.late != nullptr) {
            const auto ready = *static_cast<const volatile std::uint64_t*>(a.ready);
            if (ready > *a.begin) atomicAdd(&a.late[move.slot / a.slots].late, 1u);
        }
    }
    if (threadIdx.x == 0) stampLatest(a.endMark);
#endif
}

template <class Rings> void launchGather(const Launch& how, const GatherArgs& args, int blocks) {
    constexpr const char* kName = "preparing the transfers";
    const auto kernel = gatherKernel<Rings>;
    const bool bulk = how.clusters;
    const Grid grid{dim3(unsigned(bulk ? blocks : blocks * 4)), dim3(bulk ? Rings::kDrivers * kWarp : 512),
                    bulk ? kRingBytes<Rings> : 0};
    if (bulk) allowShared(kernel, kRingBytes<Rings>, kName);
    if (args.beside)
        leaveRoom(kernel, kName);
    else if (bulk)
        leaveCache(kernel, kName);
    launch(how, grid, kernel, "moving KV blocks", args, BlockPieces(args.bytesOfBlock()));
}

} // namespace

/// A transfer alone and transfers beside other kernels are three different kernels: the driver keeps, for each kernel,
/// the division into cache and shared memory that was asked for last.
void gatherBlocks(const Launch& how, const GatherArgs& args, int blocks) {
    if (!args.beside)
        launchGather<LoneRings>(how, args, blocks);
    else if (takesWideRings(how, blocks))
        launchGather<WideRings>(how, args, blocks);
    else
        launchGather<NarrowRings>(how, args, blocks);
}

} // namespace kvscope::cuda
