// A tile of a heatmap: up to 4,096 steps of a step-major matrix, and for each row the sums and extremes of every
// aligned group of 4, 16, ... steps. Any range of steps consists of a few groups, so that a picture of many steps is
// exact and takes no longer than one of few. About 10 bytes per cell.
#pragma once

#include "base/extents.h"
#include "profiler/tiles/step_spans.h"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <vector>

namespace kvscope {

enum class Aggregate { Mean, Min, Max };

/// Count, sum and extremes of some cells. Cells that are NaN (undefined) do not count.
struct CellStats {
    float min = std::numeric_limits<float>::quiet_NaN();
    float max = std::numeric_limits<float>::quiet_NaN();
    double sum = 0;
    std::int64_t count = 0;
    /// NaN if every cell is undefined.
    float value(Aggregate aggregate) const;
    void add(const CellStats& other);
};

class HeatTile {
public:
    explicit HeatTile(int rows) : cells_(kTileSteps, rows), rows_(std::size_t(rows)) {}
    int rows() const { return cells_.length(1); }
    int steps() const { return rows_ > 0 ? int(base_.size() / rows_) : 0; }
    std::size_t bytes() const;
    float at(int step, int row) const { return base_[cells_.offset(step, row)]; }

    /// Appends whole columns, step-major: [steps][rows]; together at most kTileSteps. Amortised O(rows) a step.
    void append(std::span<const float> columns);
    void append(const HeatTile& more) { append(std::span<const float>(more.base_)); }

    // Adds the steps [first, last) of the tile to spans of rows() entries.
    void addSums(int first, int last, std::span<double> sums, std::span<std::int64_t> counts) const;
    /// `out` must begin with +inf for Min and -inf for Max. These values stay where every cell is undefined.
    void addExtremes(int first, int last, Aggregate which, std::span<float> out) const;
    CellStats stats(int row, int first, int last) const;

    /// save: the tile as bytes for the cache. load: the tile from such bytes. @return null if the bytes are no tile
    std::vector<std::byte> save() const;
    static std::shared_ptr<HeatTile> load(std::span<const std::byte> bytes);

private:
    struct Level { // [group][row], complete groups only
        std::vector<float> min, max;
        std::vector<double> sum;
        std::vector<std::uint16_t> count;
    };
    std::size_t levels() const { return upper_.size() + 1; }
    void grow();

    Extents<int, int> cells_; // [step or group][row] of the most that a tile has
    std::size_t rows_;
    std::vector<float> base_;  // [step][row]
    std::vector<Level> upper_; // upper_[l - 1] holds groups of 4^l steps
};

} // namespace kvscope
