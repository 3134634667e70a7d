// Copies of pieces through shared memory by the bulk-copy engine. One thread drives a ring of stages: it waits until a
// piece has arrived in its stage, sends the piece on and asks for another. Each of these waits for memory, so that a
// thread block has several rings with a driving thread each, whose waits overlap.
#pragma once

#include "kernels/cuda/device/common.cuh"
#include "kernels/cuda/device/launch.cuh"

namespace kvscope::cuda {

constexpr int kStageBytes = 8192;

/// The rings of a thread block: it has kDrivers warps, and the first lane of each drives a ring of kStages stages.
/// LoneRings: nothing else runs on the GPU. 96 KiB leave the kernels that follow their cache.
struct LoneRings {
    static constexpr int kDrivers = 4, kStages = 3;
};
struct WideRings { // a few thread blocks beside other kernels: 192 KiB each
    static constexpr int kDrivers = 4, kStages = 6;
};
struct NarrowRings { // many thread blocks beside other kernels: 48 KiB each
    static constexpr int kDrivers = 2, kStages = 3;
};
template <class Rings>
constexpr std::size_t kRingBytes = std::size_t(Rings::kDrivers* Rings::kStages) * std::size_t(kStageBytes);

constexpr int kFewBlocks = 8;

inline bool takesWideRings(const Launch& how, int blocks) {
    return blocks <= kFewBlocks && kRingBytes<WideRings> + 1024 <= how.blockShared;
}

/// For a kernel that runs beside others: asks that a multiprocessor's memory be shared memory as far as possible. The
/// division stays while the kernel runs there, and kernels that need much shared memory must find room beside it.
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

/// The ring of one driving thread. A copy into a stage completes on the stage's barrier; copies out of stages complete
/// in the order of their groups.
template <class Rings> class CopyRing {
public:
    /// driver: which of the thread block's rings this is.
    __device__ CopyRing(char* rings, std::uint64_t* barriers, int driver)
        : ring_(unsigned(__cvta_generic_to_shared(rings)) + unsigned(driver * kStages * kStageBytes)),
          barriers_(unsigned(__cvta_generic_to_shared(barriers + driver * kStages))) {
        for (int i = 0; i < kStages; ++i)
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barriers_ + i * 8));
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }

    /// Moves pieceAt(0), .. pieceAt(count - 1) and returns when all are written. Calls arrived(i) when piece i is in
    /// shared memory.
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
            // Refills the stage whose copy out was begun kLeaving turns ago: that copy has most likely read it.
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
    static constexpr int kLeaving = kStages / 3; // so many copies out may be under way when a stage is refilled
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

/// Piece `within` of a block: from the host store to its slot for a load, the other way for a write-back.
__device__ inline CopyPiece pieceOf(const BlockMove& move, std::int64_t within, bool load, const GatherArgs& a,
                                    int blockBytes) {
    const std::size_t offset = std::size_t(within) * kStageBytes;
    const std::size_t store =
                          std::size_t(move.store) * unsigned(a.moves.storeUnits > 1 ? kStoreUnit : blockBytes) + offset,
                      slot = std::size_t(move.slot) * blockBytes + offset;
    const unsigned bytes = unsigned(min(std::int64_t(kStageBytes), std::int64_t(blockBytes) - std::int64_t(offset)));
    if (load) return {reinterpret_cast<const char*>(a.store) + store, reinterpret_cast<char*>(a.pool) + slot, bytes};
    return {reinterpret_cast<const char*>(a.pool) + slot, reinterpret_cast<char*>(a.storeOut) + store, bytes};
}

/// Moves a driving thread's share of the listed loads and write-backs: pieces go to the drivers of the grid in turn.
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
            // Another kernel writes `ready` while this one runs; until then it holds the time of an earlier step, which
            // is not after `begin`.
            const auto ready = *static_cast<const volatile std::uint64_t*>(a.ready);
            if (ready > *a.begin) atomicAdd(&a.late[a.moves.loads[index / pieces].slot / a.slots].late, 1u);
        });
}
#endif

} // namespace kvscope::cuda
