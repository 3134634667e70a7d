#include "profiler/read/counters.h"

#include "profiler/read/reader_impl.h"

#include <algorithm>
#include <cmath>

namespace kvscope {

std::vector<CounterSample> counterSamples(const TraceReader& reader, int runId) {
    Connection& connection = *ReaderAccess::of(reader).connection;
    std::vector<CounterSample> samples;
    // A table, not a view that looks like it: a view in a foreign file could run for ever.
    Statement there(connection, "SELECT 1 FROM sqlite_schema WHERE type='table' AND name='counter'");
    if (!there.step()) return samples;
    Statement rows(connection, "SELECT t.value, c.start_ns, c.duration_ns, c.value FROM counter c"
                               " JOIN text t ON t.id = c.track WHERE c.run_id=? ORDER BY c.start_ns, c.id");
    rows.bind(1, runId);
    while (rows.step()) samples.push_back({std::string(rows.text(0)), rows.int64(1), rows.int64(2), rows.int64(3)});
    return samples;
}

std::optional<PcieTraffic> pcieTraffic(const TraceReader& reader, int runId) {
    double begin = INFINITY, end = -INFINITY, toDevice = 0, toHost = 0;
    PcieTraffic traffic;
    for (const StepRow& step : reader.steps(runId)) {
        if (step.phase != Phase::Decode) continue;
        begin = std::min(begin, double(step.startNs));
        end = std::max(end, double(step.startNs) + double(step.durationNs));
        traffic.engineToDevice += step.h2dBytes;
        traffic.engineToHost += step.d2hBytes;
    }
    bool any = false;
    for (const CounterSample& sample : counterSamples(reader, runId)) {
        double& sum = sample.track == kPcieToDevice ? toDevice : toHost;
        if (sample.track != kPcieToDevice && sample.track != kPcieToHost) continue;
        const double from = double(sample.startNs), to = from + double(sample.durationNs);
        const double within = std::min(to, end) - std::max(from, begin);
        if (within <= 0 || to <= from) continue;
        any = true;
        sum += double(sample.value) * within / (to - from);
    }
    if (!any) return std::nullopt;
    traffic.countedToDevice = std::llround(toDevice);
    traffic.countedToHost = std::llround(toHost);
    return traffic;
}

std::optional<std::int64_t> lostGpuRecords(const TraceReader& reader, int runId) {
    std::optional<std::int64_t> lost;
    for (const CounterSample& sample : counterSamples(reader, runId))
        if (sample.track == kLostGpuRecords) lost = lost.value_or(0) + sample.value;
    return lost;
}

} // namespace kvscope
