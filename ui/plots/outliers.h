// The few points that would squash all others of a plot, such as the first decode step with its cold cache.
#pragma once

#include <QPointF>

#include <vector>

namespace kvscope::ui {

/// Collects the highest of any number of points; cheap enough for a million at every frame.
class HighestPoints {
public:
    void add(double x, double value); // NaN is passed over
    struct Result {
        double highest = 0;          // of the points that do not stand out
        std::vector<QPointF> beyond; // those that do, highest first
    };
    /// Points stand out if they are more than twice as high as every other, and are at most a fiftieth of all, or one.
    Result result() const;

private:
    static constexpr std::size_t kMost = 21; // 20 that stand out, and the next
    std::vector<QPointF> top_;               // a heap, lowest in front
    std::size_t count_ = 0;
};

} // namespace kvscope::ui
