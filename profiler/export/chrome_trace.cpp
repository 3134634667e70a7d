// A run as Chrome trace events: what the engine did, what the GPU did, what crossed the link, and how the KV cache
// fared.
#include "base/json_text.h"
#include "core/trace/trace_sink.h"
#include "profiler/export/chrome_events.h"
#include "profiler/export/export.h"
#include "profiler/export/has_table.h"
#include "profiler/export/resident_blocks.h"
#include "profiler/export/step_slices.h"
#include "profiler/format/counter_sample.h"
#include "profiler/format/span_name.h"
#include "profiler/format/trace_keys.h"
#include "profiler/import/import.h"
#include "profiler/read/open_trace.h"
#include "profiler/read/run_knowledge.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_map>

namespace kvscope {
namespace {

// Processes of the document: run * kProcessesOfARun + one of these.
enum Process { kEngine = 0, kGpu = 1, kLink = 2, kCache = 3 };
constexpr int kProcessesOfARun = 10;

/// What is counted in bytes, and where.
struct ByteTrack {
    std::string_view name;
    Process process;
};
constexpr ByteTrack kByteTracks[] = {{kPcieToDevice, kLink}, {kPcieToHost, kLink},  {kPmToDevice, kLink},
                                     {kPmToHost, kLink},     {kPmMemoryRead, kGpu}, {kPmMemoryWritten, kGpu}};
constexpr int kSpansPerReport = 1 << 14;
constexpr double kStepsShare = 0.5; // of the progress; the rest is spans

/// Arguments as they go into an event. Another program may have written the trace: what is no JSON object is a text.
std::string argsOf(std::string_view stored) {
    if (!stored.empty() && stored.front() == '{' && stored.back() == '}' && nlohmann::json::accept(stored))
        return std::string(stored);
    std::string text = R"({"args":)";
    appendJsonString(text, stored);
    return text + "}";
}

class RunExport {
public:
    RunExport(Connection& connection, ChromeEvents& events, int runId, const ExportOptions& options)
        : connection_(connection), events_(events), run_(runId), progress_(options.progress), range_(options.range),
          knows_(knowledgeOf(connection, runId)) {}
    void write(std::string_view name, std::string_view timing, int deviceSlots, bool imported);

private:
    int process(Process which) const { return run_ * kProcessesOfARun + which; }
    /// Writes the name of a process at its first use. @return its number in the document
    int use(Process which);
    void steps(std::string_view timing, int deviceSlots);
    void step(const StepSlices& step, std::string_view timing);
    void counters(const StepSlices& step);
    void spans();
    void recordedCounters();
    bool isInRange(std::int64_t startNs, std::int64_t durationNs) const {
        return !range_ ||
               (startNs < range_->toNs && sumOf(startNs, std::max<std::int64_t>(durationNs, 1)) > range_->fromNs);
    }
    int threadOf(std::int64_t track, std::string_view name, std::int64_t kind, const SpanName& span, int& ofProcess);
    void loadFlows();

    Connection& connection_;
    ChromeEvents& events_;
    int run_;
    const Progress& progress_;
    std::optional<ExportRange> range_;
    std::string name_;
    bool imported_ = false;
    Knowledge knows_;
    LinkClock clock_; // of the transfers
    bool used_[4] = {};
    std::unordered_map<std::int64_t, EventTrack> tracks_; // by text.id: the first lane
    struct End {
        std::int64_t span;
        std::uint64_t flow;
        bool operator<(const End& other) const { return span < other.span; }
    };
    std::vector<End> starts_, finishes_; // of the recorded flows, by span
    std::int64_t lastNs_ = 0;
};

int RunExport::use(Process which) {
    if (!std::exchange(used_[which], true)) {
        const std::string names[] = {name_, "GPU", "host-device link", "KV cache"};
        events_.nameProcess(process(which), fmt::format("run {}: {}", run_, names[which]), process(which));
    }
    return process(which);
}

void RunExport::step(const StepSlices& step, std::string_view timing) {
    const int host = events_.thread(use(kEngine), "host");
    for (const StageSlice& part : step.slices) {
        const EventTrack at = events_.slice(
            {process(kEngine), host, "stage", part.name, part.startNs, part.durationNs, step.step, part.layer});
        if (!part.attention) continue;
        // The blocks of this layer crossed the link for this attention.
        const LayerTransfer& transfer = step.transfers[std::size_t(part.layerIndex)];
        const auto copy = [&](std::string_view direction, std::int64_t bytes, std::int64_t blocks, std::int64_t ns) {
            const int thread = events_.thread(
                use(kLink), timing == clock_.name() ? fmt::format("{} ({})", direction, timing)
                                                    : fmt::format("{} ({}, {})", direction, timing, clock_.name()));
            return events_.slice({process(kLink), thread, "transfer",
                                  fmt::format("{} block{}", blocks, blocks == 1 ? "" : "s"), transfer.startNs, ns,
                                  step.step, part.layer, bytes});
        };
        if (transfer.h2dBlocks > 0 || transfer.h2dBytes > 0) {
            const EventTrack from = copy("host to device", transfer.h2dBytes, transfer.h2dBlocks, transfer.h2dNs);
            if (part.startNs >= transfer.startNs)
                events_.flow("transfer to attention", from, transfer.startNs, at, part.startNs);
        }
        if (transfer.d2hBlocks > 0 || transfer.d2hBytes > 0)
            copy("device to host", transfer.d2hBytes, transfer.d2hBlocks, transfer.d2hNs);
    }
    lastNs_ = std::max(lastNs_, sumOf(step.startNs, step.durationNs));
}

void RunExport::counters(const StepSlices& step) {
    const double seconds = double(step.durationNs) / 1e9;
    const int cache = use(kCache), link = use(kLink);
    const auto ofStep = [&](int process, std::string_view name, std::string_view unit, double value) {
        events_.counterOf(process, name, unit, step.startNs, sumOf(step.startNs, step.durationNs), value);
    };
    if (step.phase == Phase::Decode && knows_.has(Known::StepTimes))
        ofStep(process(kEngine), "decode", "tokens/s", double(step.tokens) / seconds);
    if (knows_.has(Known::Bytes)) {
        ofStep(link, "host to device", "GB/s", double(step.h2dBytes) / 1e9 / seconds);
        ofStep(link, "device to host", "GB/s", double(step.d2hBytes) / 1e9 / seconds);
    }
    if (knows_.has(Known::ExposedTimes)) ofStep(link, "exposed transfer", "us", double(step.exposedNs) / 1e3);
    // A counter keeps its value until the next step begins, but between two steps no hit rate is true, not even 0. The
    // name therefore says that the value is that of the last step.
    if (knows_.has(Known::Hits) && step.hits + step.misses > 0)
        events_.counter(cache, "hit rate of the last step", "share", step.startNs,
                        double(step.hits) / double(step.hits + step.misses));
}

void RunExport::steps(std::string_view timing, int deviceSlots) {
    if (!knows_.has(Known::StepTimes)) return; // steps that have no place in time
    clock_ = linkClockOf(connection_, run_);
    StepSliceReader reader(connection_, run_, clock_);
    ResidentBlocks resident(connection_, run_, knows_.has(Known::Hits) ? deviceSlots : 0);
    const std::int64_t count = std::max<std::int64_t>(reader.lastStep() + 1, 1);
    StepSlices current;
    while (reader.next(current)) {
        const auto blocks = resident.after(current.step); // counts from step to step
        if (range_ && current.startNs >= range_->toNs) break;
        if (!isInRange(current.startNs, current.durationNs)) continue;
        step(current, timing);
        counters(current);
        if (blocks) events_.counter(use(kCache), "resident", "KV blocks", current.startNs, double(*blocks));
        if (current.step % 64 == 0)
            report(progress_, kStepsShare * double(current.step) / double(count), "exporting steps");
    }
}

/// @return the thread of the document that shows a track. ofProcess: becomes its process, which is the link for copies,
/// the engine for ranges, and the GPU for everything else
int RunExport::threadOf(std::int64_t track, std::string_view name, std::int64_t kind, const SpanName& span,
                        int& ofProcess) {
    const auto known = tracks_.find(track);
    if (known != tracks_.end()) {
        ofProcess = known->second.process;
        return known->second.thread;
    }
    const bool copies = kind == int(SpanRecord::Kind::Copy) && span.bytes >= 0 && span.name != kSetName;
    ofProcess = use(copies ? kLink : kind == int(SpanRecord::Kind::Range) ? kEngine : kGpu);
    // The steps, which are written already, are shown in a thread with the name "host".
    const int thread = events_.thread(ofProcess, name == "host" ? "host (other spans)" : name);
    tracks_[track] = {ofProcess, thread};
    return thread;
}

void RunExport::loadFlows() {
    if (!hasTable(connection_, "flow")) return;
    Statement rows(connection_,
                   "SELECT f.id, f.from_span, f.to_span, a.start_ns, a.duration_ns, b.start_ns, b.duration_ns"
                   " FROM flow f JOIN span a ON a.id = f.from_span AND a.run_id = ?1"
                   " JOIN span b ON b.id = f.to_span AND b.run_id = ?1 WHERE f.run_id = ?1");
    rows.bind(1, run_);
    while (rows.step()) {
        if (!isInRange(rows.int64(3), rows.int64(4)) || !isInRange(rows.int64(5), rows.int64(6))) continue;
        const auto number = std::uint64_t(rows.int64(0)) << 8 | std::uint64_t(run_);
        starts_.push_back({rows.int64(1), number});
        finishes_.push_back({rows.int64(2), number});
    }
    std::sort(starts_.begin(), starts_.end());
    std::sort(finishes_.begin(), finishes_.end());
}

void RunExport::spans() {
    loadFlows();
    const bool derivesLaunches = starts_.empty() && !imported_; // for a run whose CUDA calls were not recorded
    std::int64_t newestLaunch = -1;
    struct {
        std::int64_t step = -1, layer = -1, startNs = 0;
        EventTrack at;
    } gather;
    const bool hasDetails = hasTable(connection_, "span_detail");
    Statement stepStart(connection_, "SELECT start_ns, duration_ns FROM step WHERE id = ?");
    Statement rows(
        connection_,
        fmt::format("SELECT s.id, s.step, s.layer, s.kind, s.track, t.value, n.value, s.start_ns,"
                    " s.duration_ns, {}, g.value, s.bytes FROM span s JOIN text t ON t.id = s.track"
                    " JOIN text n ON n.id = s.name {} {} WHERE s.run_id = ?"
                    " ORDER BY s.start_ns, s.duration_ns DESC, s.id",
                    hasDetails ? "c.value, d.args" : "NULL, NULL", kStageJoin,
                    hasDetails ? "LEFT JOIN span_detail d ON d.id = s.id LEFT JOIN text c ON c.id = d.category" : ""));
    rows.bind(1, run_);
    const std::int64_t firstEvent = events_.events();
    for (std::int64_t seen = 0; rows.step(); ++seen) {
        const std::int64_t id = rows.int64(0), step = rows.int64(1), layer = rows.int64(2), kind = rows.int64(3),
                           startNs = rows.int64(7), durationNs = std::max<std::int64_t>(rows.int64(8), 0);
        if (range_ && startNs >= range_->toNs) break; // by start
        if (!isInRange(startNs, durationNs)) continue;
        const bool isWhole = rows.isNull(11) && rows.isNull(12);
        const SpanName parts =
            isWhole ? SpanName::ofWhole(SpanRecord::Kind(std::clamp<std::int64_t>(kind, 0, 2)), rows.text(6))
                    : SpanName{rows.text(11), rows.isNull(12) ? -1 : rows.int64(12), rows.text(6)};
        const std::string name = parts.shown();
        const bool isKernel = kind == int(SpanRecord::Kind::Kernel);
        int ofProcess = 0;
        const int thread = threadOf(rows.int64(4), rows.text(5), kind, parts, ofProcess);
        const std::string_view category = !rows.isNull(9)                       ? rows.text(9)
                                          : isKernel                            ? "kernel"
                                          : kind == int(SpanRecord::Kind::Copy) ? "copy"
                                                                                : "range";
        const std::string args = rows.isNull(10) ? std::string() : argsOf(rows.text(10));
        const EventTrack at =
            events_.slice({ofProcess, thread, category, name, startNs, durationNs, step, layer, -1, args});
        lastNs_ = std::max(lastNs_, sumOf(startNs, durationNs));
        for (auto end = std::lower_bound(starts_.begin(), starts_.end(), End{id, 0});
             end != starts_.end() && end->span == id; ++end)
            events_.flowEnd("launch", end->flow, true, at, startNs);
        for (auto end = std::lower_bound(finishes_.begin(), finishes_.end(), End{id, 0});
             end != finishes_.end() && end->span == id; ++end)
            events_.flowEnd("launch", end->flow, false, at, startNs);
        // One launch starts all kernels of a recorded step: the arrow goes to the first.
        if (derivesLaunches && isKernel && step > newestLaunch) {
            newestLaunch = step;
            stepStart.bind(1, trace::stepKey(run_, int(std::min<std::int64_t>(step, trace::kMaxStep))));
            if (stepStart.step() && stepStart.int64(0) <= startNs && isInRange(stepStart.int64(0), stepStart.int64(1)))
                events_.flow("launch to kernel", {process(kEngine), events_.thread(process(kEngine), "host")},
                             stepStart.int64(0), at, startNs);
            stepStart.reset();
        }
        if (!imported_ && isKernel && parts.stage == nameOf(Stage::Offloading)) {
            gather = {step, layer, startNs, at};
        } else if (isKernel && gather.step == step && gather.layer == layer && gather.step >= 0 &&
                   (parts.stage == nameOf(Stage::Stage2) || parts.stage == nameOf(Stage::Attention))) {
            events_.flow("transfer to attention", gather.at, gather.startNs, at, startNs);
            gather.step = -1;
        }
        if (seen % kSpansPerReport == 0)
            report(progress_, kStepsShare + (1 - kStepsShare) * double(seen) / double(seen + kSpansPerReport),
                   fmt::format("exporting spans: {} events", events_.events() - firstEvent));
    }
}

void RunExport::recordedCounters() {
    if (hasTable(connection_, "counter")) { // what the GPU's own counters saw; bytes per nanosecond are GB/s
        Statement samples(
            connection_,
            "SELECT t.value, c.start_ns, CAST(c.value AS REAL) / c.duration_ns, c.duration_ns FROM counter c"
            " JOIN text t ON t.id = c.track WHERE c.run_id = ? AND c.duration_ns > 0"
            " ORDER BY c.start_ns, c.id");
        samples.bind(1, run_);
        while (samples.step()) {
            if (!isInRange(samples.int64(1), 0)) continue;
            const std::string_view track = samples.text(0);
            const auto* counted = std::find_if(std::begin(kByteTracks), std::end(kByteTracks),
                                               [&](const ByteTrack& each) { return each.name == track; });
            if (counted == std::end(kByteTracks)) continue; // records that were lost
            events_.counterOf(use(counted->process), track, "GB/s", samples.int64(1),
                              sumOf(samples.int64(1), samples.int64(3)), samples.real(2));
            lastNs_ = std::max(lastNs_, samples.int64(1));
        }
    }
    if (!hasTable(connection_, "gauge")) return;
    Statement rows(connection_, "SELECT t.value, c.time_ns, c.value FROM gauge c JOIN text t ON t.id = c.track"
                                " WHERE c.run_id = ? ORDER BY c.time_ns, c.id");
    rows.bind(1, run_);
    while (rows.step()) {
        if (!isInRange(rows.int64(1), 0)) continue;
        events_.counter(use(kEngine), rows.text(0), "value", rows.int64(1), rows.real(2));
        lastNs_ = std::max(lastNs_, rows.int64(1));
    }
}

void RunExport::write(std::string_view name, std::string_view timing, int deviceSlots, bool imported) {
    name_ = name;
    imported_ = imported;
    use(kEngine);
    steps(timing, deviceSlots);
    spans();
    recordedCounters();
    events_.closeCounters(lastNs_);
}

/// The earliest time of all runs that are written, at most 0, at which the first step of a run may begin: a profiler
/// records before that.
std::int64_t earliest(Connection& connection, std::optional<int> runId) {
    std::int64_t first = 0;
    for (const auto& [table, column] : {std::pair("span", "start_ns"), {"counter", "start_ns"}, {"gauge", "time_ns"}}) {
        if (!hasTable(connection, table)) continue;
        Statement rows(connection, fmt::format("SELECT min({}) FROM {} WHERE ?1 < 0 OR run_id = ?1", column, table));
        rows.bind(1, runId.value_or(-1));
        if (rows.step()) first = std::min(first, rows.int64(0));
    }
    return first;
}

} // namespace

ExportResult exportChromeTrace(const std::string& path, std::ostream& out, const ExportOptions& options) {
    const OpenTrace trace = openTrace(path);
    trace.connection->setInterrupt(options.interrupt);
    LineWriter writer(out);
    // No displayTimeUnit: it changes what older viewers take ts for.
    const std::int64_t originNs = earliest(*trace.connection, options.runId);
    writer.add(R"({{"otherData":{{"producer":"KVScope","time_zero_ns":{}}},"traceEvents":[)", originNs);
    ChromeEvents events(writer, originNs);
    // A request of a serving run takes its blocks with it when it leaves its row, so that they cannot be counted.
    Statement runs(*trace.connection,
                   "SELECT run_id, name, timing, CASE WHEN EXISTS (SELECT 1 FROM run_meta m WHERE m.run_id = r.run_id"
                   " AND m.key = 'serving') THEN 0 ELSE device_slots END, backend FROM run r ORDER BY run_id");
    while (runs.step())
        if (!options.runId || *options.runId == runs.int64(0))
            RunExport(*trace.connection, events, runs.int32(0), options)
                .write(runs.text(1), runs.text(2), runs.int32(3), runs.text(4) == kImported);
    writer.addText("\n]}\n");
    writer.flush();
    return {events.events(), {}};
}

} // namespace kvscope
