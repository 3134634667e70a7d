// What the timeline shows and where: the data, the rows they take, the visible window, and what is chosen.
#pragma once

#include "profiler/read/span_flow.h"
#include "profiler/read/span_index.h"
#include "profiler/read/step_counters.h"
#include "profiler/store/notes.h"

#include <QRect>
#include <QString>

#include <optional>
#include <set>
#include <vector>

namespace kvscope::ui {

/// Nanoseconds on the run's clock; doubles hold them exactly within 104 days.
struct TimeRange {
    double from = 0, to = 1;
    double size() const { return to - from; }
    bool operator==(const TimeRange&) const = default;
};

struct TimelineData {
    SpanIndex index;
    StepCounters counters;
    std::vector<Note> notes;
    std::vector<bool> matches; // by name; empty: nothing is searched for
    TimeRange whole() const;   // of everything, a little wider; [0, 1) ms when there is nothing
    bool isMatch(int name) const { return std::size_t(name) < matches.size() && matches[std::size_t(name)]; }
};

/// One row of the body: a counter's curve or one lane of spans. y counts from the top of all rows.
struct TimelineRow {
    int counter = -1, lane = -1, track = -1; // a counter has no lane, a lane no counter
    int y = 0, height = 0;
    bool firstOfTrack = false, folded = false;
};

/// All rows in order: counters, then tracks (host, link, streams, copies, others), lanes by depth. Folded tracks show
/// their outermost lane only.
struct TimelineLayout {
    static constexpr int kLaneHeight = 20, kCounterHeight = 46, kGap = 8;
    std::vector<TimelineRow> rows;
    int height = 0;
    static TimelineLayout of(const TimelineData& data, const std::set<int>& foldedTracks, bool counters);
    const TimelineRow* rowAt(int y) const;    // null: between rows
    const TimelineRow* rowOf(int lane) const; // null: folded away
};

/// The parts of the widget, in its coordinates.
struct TimelineAreas {
    static constexpr int kGutter = 176, kMinimap = 44, kRuler = 26;
    QRect minimap, ruler, gutter, body;
    static TimelineAreas of(QSize size);
    double xOf(double ns, const TimeRange& window) const {
        return body.left() + (ns - window.from) / window.size() * body.width();
    }
    double timeAt(double x, const TimeRange& window) const {
        return window.from + (x - body.left()) / body.width() * window.size();
    }
};

/// Everything a picture of the timeline depends on.
struct TimelineScene {
    const TimelineData* data = nullptr;
    TimelineLayout layout;
    TimeRange window;
    int scroll = 0; // pixels of rows above the body's top
    std::optional<SpanRef> selected;
    std::vector<SpanFlow> flows; // of the selected span
    std::optional<TimeRange> range;
    std::optional<TimeRange> cursorStep; // the step the other views look at
    std::optional<double> hoverNs;
    quint64 revision = 0; // changes with the data: what was drawn of all of them is then old
};

/// "layer 12" where the name alone says too little, else the name.
QString shownName(const TimelineData& data, const IndexedSpan& span);

} // namespace kvscope::ui
