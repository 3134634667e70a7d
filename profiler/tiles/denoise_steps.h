// The forwards of one sequence of a block-diffusion run, step by step, as they come from the trace: tiles in any order,
// a preview for those that are missing, more steps at the end while the run grows.
#pragma once

#include "profiler/read/denoising.h"
#include "profiler/tiles/tiled_steps.h"

#include <map>
#include <optional>
#include <unordered_map>

namespace kvscope {

/// A forward and the positions of its block; both live as long as the tile they are in.
struct Forward {
    const ForwardRow* row = nullptr; // null: the sequence has no forward in this step, or it is not read yet
    std::span<const ForwardCell> cells{};
    explicit operator bool() const { return row != nullptr; }
    int firstPosition() const { return row->firstPosition; }
    int lastPosition() const { return row->lastPosition; }
};

/// Up to kTileSteps neighbouring steps, or evenly spaced ones of a preview.
class DenoiseTile {
public:
    DenoiseTile(ForwardRows rows, int firstStep, int steps, int stride = 1);
    int steps() const { return int(rowOf_.size()); }
    /// Number `step` of the tile. No row: no forward, or one without any position.
    Forward forward(int step) const;
    const ForwardRows& rows() const { return rows_; }
    void append(const DenoiseTile& more);

private:
    ForwardRows rows_;
    std::vector<std::int32_t> rowOf_; // by step; -1: none
};

/// Reads the steps [first, last], which lie within one tile. @throws Error as TraceReader does
std::shared_ptr<DenoiseTile> readTile(const TraceReader& reader, const DenoiseRequest& request, int first, int last);
/// Reads only the steps 0, stride, 2 * stride, ... of a run of `steps`.
std::shared_ptr<DenoiseTile> readPreview(const TraceReader& reader, const DenoiseRequest& request, int steps,
                                         int stride);

class DenoiseSteps {
public:
    /// What became of one position.
    struct Fact {
        std::int32_t id = 0; // of the token that is there; of the mask while it is masked
        int written = -1;    // step of the forward after which it was written; -1: none of those that are read
        bool masked = false; // the last forward that is read left a mask there
        int block = 0;
    };
    /// Where and when a block was denoised, as far as it is read.
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
    unsigned revision() const { return revision_; } // another number after every change

    /// The forward of a step, of a neighbour while only a preview is there.
    Forward at(int step) const;
    /// The first step from `step` on, and at most `last`, that may have a forward: without the tiles that have none.
    int next(int step, int last) const;
    /// The nearest forward that is read before `step`.
    Forward before(int step) const;

    /// The lowest and the highest position of all blocks. @pre !empty()
    int lowest() const { return lowest_; }
    int highest() const { return highest_; }
    int longestBlock() const { return longest_; }                  // positions; 0: no forward is read yet
    const std::map<int, Block>& blocks() const { return blocks_; } // by number
    std::optional<Fact> fact(int position) const;
    /// The value below which this share of all changes of queries lies; 0 if there are none.
    float changeQuantile(double share) const;
    bool hasChanges() const { return hasChanges_; }
    bool hasSparse() const { return hasSparse_; } // some forward chose pages
    bool hasDense() const { return hasDense_; }   // some forward chose none

private:
    void note(const ForwardRows& rows);

    TiledSteps<DenoiseTile> tiles_;
    std::map<int, Block> blocks_;
    std::unordered_map<int, Fact> facts_; // by position
    int lowest_ = 0, highest_ = -1, longest_ = 0;
    bool hasChanges_ = false, hasSparse_ = false, hasDense_ = false;
    unsigned revision_ = 0;
};

} // namespace kvscope
