// What all phases of the selection use: sizes, the places of arrays in shared memory, and the item of a cluster.
#pragma once

#include "kernels/cuda/choice/select.h"

#include "kernels/cuda/device/ranking.cuh"

namespace kvscope::cuda {

constexpr int kUnitWindows = 24; // pooling windows that a warp scores together

/// The threads of a thread block, of which each takes kTeamItems KV blocks of the sequence.
template <int kTeamThreads, int kTeamItems> struct SelectTeam {
    static constexpr int kThreads = kTeamThreads, kItems = kTeamItems, kWarps = kThreads / kWarp,
                         kBlocks = kThreads * kItems;
    /// Units of windows whose exponentials a warp can hold in registers (HeldScores), and the windows that all warps
    /// hold.
    static constexpr int kHeldTurns = kBlocks <= 512 ? 1 : 2, kHeldWindows = kHeldTurns * kWarps * kUnitWindows;
    /// The number of this thread's i-th KV block. Neighbouring threads take neighbouring blocks, so that a vote of a
    /// warp is one word of a bitmap of blocks.
    static __device__ int blockOf(int i) { return i * kThreads + int(threadIdx.x); }
};
using ShortSelect = SelectTeam<256, 2>; // fewer warps are quicker where there is little to do
using LongSelect = SelectTeam<512, 4>;
using LongestSelect = SelectTeam<512, 16>;

constexpr int kSelectCluster = 16; // most thread blocks that share a KV head's windows
constexpr int kSelectBinBits = 10, kSelectBins = 1 << kSelectBinBits; // bins of the choice's histograms
constexpr int kSelectClose = 2 * kWarp;               // at most so many candidates are compared each with each
constexpr std::uint32_t kSelectFine = (8u << 23) - 1; // the distance of keys whose scores differ by a factor of 2^8
constexpr int kHeldHeads = 16;                        // most query heads of which exponentials are held in registers
constexpr int kSelectGroup = 64;                      // most query heads of a KV head
static_assert(kSelectGroup >= kMostGroup && kSelectGroup >= kMostLatentHeads);
constexpr std::uint8_t kUnchosen = 0xff; // stands in place of an Origin

/// Numbers that are worked out for a launch, so that no thread has to divide. Offsets are bytes from the start of
/// shared memory.
struct SelectPlan {
    int group = 1, blocksPerRank = 0;
    int windowsPerRank = 0; // with the windows that begin in the rank before's blocks and reach into this rank's
    int stride = 0;         // floats of a head's exponentials: whole units, and eight heads lie in different banks
    Divider byStride, byBlock, byHeads, byRanks, byGroup;
    unsigned exponentials = 0, references = 0, aware = 0, agnostic = 0, origin = 0, freeSlots = 0, slotUse = 0,
             blockIn = 0, freeBits = 0;
    std::size_t total = 0;

    SelectPlan(const SelectArgs& a, int ranks);
    /// Units of a rank's windows, the last one perhaps not full.
    int units() const { return (windowsPerRank + kUnitWindows - 1) / kUnitWindows; }
};

/// The blocks whose keys (ranking.cuh) lie from low to low + span. There are `inside` of them, and the `wanted` best
/// are taken.
struct KeyRange {
    std::uint32_t low, span;
    int wanted, inside;
};

template <class Team> struct SelectSmall {
    float2 warps[Team::kWarps][kSelectGroup];   // maximum and sum of every warp for each query head
    float2 ranks[kSelectCluster][kSelectGroup]; // the same of every rank
    typename BlockCounter<Team::kWarps>::Shared counts;
    alignas(16) int bins[kSelectBins]; // zero between histograms
    KeyRange range;
    std::uint64_t closest[2][kSelectClose]; // [pick] candidates that are compared each with each
    std::uint32_t highest[2], lowest[2];    // [pick] of the candidates' keys
    int close[2], kept, freshMissed, lastSlot;
    int tail; // the slot of the newest token's block; -1: in none yet
    /// Complete after the next barrier.
    __device__ void clear() {
        if (threadIdx.x < 2) highest[threadIdx.x] = 0, lowest[threadIdx.x] = 0xffffffffu, close[threadIdx.x] = 0;
        if (threadIdx.x == 0) kept = freshMissed = 0, tail = -1;
#pragma unroll
        for (int i = threadIdx.x; i < kSelectBins; i += Team::kThreads) bins[i] = 0;
    }
};

/// The phases' arrays in shared memory.
struct SelectShared {
    float *exponentials, *references, *aware, *agnostic;
    std::uint8_t* origins;                       // [blocks] of SelectArgs::chosen
    std::int32_t *freeSlots, *slotUse, *blockIn; // [slots]
    std::uint32_t* freeBits;                     // a bit for each slot: no chosen block is in it
    __device__ SelectShared(char* base, const SelectPlan& plan, const SelectArgs& a)
        : exponentials(reinterpret_cast<float*>(base + plan.exponentials)),
          references(reinterpret_cast<float*>(base + plan.references)),
          aware(reinterpret_cast<float*>(base + plan.aware)), agnostic(reinterpret_cast<float*>(base + plan.agnostic)),
          origins(reinterpret_cast<std::uint8_t*>(base + plan.origin)),
          freeSlots(reinterpret_cast<std::int32_t*>(base + plan.freeSlots)),
          slotUse(reinterpret_cast<std::int32_t*>(base + plan.slotUse)),
          blockIn(reinterpret_cast<std::int32_t*>(base + plan.blockIn)),
          freeBits(reinterpret_cast<std::uint32_t*>(base + plan.freeBits)) {}
};

/// The (row, KV head) of a cluster and where it stands in its sequence.
struct SelectItem {
    int item, row, head, position, current, blocks, tokens;
    int firstToken, firstBlock; // the first ones that the query sees; above 0 only with a sliding window
    bool dense;
};

} // namespace kvscope::cuda
