// A sparse mask of blocks x steps, made of tiles. For any range of steps it tells exactly which blocks any step
// selected and how often. Made for 100,000 steps of 4,096 blocks and more.
#pragma once

#include "profiler/tiles/mask_tile.h"
#include "profiler/tiles/tiled_steps.h"

namespace kvscope {

class MaskPyramid {
public:
    void reset();
    /// @pre all steps are known
    void append(const MaskChunk& chunk);
    void place(int first, std::shared_ptr<MaskTile> tile, int times = 1);
    void setPreview(std::shared_ptr<const MaskTile> preview, int stride);
    void announce(int steps);
    const TiledSteps<MaskTile>& tiles() const { return tiles_; }
    int steps() const { return tiles_.steps(); }
    /// Largest block id seen plus one.
    int blocks() const { return blocks_; }

    // The cells of a step; none for a step that is not known.
    std::span<const MaskCell> cells(int step) const;
    std::optional<MaskBits> find(int step, int block) const;

    // These take the steps [first, last), as far as they exist, and write into arrays of blocks() entries.
    void bits(int first, int last, std::span<MaskBits> bits) const;
    /// @return how many steps are counted: those that are known, or those of a preview
    int counts(int first, int last, MaskCounts counts) const;
    /// Adds up by band. @return how many steps are counted
    int bands(int first, int last, MaskBandSums& sums) const;
    /// How many of the steps select `block`, and how many of these missed it.
    std::array<int, 2> count(int block, int first, int last) const;
    /// How many blocks a step of the range selects and misses on average; NaN where no step is known.
    std::array<double, 2> perStep(int first, int last) const;
    std::size_t bytes() const;
    /// A number that grows with every change. A picture of another revision is out of date.
    unsigned revision() const { return revision_; }

private:
    TiledSteps<MaskTile> tiles_;
    int blocks_ = 0;
    unsigned revision_ = 0;
};

} // namespace kvscope
