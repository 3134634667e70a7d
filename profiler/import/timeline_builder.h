// Takes what another tool recorded, in any order, and writes it as a .kvtrace: spans with their nesting depth,
// counters, and flows bound to the spans they connect. Memory stays bounded: what does not fit is sorted on disk.
#pragma once

#include "core/model/progress.h"
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

/// What an import met and could not take as it stood; said in the run's status.
struct ImportLosses {
    std::int64_t untimed = 0;     // events without a usable time
    std::int64_t negative = 0;    // durations below zero, taken as zero
    std::int64_t unclosed = 0;    // ranges without an end: they end with the trace
    std::int64_t unopened = 0;    // ends without a beginning
    std::int64_t unbound = 0;     // flows without a span at one of their ends
    std::int64_t tooDeep = 0;     // spans nested deeper than kDeepest, drawn at it
    std::int64_t unknownKind = 0; // events of a kind that has no place on a timeline
    std::int64_t longArgs = 0;    // spans whose arguments are longer than kLongestArgs and were left out
};

/// How the two ends of a flow find each other: a 64-bit hash of whatever names them.
using FlowKey = std::uint64_t;
enum class FlowEnd : std::uint8_t { Start, Step, Finish, FinishAtNext };

class TimelineBuilder {
public:
    using Kind = SpanRecord::Kind;
    using Track = std::uint32_t;
    static constexpr int kDeepest = 500;
    static constexpr std::size_t kLongestArgs = std::size_t(64) << 10; // bytes
    static constexpr std::int64_t kLatestNs = std::int64_t(1) << 61;   // times beyond, either way, are no times

    /// `folder`: for sorting on disk.
    explicit TimelineBuilder(const std::string& folder);

    struct Span {
        Track track = 0;
        std::uint32_t name = 0; // names().id
        Kind kind = Kind::Range;
        std::int32_t step = -1, layer = -1;
        std::int64_t startNs = 0, durationNs = 0;
        FlowKey flow = 0; // with the two below
        bool endsFlow = false, startsFlow = false;
        std::string_view category{}, args{}; // args: a JSON object; both may be empty; needed until add returns
    };

    TextPool& names() { return names_; }
    Track addTrack();
    /// May come any time before write. Equal labels are told apart by `suffix`.
    void label(Track track, std::string text, std::string suffix = {});

    /// Spans that share a track may overlap in any way: those that do not nest lie at depths of their own.
    void add(const Span& span);
    /// A range whose two ends come apart. Ends close the innermost open range of their channel; with a name the
    /// innermost of that name. A channel is any number: a thread, or one asynchronous operation.
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
    /// Writes run 1 of the trace `path`, which has the schema and the run's row. Times are counted from `originNs`, or
    /// from the earliest event if that is not given. @throws Error(Storage | Cancelled)
    Written write(const std::string& path, std::optional<std::int64_t> originNs, const Progress& progress,
                  const std::stop_token& stop);

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
        /// At one moment: outer spans before inner ones, and all of them before the flows that bind to them.
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
