// A tile of a heatmap: up to 4,096 steps of a step-major matrix and, per row, what every aligned group of 4, 16, ... of
// them holds. Any range of steps is then a few groups, so a zoomed-out picture is exact and costs no more than a close
// one. About 10 bytes per cell.
#pragma once

#include "profiler/tiles/step_spans.h"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <vector>

namespace kvscope {

enum class Aggregate { Mean, Min, Max };

/// What some cells hold together; NaN cells (undefined) take no part.
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
    explicit HeatTile(int rows) : rows_(std::size_t(rows)) {}
    int rows() const { return int(rows_); }
    int steps() const { return rows_ > 0 ? int(base_.size() / rows_) : 0; }
    std::size_t bytes() const;
    float at(int step, int row) const { return base_[std::size_t(step) * rows_ + std::size_t(row)]; }

    /// Whole columns, step-major: [steps][rows]; together at most kTileSteps. Amortised O(rows) a step.
    void append(std::span<const float> columns);
    void append(const HeatTile& more) { append(std::span<const float>(more.base_)); }

    // Steps [first, last) of the tile, added to `out`, which has rows() entries.
    void addSums(int first, int last, std::span<double> sums, std::span<std::int64_t> counts) const;
    /// Begins at +inf for Min and -inf for Max, which stay where every cell is undefined.
    void addExtremes(int first, int last, Aggregate which, std::span<float> out) const;
    CellStats stats(int row, int first, int last) const;

    /// Bytes for the cache, and back. @return null if the bytes are no tile
    std::vector<std::byte> save() const;
    static std::shared_ptr<HeatTile> load(std::span<const std::byte> bytes);

private:
    struct Level { // [group][row], complete groups only
        std::vector<float> min, max;
        std::vector<double> sum;
        std::vector<std::uint16_t> count;
    };
    int levels() const { return int(upper_.size()) + 1; }
    void grow();

    std::size_t rows_;
    std::vector<float> base_;  // [step][row]
    std::vector<Level> upper_; // upper_[l - 1] holds groups of 4^l steps
};

} // namespace kvscope
