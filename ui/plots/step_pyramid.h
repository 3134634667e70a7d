// A step-major matrix with exact minimum, maximum and mean over any range of steps, so that a zoomed-out picture never
// loses the one bad step. Grows at the end like a live run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace kvscope::ui {

enum class Aggregate { Mean, Min, Max };

/// What a range of steps holds in one row; NaN cells (undefined) take no part.
struct CellStats {
    float min = std::numeric_limits<float>::quiet_NaN();
    float max = std::numeric_limits<float>::quiet_NaN();
    double sum = 0;
    std::int64_t count = 0;
    /// NaN if every cell is undefined.
    float value(Aggregate aggregate) const;
};

class StepPyramid {
public:
    /// Empties it; columns appended from now on have `rows` cells.
    void reset(int rows);
    int rows() const { return rows_; }
    int steps() const { return rows_ > 0 ? int(base_.size() / std::size_t(rows_)) : 0; }
    bool empty() const { return steps() == 0; }

    /// `values` holds whole columns, step-major: [steps][rows]. Amortised O(rows) a step.
    void append(std::span<const float> values);
    float at(int step, int row) const { return base_[std::size_t(step) * std::size_t(rows_) + std::size_t(row)]; }

    /// Aggregates every row over [first, last), clipped to the steps there are. `out` has rows() entries.
    void aggregate(int first, int last, std::span<CellStats> out) const;
    /// The same for one row.
    CellStats stats(int row, int first, int last) const;
    /// Smallest and largest defined value of all rows in [first, last); NaN, NaN if there is none.
    CellStats range(int first, int last) const;

private:
    struct Node {
        float min, max;
        double sum;
        std::int64_t count;
    };
    void grow();
    Node leaf(std::size_t index) const;
    static void merge(Node& into, const Node& from);

    int rows_ = 0;
    std::vector<float> base_;              // level 0: [step][row]
    std::vector<std::vector<Node>> upper_; // upper_[l - 1]: [step / 4^l][row], complete nodes only
};

} // namespace kvscope::ui
