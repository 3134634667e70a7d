// From the choice to the lists that the attention, the gather and the recorder read: ascending blocks, what stays from
// the step before, the set difference with the slots, and the new token's place.
#pragma once

#include "kernels/cuda/select_choice.cuh"

namespace kvscope::cuda {

/// What was asked for before it is needed, so that its way from memory hides behind the scores.
template <int kDim, int kItems> struct SelectState {
    static constexpr int kBytes = (kItems + 7) / 8; // of the bitmap of the step before, per thread
    static constexpr bool kToken = kDim <= kSelectThreads;
    std::uint8_t previous[kBytes] = {}, hasPrevious = 0;
    std::int32_t mapped = -1; // block in slot threadIdx.x
    std::int64_t store = 0;   // first block of the head in the host store
    Bf16 key = {}, value = {};

    __device__ void ask(const SelectArgs& a, const SelectItem& at) {
        const int thread = threadIdx.x;
        if (a.previous != nullptr && !a.oneSequence) {
            hasPrevious = a.hasPrevious[at.head];
#pragma unroll
            for (int i = 0; i < kBytes; ++i)
                if (thread * kItems < a.maxBlocks) previous[i] = previousAt(a, at)[i];
        }
        if (a.slots == 0) return;
        if (thread < a.slots) mapped = a.map[std::size_t(at.head) * a.slots + thread];
        store = a.storeFirst[at.head];
        if (kToken && thread < kDim && a.newKey != nullptr) {
            key = a.newKey[std::size_t(at.item) * kDim + thread];
            if (a.shape.latentValue == 0) value = a.newValue[std::size_t(at.item) * kDim + thread];
        }
    }
    __device__ static std::uint8_t* previousAt(const SelectArgs& a, const SelectItem& at) {
        return a.previous + std::size_t(at.head) * selectionBitmapBytes(a.maxBlocks) + threadIdx.x * kBytes;
    }
};

/// Slots without a listed block, in the order in which misses take them; listed blocks find theirs in `slots`.
__device__ inline void findFreeSlots(const SelectArgs& a, const SelectItem& at, const SelectShared& shared,
                                     std::int32_t mapped, SelectCounter& counter) {
    const std::int32_t* map = a.map + std::size_t(at.head) * a.slots;
    const std::int32_t* lastUse = a.lastUse != nullptr ? a.lastUse + std::size_t(at.head) * a.slots : nullptr;
    constexpr std::int32_t kInUse = 0x7fffffff;
    for (int base = 0, running = 0; base < a.slots; base += kSelectThreads) {
        const int s = base + int(threadIdx.x);
        const std::int32_t block = s >= a.slots ? -1 : base == 0 ? mapped : map[s];
        const int place = block >= 0 && block < at.blocks ? shared.listAt[block] : -1;
        if (place >= 0) shared.slots[place] = s;
        const bool free = s < a.slots && place < 0;
        if (lastUse == nullptr) {
            int total = 0;
            const int before = running + counter.prefix(free ? 1 : 0, total);
            if (free) shared.freeSlots[before] = s;
            running += total;
        } else if (s < a.slots) {
            shared.slotUse[s] = free ? lastUse[s] : kInUse;
            shared.slotBlock[s] = block;
        }
    }
    if (lastUse == nullptr) return;
    __syncthreads();
    // Longest unused first; equal: the lower block; empty ones before all, by slot.
    for (int s = threadIdx.x; s < a.slots; s += kSelectThreads) {
        const std::int32_t use = shared.slotUse[s], block = shared.slotBlock[s];
        if (use == kInUse) continue;
        int place = 0;
        for (int other = 0; other < a.slots; ++other) {
            const std::int32_t otherUse = shared.slotUse[other], otherBlock = shared.slotBlock[other];
            const bool earlier =
                otherUse < use || (otherUse == use && (otherBlock < block || (otherBlock == block && other < s)));
            place += earlier ? 1 : 0;
        }
        shared.freeSlots[place] = s;
    }
}

/// One entry of the list for the recorder.
__device__ inline void recordEntry(const SelectArgs& a, const SelectItem& at, const SelectShared& shared, int i,
                                   bool hit) {
    const int b = shared.list[i];
    const std::uint8_t origin = shared.origins[b];
    const std::size_t to = std::size_t(at.item) * a.capacity + i;
    if (a.recordBlocks != nullptr)
        a.recordBlocks[to] = std::uint32_t(b) | std::uint32_t(origin) << kOriginShift | (hit ? 1u : 0u) << kHitShift;
    if (a.recordScores != nullptr)
        a.recordScores[to] = a.chosen != nullptr                             ? shared.aware[b]
                             : origin == std::uint8_t(Origin::QueryAgnostic) ? shared.agnostic[b]
                             : a.score == SelectArgs::Score::None            ? __uint_as_float(0x7fc00000u)
                                                                             : shared.aware[b];
}

/// The new token's key and value into its block, which is the list's last; a full block goes to the host once.
template <int kDim, int kItems>
__device__ void placeToken(const SelectArgs& a, const SelectItem& at, const SelectState<kDim, kItems>& state,
                           int tail) {
    const int bs = a.shape.blockSize, row = at.position - at.current * bs;
    Bf16* block = a.pool + (std::size_t(at.head) * a.slots + tail) * blockElements(a.shape);
    for (int c = threadIdx.x; c < kDim && a.newKey != nullptr; c += kSelectThreads) {
        constexpr bool kToken = SelectState<kDim, kItems>::kToken;
        const std::size_t from = std::size_t(at.item) * kDim + c;
        block[row * kDim + c] = kToken ? state.key : a.newKey[from];
        if (a.shape.latentValue == 0)
            block[std::size_t(bs) * kDim + (a.valuesByToken ? row * kDim + c : c * bs + row)] =
                kToken ? state.value : a.newValue[from];
    }
    if (threadIdx.x == 0 && row == bs - 1) { // full blocks never change
        const std::uint32_t move = atomicAdd(&a.moves.counts[1], 1u);
        a.moves.writeBacks[move] = {std::uint32_t(state.store + at.current), std::uint32_t(at.head * a.slots + tail)};
    }
}

/// Slots of the listed blocks, loads of those that have none, the recorder's entries. Returns the misses.
template <int kDim, int kItems>
__device__ int assignSlots(const SelectArgs& a, const SelectItem& at, const SelectShared& shared,
                           const SelectState<kDim, kItems>& state, int count, SelectSmall& small,
                           SelectCounter& counter) {
    std::int32_t* map = a.map + std::size_t(at.head) * a.slots;
    const bool recorded = !at.dense && (a.recordBlocks != nullptr || a.recordScores != nullptr);
    // Begins now: takes a slot, is not loaded.
    const int fresh = at.position == at.current * a.shape.blockSize ? at.current : -1;
    findFreeSlots(a, at, shared, state.mapped, counter);
    int missed = 0;
    for (int base = 0; base < count; base += kSelectThreads) {
        const int i = base + int(threadIdx.x);
        const bool listed = i < count;
        // Of the keep-selected kind a barrier has passed; after the other's last loop the next prefix has one.
        int total = 0;
        if (base == 0 && a.lastUse != nullptr) __syncthreads();
        const int block = listed ? shared.list[i] : 0, known = listed ? shared.slots[i] : 0;
        const bool miss = known < 0;
        const int place = missed + counter.prefix(miss ? 1 : 0, total);
        missed += total;
        if (!listed) continue;
        const int slot = miss ? shared.freeSlots[place] : known;
        shared.slots[i] = a.listSlot[std::size_t(at.item) * a.capacity + i] = slot;
        if (miss) {
            map[slot] = block;
            if (block == fresh) {
                small.freshMissed = 1;
            } else {
                const std::uint32_t move = atomicAdd(&a.moves.counts[0], 1u);
                a.moves.loads[move] = {std::uint32_t(state.store + block), std::uint32_t(at.head * a.slots + slot)};
            }
        }
        if (a.lastUse != nullptr) a.lastUse[std::size_t(at.head) * a.slots + slot] = at.position;
        if (recorded) recordEntry(a, at, shared, i, !miss || block == fresh);
    }
    __syncthreads();
    placeToken(a, at, state, shared.slots[count - 1]);
    return missed - small.freshMissed;
}

/// Everything that follows the choice.
template <int kDim, int kItems>
__device__ void writeLists(const SelectArgs& a, const SelectItem& at, const SelectShared& shared,
                           const SelectState<kDim, kItems>& state, const std::uint8_t (&mine)[kItems],
                           SelectSmall& small, SelectCounter& counter) {
    using State = SelectState<kDim, kItems>;
    const int firstMine = int(threadIdx.x) * kItems;
    const bool remembers = a.previous != nullptr && !a.oneSequence;
    const bool comparable = remembers && state.hasPrevious != 0 && !at.dense;
    int chosen = 0, kept = 0, count = 0;
    std::uint8_t bitmap[State::kBytes] = {};
#pragma unroll
    for (int i = 0; i < kItems; ++i)
        if (firstMine + i < at.blocks && mine[i] != kUnchosen) ++chosen, bitmap[i / 8] |= std::uint8_t(1u << i % 8);
    if (remembers && firstMine < a.maxBlocks) {
#pragma unroll
        for (int i = 0; i < State::kBytes; ++i) {
            if (comparable) kept += __popc(state.previous[i] & bitmap[i]);
            State::previousAt(a, at)[i] = bitmap[i];
        }
    }
    if (threadIdx.x == 0) small.freshMissed = 0;
    int next = counter.prefix(chosen, count);
    count = min(count, a.capacity);
    std::int32_t* listOut = a.listBlock + std::size_t(at.item) * a.capacity;
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
        const int b = firstMine + i;
        if (b >= at.blocks) continue;
        const bool listed = mine[i] != kUnchosen && next < a.capacity;
        shared.origins[b] = mine[i];
        if (a.slots > 0) shared.listAt[b] = listed ? std::int16_t(next) : std::int16_t(-1);
        if (!listed) continue;
        shared.list[next] = listOut[next] = b;
        shared.slots[next++] = -1;
    }
    if (threadIdx.x == 0) a.listCount[at.item] = count;
    if (comparable)
        kept = counter.sum(kept); // with a barrier: the list is complete
    else
        __syncthreads();
    int misses = 0;
    if (a.slots > 0) {
        misses = assignSlots(a, at, shared, state, count, small, counter);
    } else if (!at.dense && (a.recordBlocks != nullptr || a.recordScores != nullptr)) {
        for (int i = threadIdx.x; i < count; i += kSelectThreads) recordEntry(a, at, shared, i, true);
    }
    if (a.endMark != nullptr) __syncthreads();
    if (threadIdx.x != 0) return;
    if (a.recordHead != nullptr)
        a.recordHead[at.item] = at.dense ? SelectionHead{0, -1, 0, misses}
                                         : SelectionHead{count, comparable ? kept : -1, count - misses, misses};
    if (remembers) a.hasPrevious[at.head] = at.dense ? 0 : 1;
    stampLatest(a.endMark);
}

} // namespace kvscope::cuda
