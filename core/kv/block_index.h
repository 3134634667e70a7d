// What selection knows of the cached keys of one (sequence, layer, KV head): pooled keys and scores, or key ranges.
// Grows token by token; every window and range equals what a pass over all keys would give.
#pragma once

#include "base/aligned_buffer.h"
#include "base/extents.h"
#include "base/ids.h"
#include "base/indexed.h"
#include "core/plan/selection_spec.h"

#include <span>
#include <vector>

namespace kvscope {

class BlockIndex {
public:
    static constexpr int kTileWindows = 64; // pooled keys per transposed tile

    BlockIndex() = default;
    BlockIndex(const SelectionSpec& spec, int dim, int maxTokens);

    /// Appends the next token: rotated key [dim] and its eviction score.
    void append(const float* key, float score);

    int windows() const { return windows_; }                    // complete windows, pooled keys available
    const float* const* tiles() const { return tiles_.data(); } // each [dim, kTileWindows]
    NumberedSpan<const float> pooledScores() const { return {pooledScores_.data(), windows_}; }
    const float* ranges() const { return ranges_.data(); } // [blocks, 2, dim]: lowest, highest
    /// The key ranges from a block on.
    const float* rangesFrom(BlockId block) const { return ranges_.data() + rangeAt_.first(block); }

private:
    bool poolsKeys_ = false, poolsScores_ = false, exponentiates_ = false, keepsRanges_ = false;
    PoolingGrid grid_;
    int dim_ = 0, tokens_ = 0, windows_ = 0;
    Extents<int, int> recentAt_;         // [kernel, dim]
    Extents<int, int, int> tileAt_;      // [tiles, dim, kTileWindows]
    Extents<BlockId, int, int> rangeAt_; // [blocks, 2, dim]
    AlignedBuffer<float> recentKeys_;    // ring [kernel, dim]
    Numbered<float> recentScores_;       // ring [kernel]
    AlignedBuffer<float> tileData_;
    std::vector<const float*> tiles_;
    Numbered<float> pooledScores_;
    AlignedBuffer<float> ranges_;
};

} // namespace kvscope
