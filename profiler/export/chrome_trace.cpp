#include "kernels/base/error.h"
#include "profiler/export/export.h"
#include "profiler/export/line_writer.h"
#include "profiler/read/open_trace.h"

#include <map>
#include <string>

namespace kvscope {
namespace {

/// Nanoseconds as microseconds with all digits: rounding would make nested events overlap.
std::string micros(std::int64_t ns) {
    const char* sign = ns < 0 ? "-" : "";
    const std::uint64_t size = ns < 0 ? std::uint64_t(0) - std::uint64_t(ns) : std::uint64_t(ns);
    return fmt::format("{}{}.{:03}", sign, size / 1000, size % 1000);
}

class EventWriter {
public:
    EventWriter(Connection& connection, LineWriter& writer) : connection_(connection), writer_(writer) {}
    void run(int runId, std::string_view name, std::string_view timing);
    std::int64_t events() const { return events_; }

private:
    void begin() { writer_.addText(events_++ == 0 ? "\n" : ",\n"); }
    void nameOfThread(int runId, int thread, std::string_view name);
    void spans(int runId);
    void counters(int runId, std::string_view timing);

    Connection& connection_;
    LineWriter& writer_;
    std::int64_t events_ = 0;
};

void EventWriter::run(int runId, std::string_view name, std::string_view timing) {
    begin();
    writer_.add(R"({{"ph":"M","pid":{},"name":"process_name","args":{{"name":)", runId);
    writer_.addJson(fmt::format("run {}: {}", runId, name));
    writer_.addText("}}");
    spans(runId);
    counters(runId, timing);
}

void EventWriter::nameOfThread(int runId, int thread, std::string_view name) {
    begin();
    writer_.add(R"({{"ph":"M","pid":{},"tid":{},"name":"thread_name","args":{{"name":)", runId, thread);
    writer_.addJson(name);
    writer_.addText("}}");
}

void EventWriter::spans(int runId) {
    std::map<std::string, int, std::less<>> threads; // by track
    // Parents before children where they begin together, or viewers nest them the wrong way round.
    Statement rows(connection_, "SELECT step, layer, track, name, start_ns, duration_ns FROM v_span WHERE run_id=?"
                                " ORDER BY start_ns, depth");
    rows.bind(1, runId);
    while (rows.step()) {
        const std::string_view track = rows.text(2);
        auto thread = threads.find(track);
        if (thread == threads.end()) {
            thread = threads.emplace(std::string(track), int(threads.size()) + 1).first;
            nameOfThread(runId, thread->second, track);
        }
        begin();
        writer_.add(R"({{"ph":"X","pid":{},"tid":{},"ts":{},"dur":{},"cat":)", runId, thread->second,
                    micros(rows.int64(4)), micros(rows.int64(5)));
        writer_.addJson(track);
        writer_.addText(",\"name\":");
        const std::string_view name = rows.text(3);
        const std::int64_t step = rows.int64(0), layer = rows.int64(1);
        writer_.addJson(name == "layer" ? fmt::format("layer {}", layer) : std::string(name));
        writer_.add(R"(,"args":{{"step":{})", step);
        if (layer >= 0) writer_.add(R"(,"layer":{})", layer);
        writer_.addText("}}");
        writer_.endRow();
    }
}

void EventWriter::counters(int runId, std::string_view timing) {
    Statement rows(connection_,
                   "SELECT start_ns, CAST(hits AS REAL) / nullif(hits + misses, 0), h2d_bytes, exposed_ns / 1e3"
                   " FROM v_step WHERE run_id=? ORDER BY start_ns");
    rows.bind(1, runId);
    const auto counterAt = [&](std::int64_t ns, std::string_view name, const char* unit, double value) {
        begin();
        writer_.add(R"({{"ph":"C","pid":{},"tid":0,"ts":{},"name":)", runId, micros(ns));
        writer_.addJson(name);
        writer_.add(R"(,"args":{{"{}":{}}}}})", unit, value);
    };
    const auto counter = [&](std::string_view name, const char* unit, double value) {
        counterAt(rows.int64(0), name, unit, value);
    };
    const std::string exposed = fmt::format("exposed transfer ({})", timing);
    while (rows.step()) {
        if (!rows.isNull(1)) counter("hit rate", "share", rows.real(1));
        counter("host to device", "bytes", rows.real(2));
        counter(exposed, "us", rows.real(3));
        writer_.endRow();
    }
    Statement there(connection_, "SELECT 1 FROM sqlite_schema WHERE type='view' AND name='v_counter'");
    if (!there.step()) return;
    // Bytes per nanosecond are GB/s.
    Statement samples(connection_,
                      "SELECT start_ns, track, CAST(value AS REAL) / duration_ns FROM v_counter"
                      " WHERE run_id=? AND duration_ns > 0 AND track LIKE 'PCIe bytes%' ORDER BY start_ns");
    samples.bind(1, runId);
    while (samples.step()) {
        counterAt(samples.int64(0), samples.text(1), "GB/s", samples.real(2));
        writer_.endRow();
    }
}

} // namespace

ExportResult exportChromeTrace(const std::string& path, std::ostream& out, const ExportOptions& options) {
    const OpenTrace trace = openTrace(path);
    trace.connection->setInterrupt(options.interrupt);
    LineWriter writer(out);
    writer.addText(R"({"displayTimeUnit":"ns","otherData":{"producer":"KVScope"},"traceEvents":[)");
    EventWriter events(*trace.connection, writer);
    Statement runs(*trace.connection, "SELECT run_id, name, timing FROM run ORDER BY run_id");
    while (runs.step())
        if (!options.runId || *options.runId == runs.int64(0)) events.run(runs.int32(0), runs.text(1), runs.text(2));
    writer.addText("\n]}\n");
    writer.flush();
    return {events.events(), {}};
}

} // namespace kvscope
