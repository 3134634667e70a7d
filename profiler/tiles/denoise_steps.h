// The forwards of one sequence of a block-diffusion run, by step. They come from the trace as tiles in any order; a
// preview stands in for tiles that are missing, and steps are added while the run grows.
#pragma once

#include "profiler/read/denoising.h"
#include "profiler/tiles/tiled_steps.h"

#include <map>
#include <optional>
#include <unordered_map>

namespace kvscope {

/// A forward and the positions of its block. Both live as long as the tile that they are in.
struct Forward {
    const ForwardRow* row = nullptr; // null: the sequence has no forward in this step, or the step is not read yet
    std::span<const ForwardCell> cells{};
    explicit operator bool() const { return row != nullptr; }
    int firstPosition() const { return row->firstPosition; }
    int lastPosition() const { return row->lastPosition; }
};

/// Up to kTileSteps neighbouring steps, or evenly spaced ones of a preview.
class DenoiseTile {
public:
    DenoiseTile(ForwardRows rows, int firstStep, int steps, int stride = 1);
    int steps() const { return rowOf_.count(); }
    /// The forward in step number `step` of the tile. Its row is null where the step has no forward, or one without
    /// positions.
    Forward forward(int step) const;
    const ForwardRows& rows() const { return rows_; }
    void append(const DenoiseTile& more);

private:
    ForwardRows rows_;
    Numbered<std::int32_t> rowOf_; // by step; -1: none
};

/// Reads the steps [first, last], which lie within one tile. @throws Error as TraceReader does
std::shared_ptr<DenoiseTile> readTile(const TraceReader& reader, const DenoiseRequest& request, int first, int last);
/// Reads only the steps 0, stride, 2 * stride, ... of a run of `steps`.
std::shared_ptr<DenoiseTile> readPreview(const TraceReader& reader, const DenoiseRequest& request, int steps,
                                         int stride);

class DenoiseSteps {
public:
    /// What has become of one position.
    struct Fact {
        std::int32_t id = 0; // the token that is there; the mask's id while it is masked
        int written = -1;    // the step whose forward wrote it; -1: no forward that was read
        bool masked = false; // the last forward that was read left a mask there
        int block = 0;
    };
    /// Where and when a block was denoised, as far as its forwards are read.
    struct Block {
        int firstPosition = 0, lastPosition = 0, firstStep = 0, lastStep = 0;
    };

    void reset() { *this = {}; }
    void announce(int steps) { tiles_.announce(steps), ++revision_; }
    void place(int first, std::shared_ptr<DenoiseTile> tile, int times = 1);
    void setPreview(std::shared_ptr<const DenoiseTile> preview, int stride);

    const TiledSteps<DenoiseTile>& tiles() const { return tiles_; }
    int steps() const { return tiles_.steps(); }
    bool empty() const { return blocks_.empty(); }  // no forward is read yet
    unsigned revision() const { return revision_; } // changes with every change of the data

    /// The forward of a step. While only a preview is there, it is that of a neighbouring step.
    Forward at(int step) const;
    /// The first step in [step, last] that may have a forward. Passes over tiles without any.
    int next(int step, int last) const;
    /// The nearest forward before `step` that is read.
    Forward before(int step) const;

    /// The lowest and the highest position of all blocks. @pre !empty()
    int lowest() const { return lowest_; }
    int highest() const { return highest_; }
    int longestBlock() const { return longest_; }                  // positions; 0: no forward is read yet
    const std::map<int, Block>& blocks() const { return blocks_; } // by number
    std::optional<Fact> fact(int position) const;
    /// The value that this share of all changes of queries lies below; 0 where there are none.
    float changeQuantile(double share) const;
    bool hasChanges() const { return hasChanges_; }
    bool hasSparse() const { return hasSparse_; }     // at least one forward chose pages
    bool hasDense() const { return hasDense_; }       // some forward chose none
    bool hasReuse() const { return hasReuse_; }       // in some sparse forward a position was not active
    bool hasTileRows() const { return hasTileRows_; } // some forward has densities of rows of tiles

private:
    void note(const ForwardRows& rows);

    TiledSteps<DenoiseTile> tiles_;
    std::map<int, Block> blocks_;
    std::unordered_map<int, Fact> facts_; // by position
    int lowest_ = 0, highest_ = -1, longest_ = 0;
    bool hasChanges_ = false, hasSparse_ = false, hasDense_ = false, hasReuse_ = false, hasTileRows_ = false;
    unsigned revision_ = 0;
};

} // namespace kvscope
