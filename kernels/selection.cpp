#include "kernels/selection.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>

namespace kvscope {
namespace {

constexpr float kLowest = -std::numeric_limits<float>::infinity();

float comparable(float score) { return std::isnan(score) ? kLowest : score; }

/// Marks the `count` best candidates as taken with `origin`. Candidates are ascending; equal scores: the lower block
/// wins.
void takeBest(std::vector<std::int32_t>& candidates, int count, std::span<const float> scores, Origin origin,
              std::vector<SelectedBlock>& result) {
    const auto keep = std::min(std::size_t(std::max(count, 0)), candidates.size());
    if (keep == 0) return;
    const auto better = [&](std::int32_t a, std::int32_t b) {
        const float x = comparable(scores[std::size_t(a)]), y = comparable(scores[std::size_t(b)]);
        return x > y || (x == y && a < b);
    };
    const auto middle = candidates.begin() + std::ptrdiff_t(keep);
    if (middle != candidates.end()) std::nth_element(candidates.begin(), middle, candidates.end(), better);
    for (auto it = candidates.begin(); it != middle; ++it) result.push_back({*it, origin, scores[std::size_t(*it)]});
    candidates.erase(candidates.begin(), middle);
}

} // namespace

const char* nameOf(Origin origin) {
    switch (origin) {
    case Origin::Sink:
        return "sink";
    case Origin::Window:
        return "window";
    case Origin::QueryAware:
        return "query-aware";
    case Origin::QueryAgnostic:
        return "query-agnostic";
    case Origin::TokenLevel:
        return "token-level";
    }
    return "unknown";
}

void poolToBlocks(const PoolingGrid& grid, std::span<const float> scores, std::span<float> pooled) {
    const int windows = int(scores.size());
    for (int block = 0; block < int(pooled.size()); ++block) {
        const int firstToken = block * grid.blockSize, endToken = firstToken + grid.blockSize;
        // Window c overlaps the block when c*stride + kernel > firstToken and c*stride < endToken.
        const int first = firstToken < grid.kernel ? 0 : (firstToken - grid.kernel) / grid.stride + 1;
        const int end = std::min((endToken + grid.stride - 1) / grid.stride, windows);
        float best = kLowest;
        for (int c = first; c < end; ++c) best = std::max(best, comparable(scores[std::size_t(c)]));
        pooled[std::size_t(block)] = best;
    }
}

void selectBlocks(const SelectionBudget& budget, int current, std::span<const float> queryAware,
                  std::span<const float> queryAgnostic, std::vector<SelectedBlock>& result) {
    result.clear();
    const int firstWindow = current - budget.window + (budget.windowAddsCurrent ? 0 : 1);
    const auto scoreOf = [&](int block) {
        return queryAware.empty() ? std::numeric_limits<float>::quiet_NaN() : queryAware[std::size_t(block)];
    };
    thread_local std::vector<std::int32_t> candidates;
    candidates.clear();
    for (int block = 0; block <= current; ++block) {
        if (block < budget.sink)
            result.push_back({block, Origin::Sink, scoreOf(block)});
        else if (block >= firstWindow)
            result.push_back({block, Origin::Window, scoreOf(block)});
        else
            candidates.push_back(block);
    }
    takeBest(candidates, budget.queryAware, queryAware, Origin::QueryAware, result);
    takeBest(candidates, budget.queryAgnostic, queryAgnostic, Origin::QueryAgnostic, result);
    std::sort(result.begin(), result.end(), [](const auto& a, const auto& b) { return a.block < b.block; });
}

int setDifference(std::span<std::int32_t> slots, std::span<const std::int32_t> wanted, std::span<std::int32_t> load,
                  std::span<const std::int32_t> freeOrder) {
    assert(wanted.size() <= slots.size() && load.size() == slots.size());
    thread_local std::vector<std::int32_t> sorted;
    thread_local std::vector<std::uint8_t> found, kept;
    sorted.assign(wanted.begin(), wanted.end());
    std::sort(sorted.begin(), sorted.end());
    found.assign(sorted.size(), 0);
    kept.assign(slots.size(), 0);
    int hits = 0;
    for (std::size_t slot = 0; slot < slots.size(); ++slot) {
        load[slot] = -1;
        if (slots[slot] < 0) continue;
        const auto at = std::lower_bound(sorted.begin(), sorted.end(), slots[slot]);
        if (at == sorted.end() || *at != slots[slot]) continue;
        found[std::size_t(at - sorted.begin())] = 1;
        kept[slot] = 1;
        ++hits;
    }
    std::size_t next = 0;
    const auto freeSlot = [&] {
        for (;; ++next) {
            const std::size_t slot = freeOrder.empty() ? next : std::size_t(freeOrder[next]);
            if (!kept[slot]) return ++next, slot;
        }
    };
    for (const std::int32_t id : wanted) {
        const auto at = std::size_t(std::lower_bound(sorted.begin(), sorted.end(), id) - sorted.begin());
        if (found[at]) continue;
        const std::size_t slot = freeSlot();
        slots[slot] = id;
        load[slot] = id;
    }
    return hits;
}

} // namespace kvscope
