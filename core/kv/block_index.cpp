#include "core/kv/block_index.h"

#include <algorithm>
#include <cmath>

namespace kvscope {

BlockIndex::BlockIndex(const SelectionSpec& spec, int dim, int maxTokens) : grid_(spec.grid), dim_(dim) {
    poolsKeys_ = spec.queryScore == QueryScore::PooledSoftmax;
    poolsScores_ = spec.agnosticScore != AgnosticScore::None;
    exponentiates_ = spec.agnosticScore == AgnosticScore::ExpEviction;
    keepsRanges_ = spec.queryScore == QueryScore::RangeBound;
    const int maxWindows = grid_.windows(maxTokens);
    if (poolsKeys_) {
        const int tiles = (maxWindows + kTileWindows - 1) / kTileWindows;
        recentAt_ = Extents<int, int>(grid_.kernel, dim);
        tileAt_ = Extents<int, int, int>(tiles, dim, kTileWindows);
        recentKeys_ = AlignedBuffer<float>(recentAt_.size());
        tileData_ = AlignedBuffer<float>(tileAt_.size());
        for (int tile = 0; tile < tiles; ++tile) tiles_.push_back(tileData_.data() + tileAt_.first(tile));
    }
    if (poolsScores_) {
        recentScores_.resize(grid_.kernel);
        pooledScores_.resize(maxWindows);
    }
    if (keepsRanges_) {
        rangeAt_ = Extents<BlockId, int, int>(grid_.blocks(maxTokens), 2, dim);
        ranges_ = AlignedBuffer<float>(rangeAt_.size());
    }
}

void BlockIndex::append(const float* key, float score) {
    const int slot = tokens_ % grid_.kernel;
    if (poolsKeys_) std::copy_n(key, dim_, recentKeys_.data() + recentAt_.first(slot));
    if (poolsScores_) recentScores_[slot] = exponentiates_ ? std::exp(score) : score;
    if (keepsRanges_) {
        float* low = ranges_.data() + rangeAt_.first(BlockId{tokens_ / grid_.blockSize});
        float* high = low + dim_;
        const bool first = tokens_ % grid_.blockSize == 0;
        for (int c = 0; c < dim_; ++c) {
            low[c] = first ? key[c] : std::min(low[c], key[c]);
            high[c] = first ? key[c] : std::max(high[c], key[c]);
        }
    }
    ++tokens_;
    if (!poolsKeys_ && !poolsScores_) return;
    if (grid_.windows(tokens_) == windows_) return;
    // The window that ends with this token is complete: its mean, summed in token order.
    const int start = grid_.stride * windows_;
    const float share = 1.f / float(grid_.kernel);
    if (poolsKeys_) {
        const int tile = windows_ / kTileWindows, column = windows_ % kTileWindows;
        for (int c = 0; c < dim_; ++c) {
            float sum = 0;
            for (int t = 0; t < grid_.kernel; ++t) sum += recentKeys_[recentAt_.offset((start + t) % grid_.kernel, c)];
            tileData_[tileAt_.offset(tile, c, column)] = sum * share;
        }
    }
    if (poolsScores_) {
        float sum = 0;
        for (int t = 0; t < grid_.kernel; ++t) sum += recentScores_[(start + t) % grid_.kernel];
        pooledScores_[windows_] = sum * share;
    }
    ++windows_;
}

} // namespace kvscope
