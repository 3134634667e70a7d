// A step-major matrix with exact minimum, maximum and mean over any range of steps, so that a picture of many steps
// never loses a single slow step. It is made of tiles and grows at its end, as a live run does.
#pragma once

#include "profiler/tiles/heat_tile.h"
#include "profiler/tiles/tiled_steps.h"

namespace kvscope {

class StepPyramid {
public:
    /// Removes all steps. From now on a step has `rows` cells.
    void reset(int rows);
    int rows() const { return rows_; }
    int steps() const { return rows_ > 0 ? tiles_.steps() : 0; }
    bool empty() const { return steps() == 0; }
    /// The tiles, which say which steps exist and which of them are known.
    TiledSteps<HeatTile>& tiles() { return tiles_; }
    const TiledSteps<HeatTile>& tiles() const { return tiles_; }

    /// `values` holds whole columns, step-major: [steps][rows]. @pre all steps are known
    void append(std::span<const float> values);
    /// NaN: undefined, or not known yet.
    float at(int step, int row) const;

    /// Aggregates every row over [first, last), clipped to the steps there are. `out` has rows() entries.
    void aggregate(int first, int last, std::span<CellStats> out) const;
    /// Like aggregate, but only the sums and counts of every row, or only one extreme (-inf or +inf where undefined).
    void sums(int first, int last, std::span<double> sums, std::span<std::int64_t> counts) const;
    void extremes(int first, int last, Aggregate which, std::span<float> out) const;
    /// As aggregate(), for one row.
    CellStats stats(int row, int first, int last) const;
    /// All rows in [first, last) together.
    CellStats range(int first, int last) const;
    std::size_t bytes() const;

private:
    int rows_ = 0;
    TiledSteps<HeatTile> tiles_;
};

} // namespace kvscope
