#include "kernels/cuda/methods/token_slots.h"

#include "kernels/cuda/choice/token_choice.cuh"
#include "kernels/cuda/device/launch.cuh"

namespace kvscope::cuda {
namespace {

constexpr int kAdmitThreads = 512;

/// Lists the slots whose tokens leave: `count` slots, of the earliest last admissions, of equal ones those of the lower
/// positions. Every thread of the thread block calls this, after a barrier; the list is complete behind the next one.
__device__ void freeSlots(ThresholdShared<kAdmitThreads>& shared, int slots, std::int32_t* slotOf,
                          const std::int32_t* tokenIn, const std::int32_t* last, int turn, int count,
                          std::int32_t* freed, int& listed) {
    // The largest of these ranks leaves first. 0: nothing lies there, or this step attends to it.
    const auto rankAt = [&](int slot) {
        return tokenIn[slot] >= 0 && last[slot] != turn ? ~std::uint32_t(last[slot]) : 0u;
    };
    const Threshold oldest = findThreshold(shared, slots, slots, count, rankAt);
    const auto tieAt = [&](int slot) { return rankAt(slot) == oldest.rank ? ~std::uint32_t(tokenIn[slot]) : 0u; };
    Threshold lowest{0xffffffffu, 0};
    thisCluster().sync(); // all threads have their threshold
    if (oldest.equals > 0) lowest = findThreshold(shared, slots, slots, int(oldest.equals), tieAt);
    for (int slot = threadIdx.x; slot < slots; slot += kAdmitThreads) {
        const std::uint32_t rank = rankAt(slot);
        if (rank == 0) continue;
        const std::uint32_t tie = tieAt(slot); // positions differ, so no two ties are equal
        const bool tied = oldest.equals > 0 && rank == oldest.rank &&
                          (tie > lowest.rank || (lowest.equals > 0 && tie == lowest.rank));
        if (rank <= oldest.rank && !tied) continue;
        slotOf[tokenIn[slot]] = -1;
        freed[atomicAdd(&listed, 1)] = slot;
    }
}

/// Grid: rows.
__global__ void __launch_bounds__(kAdmitThreads) admitKernel(AdmitTokensArgs a) {
    __shared__ ThresholdShared<kAdmitThreads> shared;
    __shared__ int missing, listed;
    const int row = blockIdx.x;
    letNextKernelStart();
    waitForEarlierKernels();
    if (blockIdx.x == 0 && threadIdx.x == 0) stamp(a.mark);
    if (a.active != nullptr && a.active[row] == 0) return;
    const DeviceTokenSlots& s = a.slots;
    std::int32_t* const slotOf = s.slotOf + std::size_t(row) * s.maxTokens;
    std::int32_t* const tokenIn = s.tokenIn + std::size_t(row) * s.slots;
    std::int32_t* const last = s.last + std::size_t(row) * s.slots;
    std::int32_t* const turns = s.turns + std::size_t(row) * 2;
    const std::size_t list = std::size_t(row) * a.capacity;
    const std::int32_t* const tokens = a.tokens + list;
    std::int32_t *const place = a.place + list, *const fetch = a.fetch + list,
                        *const freed = a.freed + std::size_t(row) * (a.capacity + 1);
    const int count = a.count[row], made = a.position[row], turn = turns[0] + 1, used = turns[1], madeIn = slotOf[made];
    if (threadIdx.x == 0) missing = listed = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < count; i += kAdmitThreads) {
        const int token = tokens[i], slot = slotOf[token];
        const bool hit = token == made || slot >= 0;
        if (slot >= 0) last[slot] = turn, place[i] = slot;
        if (!hit) fetch[atomicAdd(&missing, 1)] = i;
        if (a.hitRecord != nullptr) a.hitRecord[list + i] = hit ? 1 : 0;
    }
    __syncthreads();
    const int wanted = missing + (madeIn < 0 ? 1 : 0), fresh = min(wanted, s.slots - used);
    if (wanted > fresh) freeSlots(shared, s.slots, slotOf, tokenIn, last, turn, wanted - fresh, freed, listed);
    __syncthreads();
    const auto put = [&](int token, int number) { // into the slot of this number among those that are free
        const int slot = number < fresh ? used + number : freed[number - fresh];
        slotOf[token] = slot;
        tokenIn[slot] = token;
        last[slot] = turn;
        return slot;
    };
    for (int n = threadIdx.x; n < missing; n += kAdmitThreads) place[fetch[n]] = put(tokens[fetch[n]], n);
    if (threadIdx.x != 0) return;
    const int slot = madeIn < 0 ? put(made, missing) : madeIn;
    if (count > 0 && tokens[count - 1] == made) place[count - 1] = slot;
    a.madeSlot[row] = slot;
    a.missing[row] = missing;
    if (a.missingRecord != nullptr) a.missingRecord[row] = missing;
    turns[0] = turn;
    turns[1] = used + fresh;
}

constexpr int kThreads = 256, kWarps = kThreads / kWarp;

/// A warp copies one token.
__device__ inline void copyToken(const Bf16* from, Bf16* to, int dim) {
    for (int piece = threadIdx.x % kWarp; piece < dim / 8; piece += kWarp)
        *reinterpret_cast<uint4*>(to + piece * 8) = loadOnce(from + piece * 8);
}

/// Grid: (capacity + 1 tokens, a warp each; rows).
__global__ void __launch_bounds__(kThreads) fetchKernel(FetchTokenSlotsArgs a) {
    const AdmitTokensArgs& in = a.admitted;
    const int row = blockIdx.y, n = int(blockIdx.x) * kWarps + int(threadIdx.x) / kWarp;
    letNextKernelStart();
    waitForEarlierKernels();
    if (in.active != nullptr && in.active[row] == 0) return;
    const int missing = in.missing[row];
    if (n > missing) return;
    Bf16* const pool = a.pool + std::size_t(row) * in.slots.slots * a.dim;
    if (n == missing)
        return copyToken(a.newKey + std::size_t(row) * a.dim, pool + std::size_t(in.madeSlot[row]) * a.dim, a.dim);
    const std::size_t at = std::size_t(row) * in.capacity + in.fetch[std::size_t(row) * in.capacity + n];
    const std::int64_t first = a.first != nullptr ? a.first[row] : 0;
    copyToken(a.store + std::size_t(first + in.tokens[at]) * a.dim, pool + std::size_t(in.place[at]) * a.dim, a.dim);
}

/// Grid: rows.
__global__ void __launch_bounds__(kWarp) storeKernel(StoreTokenArgs a) {
    const int row = blockIdx.x;
    letNextKernelStart();
    waitForEarlierKernels();
    if (a.active != nullptr && a.active[row] == 0) return;
    copyToken(a.newKey + std::size_t(row) * a.dim, a.store + std::size_t(a.first[row] + a.position[row]) * a.dim,
              a.dim);
}

} // namespace

void admitTokens(const Launch& how, const AdmitTokensArgs& args) {
    if (args.rows == 0) return;
    launch(how, {dim3(unsigned(args.rows)), dim3(kAdmitThreads)}, admitKernel, "giving tokens slots", args);
}

void fetchTokenSlots(const Launch& how, const FetchTokenSlotsArgs& args) {
    if (args.admitted.rows == 0) return;
    launch(how, {dim3(unsigned(args.admitted.capacity / kWarps + 1), unsigned(args.admitted.rows)), dim3(kThreads)},
           fetchKernel, "fetching tokens", args);
}

void storeTokens(const Launch& how, const StoreTokenArgs& args) {
    if (args.rows == 0) return;
    launch(how, {dim3(unsigned(args.rows)), dim3(kWarp)}, storeKernel, "storing tokens", args);
}

} // namespace kvscope::cuda
