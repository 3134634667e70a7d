// Copies of pieces through shared memory by the bulk-copy engine. A thread drives a ring: it waits for a piece, sends
// it on and asks for another, each a trip to memory, so that a thread block has several and their waits overlap.
#pragma once

#include "kernels/cuda/select.h"

#include "kernels/cuda/common.cuh"
#include "kernels/cuda/launch.cuh"

namespace kvscope::cuda {

constexpr int kStageBytes = 8192;

/// Of a thread block: the first lane of each of so many warps drives a ring of so many stages.
struct LoneRings { // with the GPU to themselves: 96 KiB, which leaves the kernels that follow their cache
    static constexpr int kDrivers = 4, kStages = 3;
};
struct WideRings { // of few thread blocks beside other kernels: 192 KiB
    static constexpr int kDrivers = 4, kStages = 6;
};
struct NarrowRings { // of many: 48 KiB
    static constexpr int kDrivers = 2, kStages = 3;
};
template <class Rings>
constexpr std::size_t kRingBytes = std::size_t(Rings::kDrivers* Rings::kStages) * std::size_t(kStageBytes);

constexpr int kFewBlocks = 8;

inline bool takesWideRings(const Launch& how, int blocks) {
    return blocks <= kFewBlocks && kRingBytes<WideRings> + 1024 <= how.blockShared;
}

/// A processor's division into cache and shared memory stays while a kernel runs there: all of it shared, so that
/// others with more shared memory find room beside.
template <class... Parameters> void leaveRoom(void (*kernel)(Parameters...), const char* name) {
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared),
          name);
}

#if __CUDA_ARCH__ >= 900
struct CopyPiece {
    const char* from;
    char* to;
    unsigned bytes; // at most kStageBytes
};

/// The ring of one driver: copies in complete on a barrier, copies out in groups.
template <class Rings> class CopyRing {
public:
    /// Of a driver's warp among those of the thread block.
    __device__ CopyRing(char* rings, std::uint64_t* barriers, int driver)
        : ring_(unsigned(__cvta_generic_to_shared(rings)) + unsigned(driver * kStages * kStageBytes)),
          barriers_(unsigned(__cvta_generic_to_shared(barriers + driver * kStages))) {
        for (int i = 0; i < kStages; ++i)
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barriers_ + i * 8));
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }

    /// Moves pieceAt(0), .. pieceAt(count - 1) and returns when all are written; arrived(i): piece i is here.
    template <class PieceAt, class Arrived>
    __device__ void move(std::int64_t count, const PieceAt& pieceAt, const Arrived& arrived) {
        asm volatile("fence.proxy.async;" ::: "memory"); // lists and blocks were written by ordinary stores
        const std::int64_t ahead = min(count, std::int64_t(kStages));
        for (std::int64_t i = 0; i < ahead; ++i) copyIn(i, pieceAt(i));
        for (std::int64_t i = 0; i < count; ++i) {
            const unsigned stage = unsigned((turns_ + i) % kStages), parity = unsigned((turns_ + i) / kStages & 1);
            unsigned done = 0;
            while (done == 0)
                asm volatile(
                    "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                    : "=r"(done)
                    : "r"(barriers_ + stage * 8), "r"(parity)
                    : "memory");
            arrived(i);
            const CopyPiece piece = pieceAt(i);
            asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(piece.to),
                         "r"(ring_ + stage * kStageBytes), "r"(piece.bytes)
                         : "memory");
            asm volatile("cp.async.bulk.commit_group;");
            // Refill the stage whose copy out has most likely been read.
            const std::int64_t next = i + kStages - kLeaving;
            if (next >= kStages && next < count) {
                asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kLeaving) : "memory");
                copyIn(next, pieceAt(next));
            }
        }
        turns_ += count;
        asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    }

private:
    static constexpr int kStages = Rings::kStages;
    static constexpr int kLeaving = kStages / 3; // stages whose copies out may be under way
    __device__ void copyIn(std::int64_t i, const CopyPiece& piece) const {
        const unsigned stage = unsigned((turns_ + i) % kStages);
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barriers_ + stage * 8),
                     "r"(piece.bytes)
                     : "memory");
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                         ring_ + stage * kStageBytes),
                     "l"(piece.from), "r"(piece.bytes), "r"(barriers_ + stage * 8)
                     : "memory");
    }
    unsigned ring_, barriers_;
    std::int64_t turns_ = 0;
};

/// Piece `index` of the blocks of a list.
__device__ inline CopyPiece pieceOf(const BlockMove& move, std::int64_t within, bool load, const GatherArgs& a,
                                    int blockBytes) {
    const std::size_t offset = std::size_t(within) * kStageBytes;
    const std::size_t store = std::size_t(move.store) * blockBytes + offset,
                      slot = std::size_t(move.slot) * blockBytes + offset;
    const unsigned bytes = unsigned(min(std::int64_t(kStageBytes), std::int64_t(blockBytes) - std::int64_t(offset)));
    if (load) return {reinterpret_cast<const char*>(a.store) + store, reinterpret_cast<char*>(a.pool) + slot, bytes};
    return {reinterpret_cast<const char*>(a.pool) + slot, reinterpret_cast<char*>(a.storeOut) + store, bytes};
}

/// A driver's share of the listed loads and write-backs, among all drivers of the grid.
template <class Rings>
__device__ inline void moveBlocks(CopyRing<Rings>& ring, const GatherArgs& a, unsigned toLoad, unsigned toWrite,
                                  int blockBytes) {
    const int driver = int(threadIdx.x) / kWarp * int(gridDim.x) + int(blockIdx.x),
              drivers = int(gridDim.x) * Rings::kDrivers;
    const int pieces = (blockBytes + kStageBytes - 1) / kStageBytes;
    const std::int64_t loads = std::int64_t(toLoad) * pieces, all = loads + std::int64_t(toWrite) * pieces;
    const std::int64_t mine = driver < all ? (all - driver + drivers - 1) / drivers : 0;
    if (mine == 0) return;
    ring.move(
        mine,
        [&](std::int64_t turn) {
            const std::int64_t index = driver + turn * drivers;
            const bool load = index < loads;
            const std::int64_t at = load ? index : index - loads;
            const BlockMove move = load ? a.moves.loads[at / pieces] : a.moves.writeBacks[at / pieces];
            return pieceOf(move, at % pieces, load, a, blockBytes);
        },
        [&](std::int64_t turn) {
            const std::int64_t index = driver + turn * drivers;
            if (a.late == nullptr || index >= loads || index % pieces != pieces - 1) return;
            // The mark is written while this kernel runs, and holds an earlier step's time until then.
            const auto ready = *static_cast<const volatile std::uint64_t*>(a.ready);
            if (ready > *a.begin) atomicAdd(&a.late[a.moves.loads[index / pieces].slot / a.slots].late, 1u);
        });
}
#endif

} // namespace kvscope::cuda
