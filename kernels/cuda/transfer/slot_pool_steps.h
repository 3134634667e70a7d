// The work of a pool's kernels as one team of threads does it. A thread block of a GPU is such a team; so are threads
// of the host, which test the same code.
#pragma once

#include "kernels/cuda/transfer/slot_pool.h"

#ifdef __CUDACC__
#define KVSCOPE_TEAM_CODE __device__ inline
#else
#define KVSCOPE_TEAM_CODE inline
#endif

namespace kvscope::cuda {

/// A team has: thread, threads; sync(), a barrier; prefix(value, all), the sum of the values of lower threads, with
/// `all` set to the sum of all values, and a barrier too; add(at, value), which returns what was there; shared, one
/// number that all threads see.
template <class Team> class PoolSteps {
public:
    KVSCOPE_TEAM_CODE PoolSteps(const PoolState& state, Team& team) : s_(state), team_(team), c_(*state.counts) {}

    /// Removes the log's entries that no longer count where fewer than `room` entries are free. With room at most
    /// entries - slots there is room then.
    KVSCOPE_TEAM_CODE void makeRoom(std::int64_t room) {
        if (c_.head - c_.tail + room <= s_.entries) return;
        std::int64_t to = c_.tail;
        for (std::int64_t base = c_.tail; base < c_.head; base += team_.threads) {
            const std::int64_t at = base + team_.thread;
            const int slot = at < c_.head ? s_.log[place(at)] : -1;
            const bool counts = slot >= 0 && s_.lastAt[slot] == at;
            int all = 0;
            const int before = team_.prefix(counts ? 1 : 0, all); // everybody has read before somebody writes
            if (counts) note(slot, to + before);
            to += all;
            team_.sync();
        }
        c_.head = to;
    }

    KVSCOPE_TEAM_CODE void lookUp(const PoolArgs& a) {
        const PoolInputs in = *a.inputs;
        const int kvHeads = a.shape.kvHeads, items = in.rows * kvHeads, entries = items * a.capacity;
        makeRoom(std::int64_t(entries) + items);
        const std::int64_t pinned = c_.head;
        int missed = 0, misses = 0;
        for (int base = 0; base < entries; base += team_.threads) {
            const Entry e(a, base + team_.thread, entries);
            const int slot = e.inPool ? *e.slotOf() : -1;
            int all = 0;
            const int before = team_.prefix(slot >= 0 ? 1 : 0, all);
            if (slot >= 0) note(slot, c_.head + before);
            if (e.block >= 0) *e.listSlot() = e.inPool ? slot : e.row->newest + e.head;
            missed += e.inPool && slot < 0 ? 1 : 0;
            c_.head += all;
        }
        team_.prefix(missed, misses);
        makeFree(misses, in.slots, pinned);
        for (int base = 0; base < entries; base += team_.threads) {
            const Entry e(a, base + team_.thread, entries);
            const bool missing = e.inPool && *e.listSlot() < 0;
            int all = 0;
            const int before = team_.prefix(missing ? 1 : 0, all);
            if (missing) load(e, take(before, e.slotOf()));
            count(all);
        }
        placeTokens(a, items);
        keepFilled(a, items);
        save();
    }

    KVSCOPE_TEAM_CODE void release(std::int32_t* slotOf, int blocks) {
        for (int base = 0; base < blocks; base += team_.threads) {
            const int at = base + team_.thread, slot = at < blocks ? slotOf[at] : -1;
            int all = 0;
            const int before = team_.prefix(slot >= 0 ? 1 : 0, all);
            if (slot >= 0) {
                giveBack(slot, c_.free + before);
                slotOf[at] = -1;
            }
            c_.free += all, c_.used -= all;
        }
        save();
    }

    KVSCOPE_TEAM_CODE void clear() {
        for (int slot = team_.thread; slot < s_.slots; slot += team_.threads) giveBack(slot, s_.slots - 1 - slot);
        c_ = {};
        c_.free = s_.slots;
        save();
    }

private:
    /// One chosen block of one (row, KV head).
    struct Entry {
        const PoolRow* row = nullptr;
        int head = 0, entry = 0;
        std::int32_t block = -1; // -1: there is no such entry
        bool inPool = false;     // false: the newest block

        KVSCOPE_TEAM_CODE Entry(const PoolArgs& a, int index, int entries) {
            if (index >= entries) return;
            const int item = index / a.capacity;
            row = a.rows + item / a.shape.kvHeads;
            head = item % a.shape.kvHeads, entry = index % a.capacity;
            if (entry >= row->listCount[head]) return;
            block = row->listBlock[head * row->capacity + entry];
            inPool = block != *row->position / a.shape.blockSize;
        }
        KVSCOPE_TEAM_CODE std::int32_t* slotOf() const {
            return row->slotOf + std::int64_t(head) * row->blocks + block;
        }
        KVSCOPE_TEAM_CODE std::int32_t* listSlot() const { return row->listSlot + head * row->capacity + entry; }
    };

    KVSCOPE_TEAM_CODE int place(std::int64_t position) const { return int(position & (s_.entries - 1)); }
    /// The block in the slot is the most recently selected so far.
    KVSCOPE_TEAM_CODE void note(int slot, std::int64_t position) {
        s_.log[place(position)] = slot;
        s_.lastAt[slot] = position;
    }
    KVSCOPE_TEAM_CODE void giveBack(int slot, int to) {
        s_.lastAt[slot] = -1;
        s_.free[to] = slot;
    }
    /// The free slot number `before` for the block whose slot `slotOf` names. -1: there is none
    KVSCOPE_TEAM_CODE int take(int before, std::int32_t* slotOf) {
        if (before >= c_.free) return -1;
        const int slot = s_.free[c_.free - 1 - before];
        *slotOf = slot;
        s_.owner[slot] = slotOf;
        note(slot, c_.head + before);
        return slot;
    }
    /// Counts the slots that calls of take() have wanted since the last call of this function.
    KVSCOPE_TEAM_CODE void count(int wanted) {
        const int taken = wanted < c_.free ? wanted : c_.free;
        if (taken < wanted) c_.failed = 1;
        c_.head += taken, c_.free -= taken, c_.used += taken;
    }

    /// Takes slots from the least recently selected blocks, until `misses` more blocks keep to `slots` and have free
    /// ones. Blocks noted from the position `pinned` on stay.
    KVSCOPE_TEAM_CODE void makeFree(int misses, std::int64_t slots, std::int64_t pinned) {
        std::int64_t leaving = c_.used + misses - slots;
        if (leaving < misses - c_.free) leaving = misses - c_.free;
        team_.sync();
        while (leaving > 0 && c_.tail < pinned) {
            const std::int64_t at = c_.tail + team_.thread;
            const int slot = at < pinned ? s_.log[place(at)] : -1;
            const bool counts = slot >= 0 && s_.lastAt[slot] == at;
            int all = 0;
            const int before = team_.prefix(counts ? 1 : 0, all);
            if (counts && before < leaving) {
                *s_.owner[slot] = -1;
                giveBack(slot, c_.free + before);
                if (before == leaving - 1) *team_.shared = at + 1;
            }
            team_.sync();
            const std::int64_t end = c_.tail + team_.threads;
            c_.tail = all >= leaving ? *team_.shared : end < pinned ? end : pinned;
            const int left = all < leaving ? all : int(leaving);
            c_.free += left, c_.used -= left, leaving -= left;
            team_.sync();
        }
    }

    KVSCOPE_TEAM_CODE void load(const Entry& e, int slot) {
        const PoolRow& row = *e.row;
        *e.listSlot() = slot < 0 ? row.newest + e.head : slot; // of a step that failed: any slot that exists
        if (slot < 0) return;
        const std::uint32_t move = team_.add(&row.moves.counts[0], 1u);
        row.moves.loads[move] = {row.storeFirst[e.head] + std::int64_t(e.block) * row.moves.storeUnits,
                                 row.slotFirst + slot};
        if (row.recordBlocks != nullptr) {
            PackedBlock& recorded = row.recordBlocks[e.head * row.capacity + e.entry];
            recorded = recorded.withHit(false);
        }
        if (row.recordHead == nullptr) return;
        SelectionHead& head = row.recordHead[e.head];
        team_.add(&head.misses, 1);
        if (head.selected > 0) team_.add(&head.hits, -1);
    }

    KVSCOPE_TEAM_CODE void placeTokens(const PoolArgs& a, int items) {
        const int dim = a.shape.dim, bs = a.shape.blockSize;
        for (int i = team_.thread; i < items * dim; i += team_.threads) {
            const int item = i / dim, c = i % dim, head = item % a.shape.kvHeads;
            const PoolRow& row = a.rows[item / a.shape.kvHeads];
            const int token = *row.position % bs;
            __nv_bfloat16* block = s_.blocks + std::size_t(row.newest + head) * blockElements(a.shape);
            block[token * dim + c] = row.newKey[head * dim + c];
            if (a.shape.latentValue > 0) continue;
            block[std::size_t(bs) * std::size_t(dim) +
                  std::size_t(a.valuesByToken ? token * dim + c : c * bs + token)] = row.newValue[head * dim + c];
        }
    }

    /// Blocks that the new tokens fill go to the host, and get a slot.
    KVSCOPE_TEAM_CODE void keepFilled(const PoolArgs& a, int items) {
        const int bs = a.shape.blockSize;
        int filled = 0;
        for (int base = 0; base < items; base += team_.threads) {
            const int item = base + team_.thread, head = item % a.shape.kvHeads;
            const PoolRow& row = a.rows[item < items ? item / a.shape.kvHeads : 0];
            const int block = *row.position / bs;
            const bool full = item < items && *row.position % bs == bs - 1;
            int all = 0;
            const int before = team_.prefix(full ? 1 : 0, all); // also: all tokens are placed
            if (full) {
                const std::uint32_t move = team_.add(&row.moves.counts[1], 1u);
                row.moves.writeBacks[move] = {row.storeFirst[head] + std::int64_t(block) * row.moves.storeUnits,
                                              row.slotFirst + row.newest + head};
                take(before, row.slotOf + std::int64_t(head) * row.blocks + block);
                s_.filled[filled + before] = item;
            }
            count(all);
            filled += all;
        }
        team_.sync();
        struct alignas(16) Words {
            std::uint32_t words[4];
        };
        const int words = int(blockBytes(a.shape) / sizeof(Words));
        for (int i = 0; i < filled; ++i) {
            const int item = s_.filled[i], head = item % a.shape.kvHeads;
            const PoolRow& row = a.rows[item / a.shape.kvHeads];
            const int slot = row.slotOf[std::int64_t(head) * row.blocks + *row.position / bs];
            if (slot < 0) continue; // there was none
            const std::size_t size = blockElements(a.shape);
            const auto* from = reinterpret_cast<const Words*>(s_.blocks + std::size_t(row.newest + head) * size);
            auto* to = reinterpret_cast<Words*>(s_.blocks + std::size_t(slot) * size);
            for (int w = team_.thread; w < words; w += team_.threads) to[w] = from[w];
        }
    }

    /// The last call of a launch.
    KVSCOPE_TEAM_CODE void save() {
        team_.sync();
        if (team_.thread == 0) *s_.counts = c_;
    }

    const PoolState& s_;
    Team& team_;
    PoolCounts c_; // of every thread the same
};

} // namespace kvscope::cuda
