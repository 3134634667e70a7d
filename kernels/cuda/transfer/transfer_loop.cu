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

#if __CUDA_ARCH__ >= 900
/// What a driving thread moves at a layer: its share of the layer's loads, then of the write-backs of the layer before,
/// whose token was in its block before this layer was listed.
template <class Rings> class LayerShare {
public:
    /// Reads the lists of `layer`, which must be complete.
    __device__ LayerShare(const TransferLoopArgs& a, int layer, const BlockPieces& pieces)
        : loading_(a.gathers + layer), writing_(loading_ - 1) {
        const Drivers<Rings> drivers;
        if (layer < a.layers) {
            moves_ = loading_->moves.loads;
            storeUnit_ = loading_->moves.storeUnits > 1 ? kStoreUnit : pieces.blockBytes;
            from_ = reinterpret_cast<const char*>(loading_->store), to_ = reinterpret_cast<char*>(loading_->pool);
            countsLate_ = loading_->late != nullptr;
            blocks_ = loading_->moves.counts[0];
            loads_ = drivers.shareOf(blocks_ * pieces.count);
        }
        all_ = loads_;
        if (layer > a.first && a.writesBack) {
            written_ = writing_->moves.counts[1];
            all_ += drivers.shareOf(written_ * pieces.count);
        }
        CopyRing<Rings>::seeStores();
    }
    /// Pieces of this thread. The first ones are loads.
    __device__ int loads() const { return loads_; }
    __device__ int all() const { return all_; }
    __device__ bool allAsked() const { return asked_ == all_; }

    /// Asks for as many pieces as there is room for.
    __device__ void ask(CopyRing<Rings>& ring, const BlockPieces& pieces) {
        const Drivers<Rings> drivers;
        for (; asked_ < all_ && ring.hasRoom(); ++asked_) {
            const bool load = asked_ < loads_;
            const int index = drivers.mine + (load ? asked_ : asked_ - loads_) * drivers.all,
                      block = index / pieces.count, within = index - block * pieces.count;
            if (!load) {
                ring.ask(pieceOf(writing_->moves.writeBacks[block], within, false, *writing_, pieces));
                continue;
            }
            const BlockMove move = moves_[block];
            const int offset = within * pieces.bytes;
            ring.ask({from_ + move.store * storeUnit_ + offset, to_ + move.slot * pieces.blockBytes + offset,
                      unsigned(min(pieces.bytes, pieces.blockBytes - offset))});
        }
    }
    /// Load number `turn` of this thread is in shared memory.
    __device__ void arrived(int turn, const BlockPieces& pieces) const {
        const Drivers<Rings> drivers;
        if (countsLate_) countLate(*loading_, pieces, drivers.mine + turn * drivers.all);
    }
    /// Writes the time at which the loads begin, and how many blocks are moved. One thread of the grid calls this.
    __device__ void report(bool loads, bool writeBacks) const {
        if (loads) {
            stamp(loading_->mark);
            if (loading_->recordCounts != nullptr) loading_->recordCounts[0] = blocks_;
        }
        if (writeBacks && writing_->recordCounts != nullptr) writing_->recordCounts[1] = written_;
    }
    /// Says that this thread's loads of the layer are in their slots.
    __device__ void sayLoaded(std::uint32_t* loaded) const {
        stampLatest(loading_->endMark);
        __threadfence();
        atomicAdd(loaded, 1u);
    }

private:
    const GatherArgs *loading_, *writing_;
    const BlockMove* moves_ = nullptr;
    const char* from_ = nullptr;
    char* to_ = nullptr;
    bool countsLate_ = false;
    int storeUnit_ = 0;
    int blocks_ = 0, written_ = 0; // blocks that all threads load and write back
    int loads_ = 0, all_ = 0, asked_ = 0;
};
#endif

template <class Rings>
__global__ void __launch_bounds__(Rings::kDrivers* kWarp) loopKernel(TransferLoopArgs a, BlockPieces pieces) {
#if __CUDA_ARCH__ >= 900
    extern __shared__ __align__(128) char stages[];
    __shared__ RingMemory<Rings> memory;
    letNextKernelStart();
    waitForEarlierKernels();
    if (threadIdx.x % kWarp != 0) return;
    CopyRing<Rings> ring(stages, memory, int(threadIdx.x) / kWarp);
    waitFor(a.flags.listed + a.first, a.step);
    LayerShare<Rings> share(a, a.first, pieces), next = share;
    for (int layer = a.first;; ++layer, share = next) {
        const bool last = layer == a.layers; // has write-backs alone
        if (blockIdx.x == 0 && threadIdx.x == 0) share.report(!last, layer > a.first && a.writesBack);
        bool nextListed = false;
        const auto ask = [&](bool look) {
            share.ask(ring, pieces);
            if (last || !share.allAsked() || !ring.hasRoom()) return;
            if (look && !nextListed && acquire(a.flags.listed + layer + 1) >= a.step)
                nextListed = true, next = LayerShare<Rings>(a, layer + 1, pieces);
            if (nextListed) next.ask(ring, pieces);
        };
        if (!last && share.loads() == 0) share.sayLoaded(a.flags.loaded + layer);
        ask(false);
        for (int turn = 0; turn < share.all(); ++turn) {
            ring.await();
            if (turn < share.loads()) share.arrived(turn, pieces);
            ring.send();
            if (turn + 1 == share.loads()) {
                ask(false);
                ring.finish();
                share.sayLoaded(a.flags.loaded + layer);
            }
            ask(true);
        }
        if (last) break;
        if (nextListed) continue;
        waitFor(a.flags.listed + layer + 1, a.step);
        next = LayerShare<Rings>(a, layer + 1, pieces);
    }
    ring.finish();
#endif
}

__global__ void handOverKernel(TransferFlags flags, int listed, int awaited, int drivers, bool loopRuns,
                               std::uint64_t* mark) {
    if (loopRuns) letNextKernelStart(); // before that a waiting kernel could take the room that the loop needs
    waitForEarlierKernels();
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
           args, BlockPieces(args.blockBytes));
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

void handOver(const Launch& how, const TransferFlags& flags, int listed, int awaited, int blocks, bool loopRuns,
              std::uint64_t* readyMark) {
    const int drivers = blocks * (takesWideRings(how, blocks) ? WideRings::kDrivers : NarrowRings::kDrivers);
    launch(how, {dim3(1), dim3(1)}, handOverKernel, "handing a layer's list over", flags, listed, awaited, drivers,
           loopRuns, readyMark);
}

} // namespace kvscope::cuda
