// Imports Chrome/Perfetto trace-event JSON, including the fields that PyTorch's profiler and KVScope's own export
// write. Accepts what Perfetto accepts: fractions of microseconds, events in any order, ranges without an end, and
// gzip.
#include "base/error.h"
#include "profiler/import/byte_source.h"
#include "profiler/import/importers.h"
#include "profiler/import/key_hash.h"
#include "profiler/import/timeline_builder.h"
#include "profiler/import/trace_event.h"

#include <algorithm>
#include <fmt/format.h>
#include <istream>
#include <map>

namespace kvscope {
namespace {

using Kind = SpanRecord::Kind;

Kind kindOf(std::string_view category) {
    const auto has = [&](std::string_view word) { return category.find(word) != std::string_view::npos; };
    if (category == "kernel" || category == "concurrent_kernel" || category == "graph") return Kind::Kernel;
    if (has("memcpy") || has("memset") || category == "copy" || category == "transfer") return Kind::Copy;
    return Kind::Range;
}

class TraceEventImport {
public:
    explicit TraceEventImport(TimelineBuilder& timeline) : timeline_(timeline) {}
    void take(const TraceEvent& event);
    void labelTracks();

private:
    using Track = TimelineBuilder::Track;
    enum class Lane { Thread, Async, Process, Global, Counter }; // the kind of thing that a track shows

    struct TrackInfo {
        Track track = 0;
        Lane lane = Lane::Thread;
        std::string process, thread; // thread: for asynchronous tracks and counters their name instead
    };

    Track trackOf(Lane lane, const TraceEvent& event);
    Track trackOf(Lane lane, const TraceEvent& event, const std::string& thread);
    TimelineBuilder::Span spanOf(Lane lane, const TraceEvent& event);
    std::string_view idOf(const TraceEvent& event) const { return event.id.empty() ? event.localId : event.id; }
    std::uint64_t operationOf(const TraceEvent& event) const;
    void metadata(const TraceEvent& event);
    void counters(const TraceEvent& event);
    std::string processLabel(const std::string& process) const;

    TimelineBuilder& timeline_;
    std::map<std::string, TrackInfo, std::less<>> tracks_; // key: lane, process and thread
    std::map<std::string, std::string, std::less<>> processNames_, threadNames_;
    std::string key_, text_;    // scratch
    TrackInfo* last_ = nullptr; // track of the event before, which most events share
    std::string lastKey_;
};

TimelineBuilder::Track TraceEventImport::trackOf(Lane lane, const TraceEvent& event) {
    return trackOf(lane, event, lane == Lane::Async ? event.name : event.thread);
}

TimelineBuilder::Track TraceEventImport::trackOf(Lane lane, const TraceEvent& event, const std::string& thread) {
    key_.assign(1, char('0' + int(lane)));
    if (lane != Lane::Global) (key_ += event.process) += '\x1f';
    if (lane != Lane::Global && lane != Lane::Process) key_ += thread;
    if (last_ && key_ == lastKey_) return last_->track;
    auto found = tracks_.find(key_);
    if (found == tracks_.end())
        found = tracks_.emplace(key_, TrackInfo{timeline_.addTrack(), lane, event.process, thread}).first;
    last_ = &found->second;
    lastKey_ = key_;
    return last_->track;
}

TimelineBuilder::Span TraceEventImport::spanOf(Lane lane, const TraceEvent& event) {
    TimelineBuilder::Span span;
    span.track = trackOf(lane, event);
    span.name = timeline_.names().id(event.name.empty() ? std::string_view("(unnamed)") : std::string_view(event.name));
    span.kind = kindOf(event.category);
    span.step = event.step;
    span.layer = event.layer < 1024 ? event.layer : -1;
    span.startNs = *event.timeNs;
    span.category = event.category;
    span.args = event.args.text();
    if (event.args.tooLong()) ++timeline_.losses().longArgs;
    return span;
}

/// Key of an asynchronous operation or of a flow: events with the same category, id and name belong together. A local
/// id counts only within its process.
std::uint64_t TraceEventImport::operationOf(const TraceEvent& event) const {
    return hashOf(event.name,
                  hashOf(idOf(event), hashOf(event.category, hashOf(event.id.empty() ? event.process : ""))));
}

void TraceEventImport::take(const TraceEvent& event) {
    const char phase = event.phase.size() == 1 ? event.phase[0] : '\0';
    if (phase == 'M') return metadata(event);
    if (!event.timeNs) {
        ++timeline_.losses().untimed;
        return;
    }
    switch (phase) {
    case 'X': {
        TimelineBuilder::Span span = spanOf(Lane::Thread, event);
        if (!event.durationNs && event.badTime) {
            ++timeline_.losses().untimed;
            return;
        }
        span.durationNs = event.durationNs.value_or(0);
        if (!event.bindId.empty() && (event.flowIn || event.flowOut)) {
            span.flow = hashOf(event.bindId, hashOf("bind_id"));
            span.endsFlow = event.flowIn;
            span.startsFlow = event.flowOut;
        }
        timeline_.add(span);
        return;
    }
    case 'B':
    case 'E': {
        const TimelineBuilder::Span span = spanOf(Lane::Thread, event);
        const std::uint64_t channel = hashOf(std::uint64_t(span.track), hashOf("thread"));
        if (phase == 'B')
            timeline_.open(channel, span);
        else
            timeline_.close(channel, span, !event.name.empty());
        return;
    }
    case 'b':
    case 'S':
        return timeline_.open(operationOf(event), spanOf(Lane::Async, event));
    case 'e':
    case 'F':
        return timeline_.close(operationOf(event), spanOf(Lane::Async, event), false);
    case 'n':
        return timeline_.add(spanOf(Lane::Async, event));
    case 'i':
    case 'I':
    case 'R':
        return timeline_.add(spanOf(event.scope == "g"   ? Lane::Global
                                    : event.scope == "p" ? Lane::Process
                                                         : Lane::Thread,
                                    event));
    case 'C':
        return counters(event);
    case 's':
    case 't':
    case 'f':
        return timeline_.addFlow(trackOf(Lane::Thread, event), *event.timeNs, operationOf(event),
                                 phase == 's'             ? FlowEnd::Start
                                 : phase == 't'           ? FlowEnd::Step
                                 : event.bindPoint == "e" ? FlowEnd::Finish
                                                          : FlowEnd::FinishAtNext);
    default:
        ++timeline_.losses().unknownKind;
    }
}

void TraceEventImport::metadata(const TraceEvent& event) {
    if (event.name == "process_name") processNames_[event.process] = event.givenName;
    if (event.name == "thread_name") threadNames_[event.process + '\x1f' + event.thread] = event.givenName;
}

void TraceEventImport::counters(const TraceEvent& event) {
    for (const auto& [key, value] : event.numbers) {
        text_ = event.name;
        if (!event.id.empty()) text_ += " " + event.id;
        if (key != "value" && key != event.name && !key.empty()) text_ += " " + key;
        timeline_.addCounter(trackOf(Lane::Counter, event, text_), *event.timeNs, value);
    }
}

/// "process 12" for the id "12"; an id that is no number is a name already and returned unchanged.
std::string numbered(const char* what, const std::string& id) {
    const bool number =
        std::all_of(id.begin(), id.end(), [](char c) { return (c >= '0' && c <= '9') || c == '-' || c == '.'; });
    return number ? fmt::format("{} {}", what, id) : id;
}

std::string TraceEventImport::processLabel(const std::string& process) const {
    const auto name = processNames_.find(process);
    return name != processNames_.end() && !name->second.empty() ? name->second : numbered("process", process);
}

void TraceEventImport::labelTracks() {
    bool several = false;
    for (const auto& [key, info] : tracks_) several |= info.process != tracks_.begin()->second.process;
    for (const auto& [key, info] : tracks_) {
        std::string label;
        if (info.lane != Lane::Global) {
            label = processLabel(info.process);
            if (!several && processNames_.find(info.process) == processNames_.end()) label.clear();
        }
        std::string own;
        if (info.lane == Lane::Thread) {
            const auto name = threadNames_.find(info.process + '\x1f' + info.thread);
            own = name != threadNames_.end() && !name->second.empty() ? name->second : numbered("thread", info.thread);
        } else if (info.lane == Lane::Async) {
            own = info.thread + " (asynchronous)";
        } else if (info.lane == Lane::Counter) {
            own = info.thread;
        } else {
            own = info.lane == Lane::Global ? "marks of the trace" : "marks";
        }
        if (label.empty())
            label = own;
        else
            label += " / " + own;
        timeline_.label(info.track, label,
                        info.lane == Lane::Thread ? fmt::format("({})", info.thread) : std::string());
    }
}

} // namespace

bool recognisesTraceEvents(const std::string& path, std::string_view head) {
    const std::string unpacked = ByteSource::isGzip(head) ? ByteSource::unpackedHead(path, 4096) : std::string();
    if (ByteSource::isGzip(head)) {
        if (unpacked.empty()) return true; // no zlib, or a damaged file: reading it will report which
        head = unpacked;
    }
    if (head.substr(0, 3) == "\xef\xbb\xbf") head.remove_prefix(3);
    const auto first = head.find_first_not_of(" \t\r\n");
    return first != std::string_view::npos && (head[first] == '{' || head[first] == '[');
}

ImportedFacts readTraceEvents(const std::string& path, TimelineBuilder& timeline, const Progress& progress,
                              const std::stop_token& stop) {
    ByteSource source(path, progress, stop);
    std::istream in(&source);
    TraceEventImport import(timeline);
    const TraceEventFile file = readTraceEventFile(in, path, [&](const TraceEvent& event) { import.take(event); });
    import.labelTracks();
    ImportedFacts facts;
    facts.source = file.producer.empty() ? "trace-event JSON" : "trace-event JSON of " + file.producer;
    if (file.producer == "KVScope") facts.originNs = 0; // times of our export already count from the run's start
    return facts;
}

} // namespace kvscope
