// What the phases of the selection share: where things lie in shared memory, and the order of scores.
#pragma once

#include "kernels/cuda/select.h"

#include "kernels/cuda/ranking.cuh"

namespace kvscope::cuda {

constexpr int kSelectThreads = 256, kSelectWarps = kSelectThreads / kWarp;
constexpr int kSelectCluster = 8;    // most thread blocks that share a KV head's windows
constexpr int kMostSelectItems = 32; // blocks per thread: 8192 blocks
constexpr int kUnitWindows = 24;     // windows that a warp scores together
constexpr int kSelectGroup = 64;     // most query heads of a KV head
static_assert(kSelectGroup >= kMostGroup && kSelectGroup >= kMostLatentHeads);
constexpr std::uint8_t kUnchosen = 0xff; // in place of an Origin

/// What a launch fixes, so that no thread divides; offsets are bytes of shared memory from its start.
struct SelectPlan {
    int group = 1, rankShift = 0, blocksPerRank = 0;
    int windowsPerRank = 0; // including the ones that reach in from the rank before
    int stride = 0;         // of a head's exponentials: whole units, and eight heads at a time meet no bank twice
    Divider byStride, byBlock, byHeads;
    unsigned exponentials = 0, references = 0, windowSums = 0, aware = 0, agnostic = 0, origin = 0, listAt = 0,
             freeSlots = 0, slotUse = 0, list = 0;
    std::size_t total = 0;

    SelectPlan(const SelectArgs& a, int ranks);
    /// Windows per rank rounded to whole units.
    int units() const { return (windowsPerRank + kUnitWindows - 1) / kUnitWindows; }
};

struct SelectSmall {
    float maxima[kSelectWarps][kSelectGroup], sums[kSelectWarps][kSelectGroup]; // per warp and query head
    float2 ranks[kSelectCluster][kSelectGroup]; // maximum and sum of every rank, per query head
    BlockCounter<kSelectWarps>::Shared counts;
    uint4 rounds[2][kSelectWarps / 2]; // of every warp two words
    uint2 extremes[kSelectWarps];
    int freshMissed;
};

/// The phases' arrays in shared memory.
struct SelectShared {
    float *exponentials, *references, *windowSums, *aware, *agnostic;
    std::uint8_t* origins;
    std::int16_t* listAt; // [blocks] place in the list, or -1
    std::int32_t *freeSlots, *slotUse, *slotBlock, *list, *slots;
    __device__ SelectShared(char* base, const SelectPlan& plan, const SelectArgs& a)
        : exponentials(reinterpret_cast<float*>(base + plan.exponentials)),
          references(reinterpret_cast<float*>(base + plan.references)),
          windowSums(reinterpret_cast<float*>(base + plan.windowSums)),
          aware(reinterpret_cast<float*>(base + plan.aware)), agnostic(reinterpret_cast<float*>(base + plan.agnostic)),
          origins(reinterpret_cast<std::uint8_t*>(base + plan.origin)),
          listAt(reinterpret_cast<std::int16_t*>(base + plan.listAt)),
          freeSlots(reinterpret_cast<std::int32_t*>(base + plan.freeSlots)),
          slotUse(reinterpret_cast<std::int32_t*>(base + plan.slotUse)), slotBlock(slotUse + a.slots),
          list(reinterpret_cast<std::int32_t*>(base + plan.list)), slots(list + a.capacity) {}
};

/// The (row, KV head) of a cluster and where it stands in its sequence.
struct SelectItem {
    int item, row, head, position, current, blocks, tokens;
    int firstToken, firstBlock; // that the query reaches: 0 but for a sliding window
    bool dense;
};

} // namespace kvscope::cuda
