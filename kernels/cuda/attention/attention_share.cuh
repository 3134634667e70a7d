// How thread blocks share the lists of all items, an item being a (row, KV head, 16 of its query heads). A list is cut
// into stages. The stages of all items stand one after the other and are divided evenly: a thread block gets the end of
// one item, some whole items and the beginning of another, or only a part of a long item.
#pragma once

#include "kernels/cuda/attention/attention_parts.cuh"
#include "kernels/cuda/device/bulk_copy.cuh"

#include <algorithm>
#include <climits>

namespace kvscope::cuda {

constexpr int kStageTokens = 64; // a stage is one KV block, or several smaller ones
constexpr int kLeastStages = 4;  // a thread block with fewer stages costs more in the merge than it saves

constexpr int kSparedMultiprocessors = 12; // one of so many may stay idle

/// Floats that a part of an item leaves in memory: the heads' results, then their maxima and sums.
constexpr std::size_t kPartFloats(int dim) { return std::size_t(kHeads) * std::size_t(dim + 2); }

/// Numbers that are worked out for a launch. `cells` is the number of items, a cell the number of one.
struct SharePlan {
    int group = 1, headTiles = 1, blockShift = 0, cells = 0, fullStages = 1, blocks = 1;
    int mostBlocks = 1; // most thread blocks of a launch with as many rows or fewer: `blocks` may be less
};

inline SharePlan planShares(const Launch& how, const AttentionShape& shape, int rows, int maxBlocks) {
    SharePlan plan;
    plan.group = shape.group();
    plan.headTiles = (plan.group + kHeads - 1) / kHeads;
    while (1 << plan.blockShift < shape.blockSize) ++plan.blockShift;
    plan.cells = rows * shape.kvHeads * plan.headTiles;
    plan.fullStages = std::max(1, (maxBlocks * shape.blockSize + kStageTokens - 1) / kStageTokens);
    const std::int64_t all = std::int64_t(plan.cells) * plan.fullStages;
    plan.blocks = plan.mostBlocks = int(std::clamp<std::int64_t>(all / kLeastStages, 1, how.multiprocessors));
    // Leaves a few multiprocessors idle if then no thread block has parts of two items.
    const int whole = plan.cells < plan.blocks ? plan.blocks / plan.cells * plan.cells
                                               : plan.cells / ((plan.cells + plan.blocks - 1) / plan.blocks);
    if (plan.blocks - whole <= plan.blocks / kSparedMultiprocessors && plan.cells % std::min(plan.cells, whole) == 0)
        plan.blocks = whole;
    return plan;
}

/// The parts of an item: `count` neighbouring thread blocks from firstBlock on have one each. `mine` is where this
/// thread block keeps its part.
struct ItemParts {
    int firstBlock, count, mine;
    /// Where part i is kept. Thread block b has two places: 2b + 1 for an item's first part, 2b for any other part.
    __device__ int at(int i) const { return i == 0 ? 2 * firstBlock + 1 : 2 * (firstBlock + i); }
};

struct AttentionItem {
    int position, firstBlock, entries, mostEntries, stages, heads, blockShift; // firstBlock: 0 with a list
    bool biased;
    std::size_t cell, firstListed, firstQueryHead;
    std::int64_t headFirst, biasFirst;

    __device__ AttentionItem(const DecodeAttentionArgs& a, const SharePlan& plan, int cell)
        : blockShift(plan.blockShift), biased(a.bias.scores != nullptr && a.bias.scale != 0.f),
          cell(std::size_t(cell)) {
        const int item = cell / plan.headTiles, tile = cell - item * plan.headTiles, row = item / a.shape.kvHeads,
                  g = item - row * a.shape.kvHeads;
        const int head = (a.oneSequence ? a.sequence : row) * a.shape.kvHeads + g;
        const int skipped = a.list.first != nullptr ? a.list.first[item] : 0;
        headFirst = a.headFirst[head];
        biasFirst = biased ? a.bias.first[head] : 0;
        position = positionOf(a, row, item);
        firstBlock = firstSeen(a, position, blockShift);
        entries = a.list.count != nullptr ? a.list.count[item] - skipped : (position >> blockShift) + 1 - firstBlock;
        mostEntries = a.list.capacity - skipped;
        stages = stagesOf(entries, blockShift);
        firstListed = std::size_t(item) * a.list.capacity + skipped;
        heads = min(kHeads, plan.group - tile * kHeads);
        firstQueryHead = std::size_t(row) * a.shape.queryHeads + std::size_t(g) * plan.group + tile * kHeads;
    }

    /// Stages of an item. An empty list has one stage, so that somebody writes its zeros. A row that is not active has
    /// none.
    __device__ static int stagesOf(const DecodeAttentionArgs& a, const SharePlan& plan, int cell) {
        const int item = cell / plan.headTiles, row = item / a.shape.kvHeads;
        const bool active = a.active == nullptr || a.active[row] != 0;
        if (!active) return 0;
        if (a.list.count != nullptr)
            return stagesOf(a.list.count[item] - (a.list.first != nullptr ? a.list.first[item] : 0), plan.blockShift);
        const int position = positionOf(a, row, item);
        return stagesOf((position >> plan.blockShift) + 1 - firstSeen(a, position, plan.blockShift), plan.blockShift);
    }

private:
    __device__ static int firstSeen(const DecodeAttentionArgs& a, int position, int blockShift) {
        return a.window > 0 && a.list.count == nullptr ? max(0, position + 1 - a.window) >> blockShift : 0;
    }
    __device__ static int positionOf(const DecodeAttentionArgs& a, int row, int item) {
        if (a.packedTokens != nullptr) return a.packedTokens[item] - 1;
        return a.position[row] + (a.shift != nullptr ? a.shift[row] : 0);
    }
    __device__ static int stagesOf(int entries, int blockShift) {
        const int perStage = kStageTokens >> blockShift;
        return max(1, (entries + perStage - 1) / perStage);
    }
};

/// A thread block's share: the item and the stage of it where the thread block goes on, and how many stages are left.
/// Every warp works this out by itself.
struct Share {
    int cell = 0, first = 0, left = 0;

    /// The share if all lists are full. Needs nothing that earlier kernels write, and may be made before the wait.
    __device__ Share(const DecodeAttentionArgs& a, const SharePlan& plan)
        : all_(plan.cells * plan.fullStages), blocks_(plan.blocks), a_(a), plan_(plan) {
        const int begin = beginOf(int(blockIdx.x));
        left = beginOf(int(blockIdx.x) + 1) - begin;
        cell = begin / plan.fullStages;
        itemBegin_ = cell * plan.fullStages;
        first = begin - itemBegin_;
    }

    /// Reads how long the lists really are and corrects the share. Called after the wait. @return whether all are full
    __device__ bool settle() {
        const DecodeAttentionArgs& a = a_;
        const SharePlan& plan = plan_;
        const int lane = threadIdx.x % kWarp;
        int mine = 0;
        bool full = true;
        for (int c = lane; c < plan.cells; c += kWarp) {
            const int stages = AttentionItem::stagesOf(a, plan, c);
            mine += stages;
            full = full && stages == plan.fullStages;
        }
        if (__all_sync(0xffffffffu, full)) return true;
        all_ = __reduce_add_sync(0xffffffffu, unsigned(mine));
        cell = first = left = itemBegin_ = 0;
        blocks_ = min(plan.blocks, max(1, all_ / kLeastStages));
        if (int(blockIdx.x) >= blocks_) return false;
        const int begin = beginOf(int(blockIdx.x));
        left = beginOf(int(blockIdx.x) + 1) - begin;
        for (; left > 0 && cell < plan.cells; cell += kWarp) {
            const int stages = cell + lane < plan.cells ? AttentionItem::stagesOf(a, plan, cell + lane) : 0;
            int end = itemBegin_ + stages;
            for (int step = 1; step < kWarp; step *= 2) {
                const int before = __shfl_up_sync(0xffffffffu, end, step);
                if (lane >= step) end += before - itemBegin_;
            }
            const unsigned beyond = __ballot_sync(0xffffffffu, end > begin);
            if (beyond == 0) {
                itemBegin_ = __shfl_sync(0xffffffffu, end, kWarp - 1);
                continue;
            }
            const int found = __ffs(int(beyond)) - 1;
            itemBegin_ = __shfl_sync(0xffffffffu, end - stages, found);
            cell += found;
            first = begin - itemBegin_;
            return false;
        }
        return false;
    }

    __device__ ItemParts parts(const AttentionItem& item) const {
        const int from = ownerOf(itemBegin_), count = ownerOf(itemBegin_ + item.stages - 1) - from + 1;
        return {from, count, 2 * int(blockIdx.x) + (int(blockIdx.x) == from ? 1 : 0)};
    }

    /// Goes on behind `stages` stages of the item, with which the share or the item ends.
    __device__ void next(int stages) {
        left -= stages;
        if (left <= 0) return;
        itemBegin_ += first + stages;
        first = 0;
        do ++cell;
        while (AttentionItem::stagesOf(a_, plan_, cell) == 0);
    }

private:
    __device__ int beginOf(int block) const {
        return int(unsigned(all_) / unsigned(blocks_)) * block +
               int(unsigned(all_) % unsigned(blocks_) * std::uint64_t(unsigned(block)) / unsigned(blocks_));
    }
    __device__ int ownerOf(int stage) const { return int(((stage + std::int64_t(1)) * blocks_ - 1) / all_); }

    int all_, blocks_, itemBegin_ = 0;
    const DecodeAttentionArgs& a_;
    const SharePlan& plan_;
};

} // namespace kvscope::cuda
