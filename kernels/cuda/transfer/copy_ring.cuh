// Copies of pieces through shared memory by the bulk-copy engine. One thread drives a ring of stages: it waits until a
// piece has arrived in its stage, sends the piece on and asks for another. Each of these waits for memory, so that a
// thread block has several rings with a driving thread each, whose waits overlap.
#pragma once

#include "kernels/cuda/device/common.cuh"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/transfer/gather.h"

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

/// A block as pieces of a ring, all of the same size but the last.
struct BlockPieces {
    int blockBytes, count, bytes;
    __host__ __device__ explicit BlockPieces(int wholeBytes)
        : blockBytes(wholeBytes), count((wholeBytes + kStageBytes - 1) / kStageBytes),
          bytes(((wholeBytes + count - 1) / count + 127) / 128 * 128) {}
};

#if __CUDA_ARCH__ >= 900
struct CopyPiece {
    const char* from;
    char* to;
    unsigned bytes; // at most kStageBytes
};

/// What the rings of a thread block keep beside their stages.
template <class Rings> struct RingMemory {
    static constexpr int kAll = Rings::kDrivers * Rings::kStages;
    alignas(8) std::uint64_t barriers[kAll];
    char* to[kAll]; // where the piece in a stage goes
    unsigned bytes[kAll];
};

/// The ring of one driving thread. Pieces are asked for and sent on in the same order. A copy into a stage completes on
/// the stage's barrier; copies out of stages complete in the order of their groups.
template <class Rings> class CopyRing {
public:
    /// driver: which of the thread block's rings this is.
    __device__ CopyRing(char* rings, RingMemory<Rings>& memory, int driver)
        : ring_(unsigned(__cvta_generic_to_shared(rings)) + unsigned(driver * kStages * kStageBytes)),
          barriers_(unsigned(__cvta_generic_to_shared(memory.barriers + driver * kStages))),
          to_(memory.to + driver * kStages), bytes_(memory.bytes + driver * kStages) {
        for (int i = 0; i < kStages; ++i)
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barriers_ + i * 8));
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }

    /// Whether a stage is free for the next piece.
    __device__ bool hasRoom() const { return asked_ < room_; }
    /// Pieces that were asked for and not sent on.
    __device__ unsigned underWay() const { return asked_ - sent_; }

    /// Asks for a piece. There must be room. Lists and blocks that ordinary stores have written are seen after
    /// seeStores().
    __device__ void ask(const CopyPiece& piece) {
        to_[asking_] = piece.to, bytes_[asking_] = piece.bytes;
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barriers_ + asking_ * 8),
                     "r"(piece.bytes)
                     : "memory");
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                         ring_ + asking_ * kStageBytes),
                     "l"(piece.from), "r"(piece.bytes), "r"(barriers_ + asking_ * 8)
                     : "memory");
        ++asked_;
        if (++asking_ == kStages) asking_ = 0;
    }
    /// Waits until the oldest piece under way is in shared memory.
    __device__ void await() const {
        unsigned done = 0;
        while (done == 0)
            asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                         : "=r"(done)
                         : "r"(barriers_ + sending_ * 8), "r"(parity_)
                         : "memory");
    }
    /// Sends that piece to its place. The stage of the piece that was sent kLeaving pieces before becomes free: it has
    /// most likely been read.
    __device__ void send() {
        asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to_[sending_]),
                     "r"(ring_ + sending_ * kStageBytes), "r"(bytes_[sending_])
                     : "memory");
        asm volatile("cp.async.bulk.commit_group;");
        asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kLeaving) : "memory");
        ++sent_;
        if (++sending_ == kStages) sending_ = 0, parity_ ^= 1;
        room_ = max(unsigned(kStages), sent_ + unsigned(kStages - kLeaving));
    }
    /// Waits until all pieces that were sent are in their places.
    __device__ void finish() {
        asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
        room_ = sent_ + unsigned(kStages);
    }
    __device__ static void seeStores() { asm volatile("fence.proxy.async;" ::: "memory"); }

    /// Moves pieceAt(0), .. pieceAt(count - 1) and returns when all are written. Calls arrived(i) when piece i is in
    /// shared memory. No other pieces may be under way.
    template <class PieceAt, class Arrived>
    __device__ void move(int count, const PieceAt& pieceAt, const Arrived& arrived) {
        seeStores();
        int next = 0;
        for (int i = 0; i < count; ++i) {
            for (; next < count && hasRoom(); ++next) ask(pieceAt(next));
            await();
            arrived(i);
            send();
        }
        finish();
    }

private:
    static constexpr int kStages = Rings::kStages;
    static constexpr int kLeaving = kStages / 3; // so many copies out may be under way when a stage is refilled
    unsigned ring_, barriers_;
    char** to_;
    unsigned* bytes_;
    unsigned asked_ = 0, sent_ = 0, room_ = kStages, asking_ = 0, sending_ = 0, parity_ = 0;
};

/// The drivers of a grid, to which pieces go in turn.
template <class Rings> struct Drivers {
    int mine, all;
    __device__ Drivers()
        : mine(int(threadIdx.x) / kWarp * int(gridDim.x) + int(blockIdx.x)), all(int(gridDim.x) * Rings::kDrivers) {}
    /// How many of `pieces` pieces are this driver's.
    __device__ int shareOf(int pieces) const { return mine < pieces ? (pieces - mine + all - 1) / all : 0; }
};

/// Piece `within` of a block: from the host store to its slot for a load, the other way for a write-back.
__device__ inline CopyPiece pieceOf(const BlockMove& move, int within, bool load, const GatherArgs& a,
                                    const BlockPieces& pieces) {
    const int offset = within * pieces.bytes;
    const std::int64_t store = move.store * (a.moves.storeUnits > 1 ? kStoreUnit : pieces.blockBytes) + offset,
                       slot = move.slot * pieces.blockBytes + offset;
    const unsigned bytes = unsigned(min(pieces.bytes, pieces.blockBytes - offset));
    if (load) return {reinterpret_cast<const char*>(a.store) + store, reinterpret_cast<char*>(a.pool) + slot, bytes};
    return {reinterpret_cast<const char*>(a.pool) + slot, reinterpret_cast<char*>(a.storeOut) + store, bytes};
}

/// Counts the block of a load as late of its head, if its last piece has arrived after the layer was ready for it.
__device__ inline void countLate(const GatherArgs& a, const BlockPieces& pieces, int piece) {
    if (a.late == nullptr || piece % pieces.count != pieces.count - 1) return;
    // Another kernel writes `ready` while this one runs; until then it holds the time of an earlier step, which
    // is not after `begin`.
    const auto ready = *static_cast<const volatile std::uint64_t*>(a.ready);
    if (ready > *a.begin) atomicAdd(&a.late[a.moves.loads[piece / pieces.count].slot / a.slots].late, 1u);
}

/// Moves a driving thread's share of the listed loads and write-backs: pieces go to the drivers of the grid in turn.
template <class Rings>
__device__ inline void moveBlocks(CopyRing<Rings>& ring, const GatherArgs& a, unsigned toLoad, unsigned toWrite,
                                  const BlockPieces& pieces) {
    const Drivers<Rings> drivers;
    const int loads = int(toLoad) * pieces.count, all = loads + int(toWrite) * pieces.count,
              mine = drivers.shareOf(all);
    if (mine == 0) return;
    ring.move(
        mine,
        [&](int turn) {
            const int index = drivers.mine + turn * drivers.all;
            const bool load = index < loads;
            const int at = load ? index : index - loads, block = at / pieces.count;
            const BlockMove move = load ? a.moves.loads[block] : a.moves.writeBacks[block];
            return pieceOf(move, at - block * pieces.count, load, a, pieces);
        },
        [&](int turn) {
            const int index = drivers.mine + turn * drivers.all;
            if (index < loads) countLate(a, pieces, index);
        });
}
#endif

} // namespace kvscope::cuda
