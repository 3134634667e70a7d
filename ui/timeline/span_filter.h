// The shared filter as it applies to spans: which of them keep their strength while the others fade.
#pragma once

#include "profiler/read/span_index.h"
#include "ui/frame/filter.h"

#include <vector>

namespace kvscope::ui {

class SpanFilter {
public:
    /// The parts that apply; KV heads do not, because no span belongs to one.
    static constexpr int kParts = FilterLayers | FilterSteps | FilterComponent | FilterText;

    void set(const Filter& filter);
    /// Judges the names of the index that are new. Must have seen a span's name before `keeps` is asked.
    void learn(const SpanIndex& index);
    bool active() const { return active_; }
    /// Whether a span matches the filter. A span without a layer or a step is in no set of layers or steps. A filter
    /// for a component counts the spans of whole steps and layers as `other` and transfers as offloading.
    bool keeps(const TimelineSpan& span) const {
        return !active_ || (names_[span.name] && filter_.hasLayer(span.layer) && filter_.hasStep(span.step));
    }
    /// How much of a bar's time is kept, 0..1, and the name that most of it has. A bar of many spans is judged by some
    /// thirty of them, so that a frame costs the same however many there are.
    struct Share {
        double kept = 0;
        int name = -1; // -1: nothing is kept
    };
    Share shareOf(const SpanIndex& index, int lane, const SpanBar& bar) const;

private:
    Filter filter_;
    bool active_ = false;
    Numbered<bool> names_; // by name: component and text match
};

} // namespace kvscope::ui
