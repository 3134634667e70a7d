// What all choices of blocks are made of: pooling of window scores, forced blocks, two-phase top-k, set difference.
// Each call is for one (sequence, KV head). Plain functions: every method and every test calls the same ones.
#pragma once

#include "kernels/packed_block.h"

#include <cstdint>
#include <span>
#include <vector>

namespace kvscope {

/// Grid of mean-pooled windows (InfLLM-V2, NOSA): window c covers tokens stride*c .. stride*c + kernel - 1.
struct PoolingGrid {
    int kernel = 32, stride = 16, blockSize = 64;
    int windowsPerBlock() const { return blockSize / stride; }
    /// Complete windows among n tokens: 0 below `kernel`, else (n - kernel)/stride + 1.
    int windows(int tokens) const { return tokens < kernel ? 0 : (tokens - kernel) / stride + 1; }
    int blocks(int tokens) const { return (tokens + blockSize - 1) / blockSize; }
};

/// pooled[j] = max over the windows that overlap block j by at least one token, clipped to [0, scores.size()); -inf if
/// none. For kernel 32, stride 16, block 64: windows 4j-1 .. 4j+3. (InfLLM-V2, "max pooling 5/4/1".)
void poolToBlocks(const PoolingGrid& grid, std::span<const float> scores, std::span<float> pooled);

struct SelectionBudget {
    int sink = 1;
    int window = 4;                 // blocks ending at the current one
    bool windowAddsCurrent = false; // true: `window` earlier blocks plus the current one (the public kernels' count)
    int queryAware = 0;             // best blocks by queryAware score among those not forced
    int queryAgnostic = 0;          // then best by queryAgnostic score among the rest
};

struct SelectedBlock {
    std::int32_t block = 0;
    Origin origin = Origin::Sink;
    float score = 0.f; // query-agnostic blocks: that score; all others: the query-aware score; NaN where none exists
};

/// Blocks 0..current exist. Forced blocks first, then the two picks; equal scores: the lower block wins; NaN counts as
/// -inf; a block scoring -inf may still be taken when nothing better is left. Result ascending by block.
/// `queryAware` / `queryAgnostic` have current+1 entries or are empty when their budget is 0.
void selectBlocks(const SelectionBudget& budget, int current, std::span<const float> queryAware,
                  std::span<const float> queryAgnostic, std::vector<SelectedBlock>& result);

/// Slot map of one (sequence, layer, KV head): NOSI's set difference with keep-selected replacement (methods 1.7).
/// slots[i] holds a block id or -1. On return every id of `wanted` has a slot; a slot whose block is wanted keeps it;
/// the r-th missing id goes to the r-th free slot in `freeOrder` order. load[i] = id to copy into slot i, or -1.
/// freeOrder: permutation of slot indices giving the order of replacement; empty means slot order.
/// Needs wanted.size() <= slots.size() and no duplicates. @return number of hits
int setDifference(std::span<std::int32_t> slots, std::span<const std::int32_t> wanted, std::span<std::int32_t> load,
                  std::span<const std::int32_t> freeOrder = {});

} // namespace kvscope
