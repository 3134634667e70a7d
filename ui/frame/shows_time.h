// Views that can be zoomed to a stretch of a run's time, for views that lead to what happened then.
#pragma once

namespace kvscope::ui {

/// A View may be one too.
class ShowsTime {
public:
    virtual ~ShowsTime() = default;
    /// Shows this stretch of the current run's time, in nanoseconds of the run's clock, or shows it as soon as its
    /// spans are read.
    virtual void showTime(double fromNs, double toNs) = 0;
};

} // namespace kvscope::ui
