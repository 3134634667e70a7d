#include "kernels/cuda/transfer/slot_pool.h"

#include "kernels/cuda/device/common.cuh"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/transfer/slot_pool_steps.h"

namespace kvscope::cuda {
namespace {

constexpr int kPoolThreads = 1024;

/// A thread block as a team of PoolSteps.
class BlockTeam {
public:
    static constexpr int threads = kPoolThreads;
    struct Shared {
        std::int64_t number;
        int sums[2][kPoolThreads / kWarp];
    };

    __device__ explicit BlockTeam(Shared& memory) : thread(int(threadIdx.x)), shared(&memory.number), memory_(memory) {}

    __device__ void sync() { __syncthreads(); }
    /// Calls alternate between two rows of sums, so that one barrier is enough.
    __device__ int prefix(int value, int& all) {
        const int lane = thread % kWarp, warp = thread / kWarp;
        int sum = value;
#pragma unroll
        for (int step = 1; step < kWarp; step *= 2) {
            const int lower = __shfl_up_sync(0xffffffffu, sum, step);
            if (lane >= step) sum += lower;
        }
        int* const sums = memory_.sums[turn_ ^= 1];
        if (lane == kWarp - 1) sums[warp] = sum;
        __syncthreads();
        const int ofWarp = sums[lane];
        all = __reduce_add_sync(0xffffffffu, ofWarp);
        return sum - value + __reduce_add_sync(0xffffffffu, lane < warp ? ofWarp : 0);
    }
    template <class T> __device__ T add(T* at, T value) { return atomicAdd(at, value); }

    const int thread;
    std::int64_t* const shared;

private:
    Shared& memory_;
    int turn_ = 0;
};
static_assert(kPoolThreads / kWarp == kWarp, "a lane reads the sum of one warp");

__global__ void __launch_bounds__(kPoolThreads) lookUpKernel(PoolArgs a) {
    __shared__ BlockTeam::Shared shared;
    BlockTeam team(shared);
    letNextKernelStart();
    waitForEarlierKernels();
    if (threadIdx.x == 0) stamp(a.mark);
    PoolSteps<BlockTeam>(a.state, team).lookUp(a);
}

__global__ void __launch_bounds__(kPoolThreads) releaseKernel(PoolState state, std::int32_t* slotOf, int blocks) {
    __shared__ BlockTeam::Shared shared;
    BlockTeam team(shared);
    letNextKernelStart();
    waitForEarlierKernels();
    PoolSteps<BlockTeam>(state, team).release(slotOf, blocks);
}

__global__ void __launch_bounds__(kPoolThreads) clearKernel(PoolState state) {
    __shared__ BlockTeam::Shared shared;
    BlockTeam team(shared);
    letNextKernelStart();
    waitForEarlierKernels();
    PoolSteps<BlockTeam>(state, team).clear();
}

Grid oneTeam() { return {dim3(1), dim3(kPoolThreads)}; }

} // namespace

void clearPool(const Launch& how, const PoolState& state) {
    launch(how, oneTeam(), clearKernel, "emptying the pool of slots", state);
}

void lookUpInPool(const Launch& how, const PoolArgs& args) {
    launch(how, oneTeam(), lookUpKernel, "looking blocks up in the pool of slots", args);
}

void releaseFromPool(const Launch& how, const PoolState& state, std::int32_t* slotOf, int blocks) {
    launch(how, oneTeam(), releaseKernel, "giving slots back", state, slotOf, blocks);
}

} // namespace kvscope::cuda
