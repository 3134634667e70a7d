// Takes the events that another tool recorded, in any order, and writes them as a .kvtrace: spans with their nesting
// depth, counters, and flows bound to the spans that they connect. Events that do not fit into a bounded buffer are
// sorted on disk.
#pragma once

#include "base/progress.h"
#include "core/trace/trace_sink.h"
#include "profiler/import/detail_store.h"
#include "profiler/import/spill_sorter.h"
#include "profiler/import/text_pool.h"

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace kvscope {

class Connection;

/// Counts of the events that an import had to drop or to change; the run's status message names each kind.
struct ImportLosses {
    std::int64_t untimed = 0;     // events without a usable time
    std::int64_t negative = 0;    // durations below zero, taken as zero
    std::int64_t unclosed = 0;    // ranges without an end: they end with their parent or with the trace
    std::int64_t unopened = 0;    // ends without a beginning
    std::int64_t unbound = 0;     // ends of flows without a span to bind to, or without the flow's start
    std::int64_t tooDeep = 0;     // spans nested deeper than kDeepest, drawn at depth kDeepest
    std::int64_t unknownKind = 0; // events of a kind that has no place on a timeline
    std::int64_t longArgs = 0;    // spans whose arguments are longer than kLongestArgs and were left out
};

/// A 64-bit hash of whatever names a flow in the file; both ends of a flow have the same key.
using FlowKey = std::uint64_t;
enum class FlowEnd : std::uint8_t { Start, Step, Finish, FinishAtNext };

class TimelineBuilder {
public:
    using Kind = SpanRecord::Kind;
    using Track = std::uint32_t;
    static constexpr int kDeepest = 500;
    static constexpr std::size_t kLongestArgs = std::size_t(64) << 10; // bytes
    static constexpr std::int64_t kLatestNs = std::int64_t(1) << 61;   // larger times, + or -, count as unusable

    /// `folder`: where temporary files for sorting go.
    explicit TimelineBuilder(const std::string& folder);

    struct Span {
        Track track = 0;
        std::uint32_t name = 0; // names().id
        Kind kind = Kind::Range;
        std::int32_t step = -1, layer = -1;
        std::int64_t startNs = 0, durationNs = 0;
        FlowKey flow = 0; // used if endsFlow or startsFlow is set
        bool endsFlow = false, startsFlow = false;
        std::string_view category{}, args{}; // args: a JSON object; both may be empty; needed until add returns
    };

    TextPool& names() { return names_; }
    Track addTrack();
    /// Names a track; may be called at any time before write. Tracks with equal labels get their `suffix` appended.
    void label(Track track, std::string text, std::string suffix = {});

    /// Adds a span. Spans of one track may overlap in any way; spans that overlap without nesting get different depths.
    void add(const Span& span);
    /// `open` and `close` add a range whose beginning and end are separate events. An end closes the innermost open
    /// range of its channel; a named end closes the innermost one of that name. A channel is any number, for example
    /// the hash of a thread or of one asynchronous operation.
    void open(std::uint64_t channel, const Span& span);
    void close(std::uint64_t channel, const Span& span, bool named);
    void addFlow(Track track, std::int64_t timeNs, FlowKey key, FlowEnd end);
    /// A counter is a track without spans.
    void addCounter(Track counter, std::int64_t timeNs, double value);

    bool empty() const { return spans_.count() + edges_.count() + counters_.count() == 0; }
    ImportLosses& losses() { return losses_; }

    struct Written {
        std::int64_t spans = 0, counters = 0, flows = 0, originNs = 0;
    };
    /// Writes everything into run 1 of the trace `path`, which must already hold the schema and the run's row. Times
    /// in the trace count from `originNs`, or from the earliest event without it. shownAs: the file's name in errors.
    /// @throws Error(Storage | Cancelled)
    Written write(const std::string& path, const std::string& shownAs, std::optional<std::int64_t> originNs,
                  const Progress& progress, const std::stop_token& stop);

private:
    struct Detail {
        std::uint32_t category = kNoCategory; // names().id
        DetailStore::Ref args;
        bool empty() const { return category == kNoCategory && args.length == 0; }
    };
    static constexpr std::uint32_t kNoCategory = std::numeric_limits<std::uint32_t>::max();

    struct Record { // a span, or one end of a flow
        std::int64_t time, length;
        Detail detail;
        FlowKey flow;
        std::uint64_t sequence;
        Track track;
        std::uint32_t name;
        std::int32_t step, layer;
        Kind kind;
        bool endsFlow, startsFlow, isFlow;
        FlowEnd end;
        /// Orders by time. At one moment outer spans come before inner ones, and spans before the flows bound to them.
        bool operator<(const Record& other) const {
            if (time != other.time) return time < other.time;
            if (isFlow != other.isFlow) return other.isFlow;
            if (length != other.length) return length > other.length;
            return sequence < other.sequence;
        }
    };
    struct Edge {
        std::int64_t time;
        Detail detail;
        std::uint64_t sequence, channel;
        Track track;
        std::uint32_t name;
        std::int32_t step, layer;
        Kind kind;
        bool opens, named;
        bool operator<(const Edge& other) const {
            return time != other.time ? time < other.time : sequence < other.sequence;
        }
    };
    struct Sample {
        std::int64_t time;
        std::uint64_t sequence;
        double value;
        Track track;
        bool operator<(const Sample& other) const {
            return time != other.time ? time < other.time : sequence < other.sequence;
        }
    };

    bool usable(std::int64_t timeNs);
    Detail detailOf(const Span& span);
    Detail merged(const Detail& open, const Detail& close);
    void addRecord(const Span& span, const Detail& detail);
    void addEdge(std::uint64_t channel, const Span& span, bool opens, bool named);
    void joinEdges(const std::stop_token& stop);
    void uniqueLabels();
    void writeTexts(Connection& connection);
    void writeSpans(Connection& connection, std::int64_t originNs, Written& written, const Progress& progress,
                    const std::stop_token& stop);
    void writeCounters(Connection& connection, std::int64_t originNs, Written& written, const std::stop_token& stop);

    TextPool names_;
    DetailStore details_;
    struct Label {
        std::string text, suffix;
        std::uint32_t name = 0;
    };
    std::vector<Label> labels_; // [track]
    SpillSorter<Record> spans_;
    SpillSorter<Edge> edges_;
    SpillSorter<Sample> counters_;
    std::int64_t spanCount_ = 0;
    std::uint64_t sequence_ = 0;
    std::int64_t earliestNs_ = std::numeric_limits<std::int64_t>::max(),
                 latestNs_ = std::numeric_limits<std::int64_t>::min();
    ImportLosses losses_;
};

} // namespace kvscope
