// Imports the SQLite export of Nsight Systems. The export has a table only if something of its kind was recorded, and
// columns differ between versions. The importer therefore looks up everything by name and skips what is missing.
#include "base/error.h"
#include "base/json_text.h"
#include "profiler/import/foreign_database.h"
#include "profiler/import/importers.h"
#include "profiler/import/key_hash.h"
#include "profiler/import/timeline_builder.h"

#include <cctype>
#include <cmath>
#include <filesystem>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <map>
#include <set>
#include <unordered_map>

namespace kvscope {
namespace {

using Kind = SpanRecord::Kind;
using Track = TimelineBuilder::Track;

constexpr std::size_t kMostRemarks = 3;

/// The process part of a global thread or process id, which holds, from the highest bit, 8 bits of hardware, 8 of
/// virtual machine, 24 of process and 24 of thread.
std::int64_t processOf(std::int64_t global) { return global & ~std::int64_t(0xFFFFFF); }
std::int64_t threadNumber(std::int64_t global) { return global & 0xFFFFFF; }
std::int64_t processNumber(std::int64_t global) { return (global >> 24) & 0xFFFFFF; }

/// Cuts the version off a function's name: "cudaLaunchKernel_v7000" becomes "cudaLaunchKernel".
std::string_view withoutSuffix(std::string_view name) {
    const auto at = name.rfind("_v");
    if (at == std::string_view::npos || at + 2 == name.size()) return name;
    for (std::size_t i = at + 2; i < name.size(); ++i)
        if (!std::isdigit(static_cast<unsigned char>(name[i]))) return name;
    return name.substr(0, at);
}

const char* copyKindName(std::int64_t kind) {
    constexpr const char* names[] = {"of an unknown kind",     "host to device",
                                     "device to host",         "host to array",
                                     "array to host",          "array to array",
                                     "array to device",        "device to array",
                                     "device to device",       "host to host",
                                     "peer to peer",           "managed host to device",
                                     "managed device to host", "managed device to device"};
    return kind >= 0 && kind < std::int64_t(std::size(names)) ? names[kind] : names[0];
}

class NsightImport {
public:
    NsightImport(ForeignDatabase& database, TimelineBuilder& timeline, const Progress& progress)
        : db_(database), timeline_(timeline), progress_(progress) {}
    ImportedFacts read();

private:
    /// Identifies a track: a stream or a counter of a GPU, or one kind of event of a host thread.
    struct Place {
        bool onGpu = false;
        std::int64_t global = 0, device = 0; // global: id of the process or thread; device: number of the GPU
        std::string what;                    // "stream 7", "NVTX"
        bool operator<(const Place& other) const {
            return std::tie(onGpu, global, device, what) <
                   std::tie(other.onGpu, other.global, other.device, other.what);
        }
    };
    using Columns = std::vector<std::string_view>;
    /// All columns to read: `used` by the importer itself, and `said` for the arguments that the span shows.
    static Columns both(Columns used, const Columns& said) {
        used.insert(used.end(), said.begin(), said.end());
        return used;
    }
    Track trackOf(Place place);
    std::uint32_t nameOfString(std::int64_t id, bool dropVersion = false);
    std::uint32_t nameId(std::string_view text) {
        return timeline_.names().id(text.empty() ? std::string_view("(unnamed)") : text);
    }
    static FlowKey correlation(std::int64_t global, std::int64_t id) {
        return hashOf(std::uint64_t(id), hashOf(std::uint64_t(processOf(global)), hashOf("correlation")));
    }
    /// Takes start and duration from the row; false if the row has none that are usable, which it counts as a loss.
    bool times(const ForeignRow& row, TimelineBuilder::Span& span);
    bool openTimes(const ForeignRow& row, TimelineBuilder::Span& span);
    void linkLaunch(const ForeignRow& row, TimelineBuilder::Span& span, bool isLaunch);
    /// Adds the span. Its arguments are those already in `args_` and the row's values in the columns `said`, under the
    /// names of the columns.
    void add(TimelineBuilder::Span& span, std::string_view category, const ForeignRow& row, const Columns& said);
    void say(std::string_view key, std::string_view text);

    void part(double from, std::string_view what) { report(progress_, from, what); }
    void kernels();
    void graphs();
    void copies();
    void memsets();
    void synchronisation();
    void calls();
    void systemCalls();
    void ranges();
    void overhead();
    void metrics();
    void deviceMemory();
    void labelTracks();
    void facts(ImportedFacts& facts);

    ForeignDatabase& db_;
    TimelineBuilder& timeline_;
    const Progress& progress_;
    std::map<Place, Track> tracks_;
    std::unordered_map<std::int64_t, std::uint32_t> strings_, shortened_;
    std::map<std::int64_t, std::string> threadNames_, processNames_;
    JsonText args_{TimelineBuilder::kLongestArgs}; // arguments of the span that add() takes next
    bool argsOpen_ = false;
};

Track NsightImport::trackOf(Place place) {
    const auto found = tracks_.find(place);
    if (found != tracks_.end()) return found->second;
    return tracks_.emplace(std::move(place), timeline_.addTrack()).first->second;
}

std::uint32_t NsightImport::nameOfString(std::int64_t id, bool dropVersion) {
    auto& known = dropVersion ? shortened_ : strings_;
    if (const auto found = known.find(id); found != known.end()) return found->second;
    const std::string text = db_.string(id).value_or(fmt::format("(string {})", id));
    return known[id] = nameId(dropVersion ? withoutSuffix(text) : std::string_view(text));
}

bool NsightImport::openTimes(const ForeignRow& row, TimelineBuilder::Span& span) {
    if (!row.has("start")) {
        ++timeline_.losses().untimed;
        return false;
    }
    span.startNs = row.integer("start");
    return true;
}

bool NsightImport::times(const ForeignRow& row, TimelineBuilder::Span& span) {
    if (!row.has("end")) {
        ++timeline_.losses().untimed;
        return false;
    }
    if (!openTimes(row, span)) return false;
    if (__builtin_sub_overflow(row.integer("end"), span.startNs, &span.durationNs)) {
        ++timeline_.losses().untimed;
        return false;
    }
    return true;
}

/// Links calls and GPU work by their correlation id: a call starts the flow of its id, and everything on the GPU with
/// the same id ends that flow.
void NsightImport::linkLaunch(const ForeignRow& row, TimelineBuilder::Span& span, bool isLaunch) {
    if (!row.has("correlationId") || row.integer("correlationId") == 0) return;
    span.flow = correlation(row.integer(isLaunch ? "globalTid" : "globalPid"), row.integer("correlationId"));
    (isLaunch ? span.startsFlow : span.endsFlow) = true;
}

void NsightImport::say(std::string_view key, std::string_view text) {
    if (!std::exchange(argsOpen_, true)) {
        args_.clear();
        args_.open('{');
    }
    args_.key(key);
    args_.string(text);
}

void NsightImport::add(TimelineBuilder::Span& span, std::string_view category, const ForeignRow& row,
                       const Columns& said) {
    if (!std::exchange(argsOpen_, false)) {
        args_.clear();
        args_.open('{');
    }
    for (const std::string_view column : said) {
        using Type = Statement::Type;
        const Type type = row.type(column);
        if (type != Type::Integer && type != Type::Real && type != Type::Text) continue;
        if (type == Type::Real && !std::isfinite(row.real(column))) continue; // JSON cannot hold it
        args_.key(column);
        if (type == Type::Text)
            args_.string(row.text(column));
        else if (type == Type::Real)
            args_.literal(fmt::format("{}", row.real(column)));
        else
            args_.literal(fmt::format("{}", row.integer(column)));
    }
    args_.close('}');
    span.category = category;
    span.args = args_.text();
    timeline_.add(span);
}

void NsightImport::kernels() {
    static const Columns kSaid{"gridX",
                               "gridY",
                               "gridZ",
                               "blockX",
                               "blockY",
                               "blockZ",
                               "registersPerThread",
                               "staticSharedMemory",
                               "dynamicSharedMemory",
                               "localMemoryPerThread",
                               "graphId",
                               "graphNodeId",
                               "correlationId"};
    db_.read("CUPTI_ACTIVITY_KIND_KERNEL",
             both({"start", "end", "deviceId", "streamId", "globalPid", "shortName", "demangledName"}, kSaid),
             [&](const ForeignRow& row) {
                 TimelineBuilder::Span span;
                 if (!times(row, span)) return;
                 span.kind = Kind::Kernel;
                 span.track = trackOf({true, processOf(row.integer("globalPid")), row.integer("deviceId"),
                                       fmt::format("stream {}", row.integer("streamId"))});
                 span.name = nameOfString(row.integer(row.has("shortName") ? "shortName" : "demangledName"));
                 linkLaunch(row, span, false);
                 if (row.has("shortName") && row.has("demangledName"))
                     say("signature", timeline_.names().text(nameOfString(row.integer("demangledName"))));
                 add(span, "kernel", row, kSaid);
             });
}

void NsightImport::graphs() {
    static const Columns kSaid{"graphId", "graphExecId", "correlationId"};
    db_.read("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", both({"start", "end", "deviceId", "streamId", "globalPid"}, kSaid),
             [&](const ForeignRow& row) {
                 TimelineBuilder::Span span;
                 if (!times(row, span)) return;
                 span.kind = Kind::Kernel;
                 span.track = trackOf({true, processOf(row.integer("globalPid")), row.integer("deviceId"),
                                       fmt::format("stream {}", row.integer("streamId"))});
                 span.name = nameId(fmt::format("CUDA graph {}", row.integer("graphId")));
                 linkLaunch(row, span, false);
                 add(span, "graph", row, kSaid);
             });
}

void NsightImport::copies() {
    static const Columns kSaid{"bytes",    "copyKind",  "srcKind",     "dstKind",
                               "streamId", "copyCount", "graphNodeId", "correlationId"};
    db_.read("CUPTI_ACTIVITY_KIND_MEMCPY", both({"start", "end", "deviceId", "globalPid"}, kSaid),
             [&](const ForeignRow& row) {
                 TimelineBuilder::Span span;
                 if (!times(row, span)) return;
                 span.kind = Kind::Copy;
                 const char* direction = copyKindName(row.integer("copyKind"));
                 span.track = trackOf({true, processOf(row.integer("globalPid")), row.integer("deviceId"),
                                       fmt::format("copies {}", direction)});
                 constexpr std::int64_t kPageable = 0;
                 const bool pageable = (row.has("srcKind") && row.integer("srcKind") == kPageable) ||
                                       (row.has("dstKind") && row.integer("dstKind") == kPageable);
                 span.name = nameId(fmt::format("{} bytes {}{}", row.integer("bytes"), direction,
                                                pageable ? ", pageable memory" : ""));
                 linkLaunch(row, span, false);
                 add(span, "memcpy", row, kSaid);
             });
}

void NsightImport::memsets() {
    static const Columns kSaid{"bytes", "value", "streamId", "memKind", "graphNodeId", "correlationId"};
    db_.read("CUPTI_ACTIVITY_KIND_MEMSET", both({"start", "end", "deviceId", "globalPid"}, kSaid),
             [&](const ForeignRow& row) {
                 TimelineBuilder::Span span;
                 if (!times(row, span)) return;
                 span.kind = Kind::Copy;
                 span.track = trackOf({true, processOf(row.integer("globalPid")), row.integer("deviceId"),
                                       fmt::format("stream {}", row.integer("streamId"))});
                 span.name = nameId(fmt::format("{} bytes set", row.integer("bytes")));
                 linkLaunch(row, span, false);
                 add(span, "memset", row, kSaid);
             });
}

void NsightImport::synchronisation() {
    static const Columns kSaid{"streamId", "eventId", "correlationId"};
    db_.read("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", both({"start", "end", "deviceId", "globalPid", "syncType"}, kSaid),
             [&](const ForeignRow& row) {
                 TimelineBuilder::Span span;
                 if (!times(row, span)) return;
                 constexpr const char* names[] = {"synchronisation", "wait for an event", "stream waits for an event",
                                                  "wait for a stream", "wait for the context"};
                 const std::int64_t type = row.integer("syncType");
                 span.track =
                     trackOf({true, processOf(row.integer("globalPid")), row.integer("deviceId"), "synchronisation"});
                 span.name = nameId(names[type >= 1 && type <= 4 ? type : 0]);
                 add(span, "synchronization", row, kSaid);
             });
}

void NsightImport::calls() {
    static const Columns kSaid{"returnValue", "correlationId"};
    db_.read("CUPTI_ACTIVITY_KIND_RUNTIME", both({"start", "end", "globalTid", "nameId"}, kSaid),
             [&](const ForeignRow& row) {
                 TimelineBuilder::Span span;
                 if (!times(row, span)) return;
                 span.track = trackOf({false, row.integer("globalTid"), 0, "CUDA calls"});
                 span.name = nameOfString(row.integer("nameId"), true);
                 linkLaunch(row, span, true);
                 add(span, "cuda_runtime", row, kSaid);
             });
}

void NsightImport::systemCalls() {
    static const Columns kSaid{"returnValue", "nestingLevel"};
    db_.read("OSRT_API", both({"start", "end", "globalTid", "nameId"}, kSaid), [&](const ForeignRow& row) {
        TimelineBuilder::Span span;
        if (!times(row, span)) return;
        span.track = trackOf({false, row.integer("globalTid"), 0, "system calls"});
        span.name = nameOfString(row.integer("nameId"));
        add(span, "osrt", row, kSaid);
    });
}

void NsightImport::ranges() {
    static const Columns kSaid{"category",    "color",       "rangeId",    "domainId",   "uint64Value", "int64Value",
                               "doubleValue", "uint32Value", "int32Value", "floatValue", "jsonText"};
    constexpr std::int64_t kMark = 34, kPushPop = 59, kStartEnd = 60;
    std::uint64_t unended = 0;
    for (const char* table : {"NVTX_EVENTS", "NVTX_EVENTS_V2", "NVTX_EVENTS_V3"})
        db_.read(
            table, both({"start", "end", "eventType", "text", "textId", "globalTid"}, kSaid),
            [&](const ForeignRow& row) {
                const std::int64_t type = row.integer("eventType");
                if (type != kMark && type != kPushPop && type != kStartEnd) return;
                TimelineBuilder::Span span;
                // A start/end range may end on another thread and overlap others, so these have a track of their own.
                span.track = trackOf({false, row.integer("globalTid"), 0, type == kStartEnd ? "NVTX ranges" : "NVTX"});
                span.name = row.has("text")     ? nameId(row.text("text"))
                            : row.has("textId") ? nameOfString(row.integer("textId"))
                                                : nameId({});
                if (type != kMark && !row.has("end")) { // the range was still open when recording ended
                    span.category = "nvtx";
                    if (openTimes(row, span)) timeline_.open(hashOf(++unended, hashOf("NVTX")), span);
                    return;
                }
                if (type == kMark ? openTimes(row, span) : times(row, span)) add(span, "nvtx", row, kSaid);
            });
}

void NsightImport::overhead() {
    for (const char* table : {"PROFILER_OVERHEAD", "CUPTI_ACTIVITY_KIND_OVERHEAD"})
        db_.read(table, {"start", "end", "globalTid", "nameId"}, [&](const ForeignRow& row) {
            TimelineBuilder::Span span;
            if (!times(row, span)) return;
            span.track = trackOf({false, row.integer("globalTid"), 0, "profiler overhead"});
            span.name = row.has("nameId") ? nameOfString(row.integer("nameId")) : nameId("profiler overhead");
            timeline_.add(span);
        });
}

void NsightImport::metrics() {
    std::map<std::pair<std::int64_t, std::int64_t>, std::string> names;
    db_.read("TARGET_INFO_GPU_METRICS", {"typeId", "metricId", "metricName"}, [&](const ForeignRow& row) {
        names[{row.integer("typeId"), row.integer("metricId")}] = row.text("metricName");
    });
    if (names.empty()) return;
    db_.read("GPU_METRICS", {"timestamp", "typeId", "metricId", "value"}, [&](const ForeignRow& row) {
        const auto name = names.find({row.integer("typeId"), row.integer("metricId")});
        if (name == names.end() || !row.has("timestamp")) return;
        constexpr std::int64_t kDeviceMask = 0xFF; // the lowest byte of a type id counts the devices
        const Track track = trackOf({true, 0, row.integer("typeId") & kDeviceMask, name->second});
        timeline_.addCounter(track, row.integer("timestamp"), double(row.integer("value")));
    });
}

void NsightImport::deviceMemory() {
    constexpr std::int64_t kAllocated = 0, kFreed = 1;
    std::map<std::pair<std::int64_t, std::int64_t>, double> used; // by process and device
    db_.read(
        "CUDA_GPU_MEMORY_USAGE_EVENTS", {"start", "globalPid", "deviceId", "bytes", "memoryOperationType"},
        [&](const ForeignRow& row) {
            const std::int64_t operation = row.integer("memoryOperationType");
            if (!row.has("start") || (operation != kAllocated && operation != kFreed)) return;
            const std::int64_t process = processOf(row.integer("globalPid")), device = row.integer("deviceId");
            double& now = used[{process, device}];
            now += operation == kAllocated ? double(row.integer("bytes")) : -double(row.integer("bytes"));
            timeline_.addCounter(trackOf({true, process, device, "device memory allocated (bytes)"}),
                                 row.integer("start"), now);
        },
        "start");
}

void NsightImport::labelTracks() {
    db_.read("ThreadNames", {"nameId", "globalTid"}, [&](const ForeignRow& row) {
        threadNames_[row.integer("globalTid")] = db_.string(row.integer("nameId")).value_or("");
    });
    db_.read("PROCESSES", {"globalPid", "name"}, [&](const ForeignRow& row) {
        const std::string path(row.text("name"));
        processNames_[processOf(row.integer("globalPid"))] = path.substr(path.rfind('/') + 1);
    });
    std::set<std::int64_t> processes, devices;
    for (const auto& [place, track] : tracks_) {
        if (place.global != 0) processes.insert(processOf(place.global));
        if (place.onGpu) devices.insert(place.device);
    }
    for (const auto& [place, track] : tracks_) {
        std::string label;
        if (processes.size() > 1 && place.global != 0) {
            const std::string name = processNames_[processOf(place.global)];
            label = fmt::format("{} {} / ", name.empty() ? "process" : name, processNumber(place.global));
        }
        if (place.onGpu) {
            if (devices.size() > 1) label += fmt::format("GPU {} ", place.device);
        } else {
            const std::string name = threadNames_[place.global];
            label += name.empty() ? fmt::format("thread {} ", threadNumber(place.global)) : fmt::format("{} ", name);
        }
        timeline_.label(track, label + place.what,
                        place.onGpu ? std::string() : fmt::format("({})", threadNumber(place.global)));
    }
}

void NsightImport::facts(ImportedFacts& facts) {
    std::map<std::string, std::string> meta;
    db_.read("META_DATA_EXPORT", {"name", "value"},
             [&](const ForeignRow& row) { meta[std::string(row.text("name"))] = row.text("value"); });
    facts.source = "Nsight Systems";
    if (!meta["EXPORT_PRODUCT_VERSION"].empty()) facts.source += " " + meta["EXPORT_PRODUCT_VERSION"];
    if (!meta["EXPORT_SCHEMA_VERSION"].empty())
        facts.source += fmt::format(" (schema {})", meta["EXPORT_SCHEMA_VERSION"]);
    std::vector<std::string> devices;
    db_.read("TARGET_INFO_GPU", {"name"}, [&](const ForeignRow& row) { devices.emplace_back(row.text("name")); });
    facts.device = fmt::format("{}", fmt::join(devices, ", "));
    db_.read("TARGET_INFO_SESSION_START_TIME", {"utcTime"}, [&](const ForeignRow& row) {
        // The text is like 2026-05-05T12:00:00.123456789, possibly with a space instead of the T and with a zone at the
        // end. KVScope shows seconds, so the first 19 characters are enough.
        std::string text(row.text("utcTime"));
        if (text.size() < 19 || text[4] != '-' || text[13] != ':') return;
        text[10] = 'T';
        facts.recordedUtc = text.substr(0, 19) + "Z";
    });
    std::size_t more = 0;
    db_.read("DIAGNOSTIC_EVENT", {"severity", "text"}, [&](const ForeignRow& row) {
        constexpr std::int64_t kWarning = 2;
        if (row.integer("severity") < kWarning) return;
        if (facts.remarks.size() < kMostRemarks)
            facts.remarks.push_back(timeline_.names().text(nameId(row.text("text"))));
        else
            ++more;
    });
    if (more > 0) facts.remarks.push_back(fmt::format("and {} more warnings of Nsight Systems", more));
    if (db_.hasRows("CUPTI_ACTIVITY_KIND_GRAPH_TRACE"))
        facts.remarks.emplace_back(
            "CUDA graphs were recorded as a whole: their kernels are not in the file (nsys profile "
            "--cuda-graph-trace=node records them)");
}

ImportedFacts NsightImport::read() {
    const struct {
        double at;
        const char* what;
        void (NsightImport::*read)();
    } parts[] = {{0.0, "reading kernels", &NsightImport::kernels},
                 {0.25, "reading graphs", &NsightImport::graphs},
                 {0.26, "reading copies", &NsightImport::copies},
                 {0.32, "reading memsets", &NsightImport::memsets},
                 {0.35, "reading waits", &NsightImport::synchronisation},
                 {0.4, "reading CUDA calls", &NsightImport::calls},
                 {0.6, "reading system calls", &NsightImport::systemCalls},
                 {0.7, "reading NVTX", &NsightImport::ranges},
                 {0.9, "reading overhead", &NsightImport::overhead},
                 {0.92, "reading GPU metrics", &NsightImport::metrics},
                 {0.98, "reading device memory", &NsightImport::deviceMemory}};
    for (const auto& one : parts) {
        part(one.at, one.what);
        (this->*one.read)();
    }
    ImportedFacts result;
    facts(result);
    labelTracks();
    return result;
}

} // namespace

bool recognisesNsight(const std::string& path, std::string_view head) {
    if (head.substr(0, 15) != "SQLite format 3") return false;
    try {
        ForeignDatabase database(path, {});
        return database.hasTable("META_DATA_EXPORT") || database.hasTable("META_DATA_CAPTURE") ||
               (database.hasTable("StringIds") &&
                (database.hasTable("TARGET_INFO_SESSION_START_TIME") ||
                 database.hasTable("CUPTI_ACTIVITY_KIND_KERNEL") || database.hasTable("CUPTI_ACTIVITY_KIND_RUNTIME") ||
                 database.hasTable("NVTX_EVENTS")));
    } catch (const Error&) {
        // The file is damaged. If its first page still names Nsight's tables, the file counts as recognised, and
        // reading it will report what is wrong.
        return head.find("META_DATA_EXPORT") != head.npos || head.find("StringIds") != head.npos;
    }
}

ImportedFacts readNsight(const std::string& path, TimelineBuilder& timeline, const Progress& progress,
                         const std::stop_token& stop) {
    ForeignDatabase database(path, stop);
    database.requireWhole();
    return NsightImport(database, timeline, progress).read();
}

} // namespace kvscope
