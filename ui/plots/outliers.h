// Finds outliers: the few points so high that a plot scaled to them would squash all others, such as the first decode
// step with its cold cache.
#pragma once

#include <QPointF>

#include <vector>

namespace kvscope::ui {

/// Keeps the highest of any number of points. Adding is cheap enough for a million points in every frame.
class HighestPoints {
public:
    void add(double x, double value); // ignores NaN
    struct Result {
        double highest = 0;          // the highest value that is no outlier
        std::vector<QPointF> beyond; // the outliers, highest first
    };
    /// Points are outliers if each is more than twice as high as every point that is none, and if they are at most a
    /// fiftieth of all points. One point may always be an outlier, more than 20 never.
    Result result() const;

private:
    static constexpr std::size_t kMost = 21; // points kept: 20 possible outliers, and the next point
    std::vector<QPointF> top_;               // a heap with the lowest point in front
    std::size_t count_ = 0;
};

} // namespace kvscope::ui
