// The timeline's data, the rows that they take, the visible window, and what is chosen.
#pragma once

#include "profiler/read/gauge_batch.h"
#include "profiler/read/notes.h"
#include "profiler/read/span_flow.h"
#include "profiler/read/span_index.h"
#include "profiler/read/step_counters.h"
#include "ui/timeline/busy_part.h"
#include "ui/timeline/span_filter.h"

#include <QRect>
#include <QString>

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace kvscope::ui {

/// Nanoseconds on the run's clock; doubles hold them exactly within 104 days. Clocks that count from 1970 are beyond
/// that.
struct TimeRange {
    double from = 0, to = 1;
    double size() const { return to - from; }
    /// The shortest range whose places doubles still tell apart here.
    double finest() const;
    bool meets(const TimeRange& other) const { return from < other.to && other.from < to; }
    bool operator==(const TimeRange&) const = default;
};

/// A counter of the trace with its curve.
struct Gauge {
    GaugeInfo info;
    GaugeSeries series;
};

struct TimelineData {
    TimelineData();

    /// The number of the table of names in `index`, which no other run in this program has. What a caller keeps by the
    /// number of a name is valid only for the table of this number.
    std::uint64_t table = 0;
    SpanIndex index;
    StepCounters counters;
    Numbered<Gauge> gauges;
    std::vector<Note> notes;
    Numbered<bool> matches;  // by name; empty: nothing is searched for
    SpanFilter filter;       // spans that do not match fade
    bool incomplete = false; // steps were dropped: what counts them is a lower bound

    bool empty() const { return index.size() == 0 && gauges.empty(); }
    TimeRange whole() const; // of everything, a little wider; [0, 1) ms when there is nothing
    TimeRange busy() const;  // without the few spans that lie far from all others, if there are such (busy_part.h)
    /// The time from the first step to the last, a little wider; busy() where there are no steps.
    TimeRange steps(bool decodeOnly = false) const;
    bool isMatch(int name) const { return name >= 0 && name < matches.count() && matches[name]; }
    void append(const GaugeBatch& batch);

private:
    /// The result of busy(), kept until there are more spans: finding it looks at thousands of spans, and every search
    /// asks for it.
    struct Busy {
        std::size_t spans = 0;
        std::uint64_t moves = 0;
        BusyPart part;
    };
    mutable std::optional<Busy> busy_;
};

/// One row of the body: a counter's curve or one lane of spans. y counts from the top of all rows.
struct TimelineRow {
    int curve = -1, lane = -1, track = -1; // a curve (timeline_curves.h) has no lane, a lane no curve
    int y = 0, height = 0;
    bool firstOfTrack = false, folded = false;
};

/// The tracks as a person arranged them.
struct TrackArrangement {
    std::set<int> folded;         // tracks that show their outermost lane only
    std::set<std::string> hidden; // by trackKey
};

/// All rows in order: curves of the run, then tracks (host, link, streams, copies, others), lanes by depth, then the
/// curves of other tools.
struct TimelineLayout {
    static constexpr int kLaneHeight = 20, kCurveHeight = 46, kGap = 8;
    static constexpr int kLeastCurveHeight = 32;                       // two lines of its label
    static constexpr int kMostLaneHeight = 34, kMostCurveHeight = 120; // rows grow up to these where there is room
    std::vector<TimelineRow> rows;
    int height = 0;
    /// room: the height to be filled; 0: rows are as low as they get.
    static TimelineLayout of(const TimelineData& data, const TrackArrangement& arrangement, int room = 0);
    const TimelineRow* rowAt(int y) const;    // null: between rows
    const TimelineRow* rowOf(int lane) const; // null: folded away or hidden
};

/// A key that tells a row's track from all others, also when the run is opened again.
std::string trackKey(const TimelineData& data, const TimelineRow& row);
/// The name of the track as it is shown.
QString trackTitle(const TimelineData& data, const TimelineRow& row);
/// The same in fewer letters, for a narrow column of labels: of the link's tracks "to device (CUPTI's clock)", so that
/// the clock is not what is cut off.
QString shortTrackTitle(const TimelineData& data, const TimelineRow& row);

/// The parts of the widget, in its coordinates.
struct TimelineAreas {
    static constexpr int kGutter = 176, kMinimap = 44, kRuler = 26;
    QRect minimap, ruler, gutter, body;
    /// gutter: the wanted width of the column of labels; at most half of the widget.
    static TimelineAreas of(QSize size, int gutter = kGutter);
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
    TimeRange home;                   // the opening window: the steps of the run
    bool homeIsDecode = false;        // only the decode steps, where the prompt would hide them
    TimeRange busy;                   // data->busy()
    std::optional<TimeRange> heldMap; // the map's time during a drag on it: it must not change under the pointer
    int scroll = 0;                   // pixels of rows above the body's top
    int gutter = TimelineAreas::kGutter;
    std::optional<SpanRef> selected;
    std::vector<SpanFlow> flows; // of the selected span
    std::optional<TimeRange> range;
    std::optional<TimeRange> cursorStep; // the step the other views look at
    std::optional<double> hoverNs;
    quint64 revision = 0; // grows when the data change: what was drawn at another revision is out of date
};

/// The time that the map at the top covers: everything, or the busy part while a piece of that is shown. During a drag
/// on the map it stays as it was when the drag began.
TimeRange mapOf(const TimelineScene& scene);

/// As much of a span's or track's name as a person reads.
QString readableName(std::string_view name);
/// "layer 12" where the name alone says too little, else the name.
QString shownName(const TimelineData& data, const TimelineSpan& span);
/// Where there is no room for all of it: the number of a step or layer, "add_kernel" of "void at::add_kernel<4>(int)".
QString shortName(const TimelineData& data, const TimelineSpan& span);

/// In words, what the opening window leaves out on one side; empty: nothing, or another window is shown.
QString beyondText(const TimelineScene& scene, bool left);

} // namespace kvscope::ui
