// The tiles of a run. They may arrive in any order, and some may still be missing. When a run grows, its last tile
// grows. One object may stand for several tiles that are empty. A preview, which has evenly spaced steps of the run,
// stands in for tiles that are missing.
#pragma once

#include "base/indexed.h"
#include "profiler/tiles/step_spans.h"

#include <algorithm>
#include <cassert>
#include <memory>
#include <utility>
#include <vector>

namespace kvscope {

template <class Tile> class TiledSteps {
public:
    void reset() { *this = {}; }
    /// Says that the run has this many steps. Steps without a tile are unknown.
    void announce(int steps) {
        steps_ = std::max(steps_, steps);
        tiles_.resize(steps_ / kTileSteps + (steps_ % kTileSteps > 0 ? 1 : 0));
    }
    int steps() const { return steps_; }
    int known() const { return known_; }
    bool complete() const { return known_ == steps_; }
    bool knows(int step) const {
        if (step < 0 || step >= steps_) return false;
        const auto& tile = tiles_[step / kTileSteps];
        return tile && step % kTileSteps < tile->steps();
    }
    /// The tile of a step, which is number step % kTileSteps in it. @pre knows(step)
    const Tile& tileOf(int step) const { return *tiles_[step / kTileSteps]; }

    /// Adds a tile whose first step is `first`: the first step of a tile's range, or the step at which the tile in that
    /// place ends. times: this tile stands for as many whole tiles, beginning with that one.
    void place(int first, std::shared_ptr<Tile> tile, int times = 1) {
        assert(times == 1 || (first % kTileSteps == 0 && tile->steps() == kTileSteps));
        announce(first + (times - 1) * kTileSteps + tile->steps());
        for (int i = 1; i < times; ++i) tiles_[first / kTileSteps + i] = tile;
        known_ += (times - 1) * kTileSteps;
        auto& there = tiles_[first / kTileSteps];
        known_ += tile->steps();
        assert(first % kTileSteps == (there ? there->steps() : 0) && "tiles have no gaps");
        if (there)
            there->append(*tile);
        else
            there = std::move(tile);
        if (complete()) preview_.reset();
    }
    /// Sets the preview, of which column i stands for step i * stride.
    void setPreview(std::shared_ptr<const Tile> preview, int stride) {
        if (complete()) return;
        preview_ = std::move(preview);
        stride_ = std::max(stride, 1);
    }
    bool hasPreview() const { return preview_ != nullptr; }
    int stride() const { return stride_; }

    /// Calls visit(tile, first, last) for each part of [first, last) that a tile knows, or a preview.
    template <class Visit> void forEachPart(int first, int last, Visit&& visit) const {
        first = std::max(first, 0);
        last = std::min(last, steps_);
        while (first < last) {
            const int begin = first / kTileSteps * kTileSteps, end = std::min(begin + kTileSteps, last);
            const Tile* tile = tiles_[first / kTileSteps].get();
            const int known = tile ? begin + tile->steps() : begin;
            if (first < known) visit(*tile, first - begin, std::min(end, known) - begin);
            if (end > known && preview_) {
                const int from = std::max(first, known) / stride_,
                          to = std::max(from + 1, (end + stride_ - 1) / stride_);
                if (from < preview_->steps()) visit(*preview_, from, std::min(to, preview_->steps()));
            }
            first = end;
        }
    }
    /// Visits every tile once, also one that stands for several.
    template <class Visit> void forEachTile(Visit&& visit) const {
        const Tile* before = nullptr;
        for (const auto& tile : tiles_)
            if (tile && tile.get() != std::exchange(before, tile.get())) visit(*tile);
        if (preview_) visit(*preview_);
    }

private:
    Numbered<std::shared_ptr<Tile>> tiles_;
    std::shared_ptr<const Tile> preview_;
    int steps_ = 0, known_ = 0, stride_ = 1;
};

} // namespace kvscope
