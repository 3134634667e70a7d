// Makes of a choice the lists that the attention, the gather and the recorder read: the blocks in ascending order,
// their slots and the loads that fill them, how many were selected in the step before too, and the new token's place.
#pragma once

#include "kernels/cuda/choice/select_choice.cuh"

namespace kvscope::cuda {

/// Sets of blocks in shared memory: the chosen ones, those of them that have a slot already, and those that have none.
template <class Team> struct SelectSets {
    BlockSet<Team> chosen, resident, missing;
    /// Complete after the next barrier.
    __device__ void clear() {
#pragma unroll
        for (int i = threadIdx.x; i < BlockSet<Team>::kWords; i += Team::kThreads) resident.word[i] = 0;
    }
};

/// What rank 0 reads from memory for its lists. It asks early, so that the loads arrive while the ranks wait for each
/// other.
template <int kDim, class Team> struct SelectState {
    using Set = BlockSet<Team>;
    static constexpr bool kToken = kDim <= Team::kThreads;
    std::uint32_t previous = 0; // word number threadIdx.x of the bitmap of the step before
    std::uint8_t hasPrevious = 0;
    std::int32_t mapped = -1;                // block in slot number threadIdx.x
    int slots = 0;                           // of the head
    std::int64_t map = 0, use = 0, pool = 0; // where the head's slots begin in SelectSlots::map, lastUse and pool
    std::int64_t store = 0;                  // first block of the head in the host store
    Bf16 key = {}, value = {};

    /// Where the head's slots lie. Called before the wait: no kernel of a step writes the tables.
    __device__ void locate(const SelectArgs& a, const SelectItem& at) {
        if (a.slots.count == 0) return;
        slots = a.slots.countOf != nullptr ? a.slots.countOf[at.row] : a.slots.count;
        map = partFirst(a.slots.mapFirst, at.head, slots);
        use = partFirst(a.slots.useFirst, at.head, slots);
        pool = partFirst(a.slots.poolFirst, at.head, slots);
        store = a.slots.storeFirst[at.head];
    }
    __device__ void ask(const SelectArgs& a, const SelectItem& at) {
        const int thread = threadIdx.x;
        if (a.record.previous != nullptr && !a.oneSequence) {
            hasPrevious = hasPreviousAt(a, at);
            if (thread < wordsOf(a)) previous = previousAt(a, at)[thread];
        }
        if (a.slots.count == 0) return;
        if (thread < slots) mapped = a.slots.map[map + thread];
        if (kToken && thread < kDim && a.slots.newKey != nullptr) {
            key = a.slots.newKey[std::size_t(at.item) * kDim + thread];
            if (a.shape.latentValue == 0) value = a.slots.newValue[std::size_t(at.item) * kDim + thread];
        }
    }
    /// Words of the bitmap of a sequence's blocks, 32 blocks in each; at most as many as threads.
    __device__ static int wordsOf(const SelectArgs& a) {
        return min(Set::kWords, selectionBitmapBytes(a.maxBlocks) / 4);
    }
    __device__ static std::uint32_t* previousAt(const SelectArgs& a, const SelectItem& at) {
        const int bytes = a.record.previousBytes > 0 ? a.record.previousBytes : selectionBitmapBytes(a.maxBlocks);
        return reinterpret_cast<std::uint32_t*>(a.record.previous + partFirst(a.record.previousFirst, at.head, bytes));
    }
    __device__ static std::uint8_t& hasPreviousAt(const SelectArgs& a, const SelectItem& at) {
        return a.record.hasPrevious[partFirst(a.record.hasPreviousFirst, at.head, 1)];
    }
};

/// Lists the slots that hold chosen blocks, and notes which blocks those are and which slots are free.
template <int kDim, class Team>
__device__ void listResident(const SelectArgs& a, const SelectItem& at, const SelectShared& shared,
                             const SelectState<kDim, Team>& state, const SetPlaces<Team>& places,
                             BlockSet<Team>& resident) {
#pragma unroll 1
    for (int base = 0; base < state.slots; base += Team::kThreads) {
        const int s = base + int(threadIdx.x);
        if (s - int(threadIdx.x % kWarp) >= state.slots) break; // the whole warp
        const std::int32_t block = s >= state.slots ? -1 : base == 0 ? state.mapped : a.slots.map[state.map + s];
        const bool known = block >= 0 && block < at.blocks;
        const int place = places.placeOf(known ? block : 0);
        const bool listed = known && place >= 0;
        if (listed) {
            atomicOr(&resident.word[block / kWarp], 1u << block % kWarp);
            if (place < a.capacity) {
                a.list.slot[std::size_t(at.item) * a.capacity + place] = s;
                if (a.slots.lastUse != nullptr) a.slots.lastUse[state.use + s] = at.position;
            }
        }
        if (s < state.slots) shared.blockIn[s] = block;
        const std::uint32_t full = __ballot_sync(0xffffffffu, listed);
        if (threadIdx.x % kWarp == 0) shared.freeBits[s / kWarp] = ~full;
    }
}

/// Orders the free slots as misses take them. With keep-selected by number. With LRU the slot that has not been used
/// for longest first; of slots used last in the same step, the one with the lower block. Empty slots count as never
/// used, and come by number. lastUse: of the head; null: keep-selected. Ends with a barrier.
template <class Team>
__device__ void orderFreeSlots(const std::int32_t* lastUse, int slots, const SelectShared& shared) {
    const auto isFree = [&](int s) { return (shared.freeBits[s / kWarp] >> s % kWarp & 1u) != 0; };
    if (lastUse == nullptr) {
#pragma unroll 1
        for (int s = threadIdx.x; s < slots; s += Team::kThreads) {
            if (!isFree(s)) continue;
            int place = __popc(shared.freeBits[s / kWarp] & ((1u << s % kWarp) - 1u));
#pragma unroll 1
            for (int w = 0; w < s / kWarp; ++w) place += __popc(shared.freeBits[w]);
            shared.freeSlots[place] = s;
        }
        __syncthreads();
        return;
    }
#pragma unroll 1
    for (int s = threadIdx.x; s < slots; s += Team::kThreads) shared.slotUse[s] = lastUse[s];
    __syncthreads();
#pragma unroll 1
    for (int s = threadIdx.x; s < slots; s += Team::kThreads) {
        if (!isFree(s)) continue;
        const std::int32_t use = shared.slotUse[s], block = shared.blockIn[s];
        int place = 0;
#pragma unroll 1
        for (int other = 0; other < slots; ++other) {
            const std::int32_t otherUse = shared.slotUse[other], otherBlock = shared.blockIn[other];
            const bool earlier =
                otherUse < use || (otherUse == use && (otherBlock < block || (otherBlock == block && other < s)));
            place += earlier && isFree(other) ? 1 : 0;
        }
        shared.freeSlots[place] = s;
    }
    __syncthreads();
}

/// Writes one entry of the list that the recorder reads.
__device__ inline void recordEntry(const SelectArgs& a, const SelectItem& at, const SelectShared& shared, int place,
                                   int b, std::uint8_t origin, bool hit) {
    const std::size_t to = std::size_t(at.item) * a.capacity + place;
    if (a.record.blocks != nullptr) a.record.blocks[to] = PackedBlock(b, Origin(origin), hit);
    if (a.record.scores != nullptr)
        a.record.scores[to] = a.chosen.blocks != nullptr                      ? shared.aware[b]
                              : origin == std::uint8_t(Origin::QueryAgnostic) ? shared.agnostic[b]
                              : a.score == SelectArgs::Score::None            ? __uint_as_float(0x7fc00000u)
                                                                              : shared.aware[b];
}

/// Writes the new token's key and value into its block, which is the last of the list. A block that this token fills is
/// put on the list of write-backs.
template <int kDim, class Team>
__device__ void placeToken(const SelectArgs& a, const SelectItem& at, const SelectState<kDim, Team>& state, int tail) {
    const int bs = a.shape.blockSize, row = at.position - at.current * bs;
    Bf16* block = (a.slots.newest != nullptr ? a.slots.newest + std::size_t(at.head) * blockElements(a.shape)
                                             : a.slots.pool + std::size_t(state.pool + tail) * blockElements(a.shape));
#pragma unroll 1
    for (int c = threadIdx.x; c < kDim && a.slots.newKey != nullptr; c += Team::kThreads) {
        constexpr bool kToken = SelectState<kDim, Team>::kToken;
        const std::size_t from = std::size_t(at.item) * kDim + c;
        block[row * kDim + c] = kToken ? state.key : a.slots.newKey[from];
        if (a.shape.latentValue == 0)
            block[std::size_t(bs) * kDim + (a.slots.valuesByToken ? row * kDim + c : c * bs + row)] =
                kToken ? state.value : a.slots.newValue[from];
    }
    if (threadIdx.x == 0 && row == bs - 1) { // full now: the block never changes again
        const std::uint32_t move = atomicAdd(&a.slots.moves.counts[1], 1u);
        a.slots.moves.writeBacks[move] = {state.store + std::int64_t(at.current) * a.slots.moves.storeUnits,
                                          state.pool + tail};
    }
}

/// Finds the slot of the newest token's block, and places the token if the block is in one. One barrier.
template <int kDim, class Team>
__device__ void placeTokenEarly(const SelectArgs& a, const SelectItem& at, const SelectState<kDim, Team>& state,
                                SelectSmall<Team>& small) {
    if (state.mapped == at.current) small.tail = int(threadIdx.x);
#pragma unroll 1
    for (int s = int(threadIdx.x) + Team::kThreads; s < state.slots; s += Team::kThreads)
        if (a.slots.map[state.map + s] == at.current) small.tail = s;
    __syncthreads();
    if (small.tail >= 0) placeToken<kDim, Team>(a, at, state, small.tail);
}

/// Gives slots to this thread's chosen blocks that have none, and lists the loads that fill them. The block `fresh`
/// begins with this token: it gets a slot and nothing to load.
template <int kDim, class Team>
__device__ void loadMissing(const SelectArgs& a, const SelectShared& shared, const SelectState<kDim, Team>& state,
                            BlockSet<Team>& missing, const bool (&missed)[Team::kItems], int fresh,
                            int (&slots)[Team::kItems]) {
    missing.put(missed);
    orderFreeSlots<Team>(a.slots.lastUse != nullptr ? a.slots.lastUse + state.use : nullptr, state.slots,
                         shared); // its barrier also completes `missing`
    const BlocksBefore<Team> before(missing);
    const unsigned lane = threadIdx.x % kWarp;
#pragma unroll
    for (int i = 0; i < Team::kItems; ++i) {
        const int b = Team::blockOf(i);
        const bool load = missed[i] && b != fresh;
        const std::uint32_t loads = __ballot_sync(0xffffffffu, load);
        std::uint32_t move = 0; // where the warp's loads begin in the list
        if (lane == 0 && loads != 0) move = atomicAdd(&a.slots.moves.counts[0], unsigned(__popc(loads)));
        move = __shfl_sync(0xffffffffu, move, 0) + __popc(loads & ((1u << lane) - 1u));
        if (!missed[i]) continue;
        slots[i] = shared.freeSlots[before.before[i]];
        a.slots.map[state.map + slots[i]] = b;
        if (load)
            a.slots.moves.loads[move] = {state.store + std::int64_t(b) * a.slots.moves.storeUnits,
                                         state.pool + slots[i]};
    }
}

/// Writes all lists and reports of an item. Every thread lists the chosen ones of its blocks.
template <int kDim, class Team>
__device__ void writeLists(const SelectArgs& a, const SelectItem& at, const SelectShared& shared,
                           const SelectState<kDim, Team>& state, const std::uint8_t (&origins)[Team::kItems],
                           SelectSmall<Team>& small, SelectSets<Team>& sets) {
    const bool recorded = !at.dense && (a.record.blocks != nullptr || a.record.scores != nullptr);
    bool chosen[Team::kItems];
#pragma unroll
    for (int i = 0; i < Team::kItems; ++i) chosen[i] = Team::blockOf(i) < at.blocks && origins[i] != kUnchosen;
    sets.chosen.put(chosen);
    __syncthreads();
    const SetPlaces<Team> places(sets.chosen);
    const int count = min(places.all, a.capacity);
    const std::size_t first = std::size_t(at.item) * a.capacity;
    if (a.slots.count > 0) listResident<kDim, Team>(a, at, shared, state, places, sets.resident);
    int placeOf[Team::kItems];
#pragma unroll
    for (int i = 0; i < Team::kItems; ++i) {
        placeOf[i] = places.ofOwn(i);
        chosen[i] = chosen[i] && placeOf[i] < a.capacity;
        if (!chosen[i]) continue;
        a.list.block[first + placeOf[i]] = Team::blockOf(i);
        if (a.slots.count == 0 && recorded) recordEntry(a, at, shared, placeOf[i], Team::blockOf(i), origins[i], true);
    }
    const bool remembers = a.record.previous != nullptr && !a.oneSequence;
    const bool comparable = remembers && state.hasPrevious != 0 && !at.dense;
    if (remembers && threadIdx.x < SelectState<kDim, Team>::wordsOf(a)) {
        const std::uint32_t now = sets.chosen.word[threadIdx.x];
        SelectState<kDim, Team>::previousAt(a, at)[threadIdx.x] = now;
        if (const int kept = __popc(now & state.previous); comparable && kept > 0) atomicAdd(&small.kept, kept);
    }
    if (a.slots.count > 0 || comparable) __syncthreads();
    int misses = 0;
    // The block that begins with this token, or -1.
    const int fresh = at.position == at.current * a.shape.blockSize ? at.current : -1;
    if (a.slots.count > 0) {
        misses = places.all - countOf(sets.resident);
        int slots[Team::kItems];
        bool missed[Team::kItems];
#pragma unroll
        for (int i = 0; i < Team::kItems; ++i)
            missed[i] = chosen[i] && misses > 0 && !sets.resident.has(Team::blockOf(i));
        if (misses > 0) loadMissing<kDim, Team>(a, shared, state, sets.missing, missed, fresh, slots);
#pragma unroll
        for (int i = 0; i < Team::kItems; ++i) {
            const int b = Team::blockOf(i);
            if (!chosen[i]) continue;
            if (recorded) recordEntry(a, at, shared, placeOf[i], b, origins[i], !missed[i] || b == fresh);
            if (!missed[i]) continue;
            a.list.slot[first + placeOf[i]] = slots[i];
            if (a.slots.lastUse != nullptr) a.slots.lastUse[state.use + slots[i]] = at.position;
            if (b == fresh) small.freshMissed = 1;
            if (b == at.current) small.lastSlot = slots[i];
        }
        if (misses > 0) {
            __syncthreads();
            if (small.tail < 0) placeToken<kDim, Team>(a, at, state, small.lastSlot);
        }
    }
    if (a.marks.end != nullptr) __syncthreads();
    if (threadIdx.x != 0) return;
    a.list.count[at.item] = count;
    misses -= small.freshMissed;
    if (a.record.heads != nullptr)
        a.record.heads[at.item] = at.dense ? SelectionHead{0, -1, 0, misses}
                                           : SelectionHead{count, comparable ? small.kept : -1, count - misses, misses};
    if (remembers) SelectState<kDim, Team>::hasPreviousAt(a, at) = at.dense ? 0 : 1;
    stampLatest(a.marks.end);
}

} // namespace kvscope::cuda
