// What the phases of the selection share: where things lie in shared memory, and the order of scores.
#pragma once

#include "kernels/cuda/select.h"

#include "kernels/cuda/ranking.cuh"

namespace kvscope::cuda {

/// Threads of a thread block, each with so many blocks of the sequence.
template <int kTeamThreads, int kTeamItems> struct SelectTeam {
    static constexpr int kThreads = kTeamThreads, kItems = kTeamItems, kWarps = kThreads / kWarp,
                         kBlocks = kThreads * kItems;
    /// Neighbouring threads have neighbouring blocks: a warp's vote is a word of a bitmap.
    static __device__ int blockOf(int i) { return i * kThreads + int(threadIdx.x); }
};
using ShortSelect = SelectTeam<256, 2>; // fewer warps are quicker where there is little to do
using LongSelect = SelectTeam<512, 4>;
using LongestSelect = SelectTeam<512, 16>;

constexpr int kSelectCluster = 16; // most thread blocks that share a KV head's windows
constexpr int kSelectBinBits = 10, kSelectBins = 1 << kSelectBinBits; // of the choice's histograms
constexpr int kSelectClose = 2 * kWarp;                               // so few candidates are compared each with each
constexpr std::uint32_t kSelectFine = (8u << 23) - 1;                 // eight powers of two, as keys
constexpr int kUnitWindows = 24;                                      // windows that a warp scores together
constexpr int kSelectGroup = 64;                                      // most query heads of a KV head
static_assert(kSelectGroup >= kMostGroup && kSelectGroup >= kMostLatentHeads);
constexpr std::uint8_t kUnchosen = 0xff; // in place of an Origin

/// What a launch fixes, so that no thread divides; offsets are bytes of shared memory from its start.
struct SelectPlan {
    int group = 1, blocksPerRank = 0;
    int windowsPerRank = 0; // including the ones that reach in from the rank before
    int stride = 0;         // of a head's exponentials: whole units, and eight heads at a time meet no bank twice
    Divider byStride, byBlock, byHeads, byRanks, byGroup;
    unsigned exponentials = 0, references = 0, aware = 0, agnostic = 0, origin = 0, slotOf = 0, freeSlots = 0,
             slotUse = 0, blockIn = 0, freeBits = 0;
    std::size_t total = 0;

    SelectPlan(const SelectArgs& a, int ranks);
    /// Windows per rank rounded to whole units.
    int units() const { return (windowsPerRank + kUnitWindows - 1) / kUnitWindows; }
};

/// Blocks whose keys (ranking.cuh) lie in a range, of which the `wanted` best are taken.
struct KeyRange {
    std::uint32_t low, span; // keys low..low+span
    int wanted, inside;
};

template <class Team> struct SelectSmall {
    float2 warps[kSelectGroup][Team::kWarps];   // maximum and sum of every warp, per query head
    float2 ranks[kSelectCluster][kSelectGroup]; // of every rank
    typename BlockCounter<Team::kWarps>::Shared counts;
    alignas(16) int bins[kSelectBins]; // zero between histograms
    KeyRange range;
    std::uint64_t closest[2][kSelectClose]; // of the two choices
    std::uint32_t highest[2], lowest[2];    // keys of the two choices
    int close[2], kept, hits, freshMissed, lastSlot;
    /// Complete after the next barrier.
    __device__ void clear() {
        if (threadIdx.x < 2) highest[threadIdx.x] = 0, lowest[threadIdx.x] = 0xffffffffu, close[threadIdx.x] = 0;
        if (threadIdx.x == 0) kept = hits = freshMissed = 0;
#pragma unroll
        for (int i = threadIdx.x; i < kSelectBins; i += Team::kThreads) bins[i] = 0;
    }
};

/// The phases' arrays in shared memory.
struct SelectShared {
    float *exponentials, *references, *aware, *agnostic;
    std::uint8_t* origins;                       // of a choice made elsewhere
    std::int16_t* slotOf;                        // [blocks]: blockIn[slotOf[b]] is b where b has a slot; else anything
    std::int32_t *freeSlots, *slotUse, *blockIn; // [slots]
    std::uint32_t* freeBits;                     // of the slots
    __device__ SelectShared(char* base, const SelectPlan& plan, const SelectArgs& a)
        : exponentials(reinterpret_cast<float*>(base + plan.exponentials)),
          references(reinterpret_cast<float*>(base + plan.references)),
          aware(reinterpret_cast<float*>(base + plan.aware)), agnostic(reinterpret_cast<float*>(base + plan.agnostic)),
          origins(reinterpret_cast<std::uint8_t*>(base + plan.origin)),
          slotOf(reinterpret_cast<std::int16_t*>(base + plan.slotOf)),
          freeSlots(reinterpret_cast<std::int32_t*>(base + plan.freeSlots)),
          slotUse(reinterpret_cast<std::int32_t*>(base + plan.slotUse)),
          blockIn(reinterpret_cast<std::int32_t*>(base + plan.blockIn)),
          freeBits(reinterpret_cast<std::uint32_t*>(base + plan.freeBits)) {}
};

/// The (row, KV head) of a cluster and where it stands in its sequence.
struct SelectItem {
    int item, row, head, position, current, blocks, tokens;
    int firstToken, firstBlock; // that the query reaches: 0 but for a sliding window
    bool dense;
};

} // namespace kvscope::cuda
