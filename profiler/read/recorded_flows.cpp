#include "profiler/read/recorded_flows.h"

#include "profiler/format/span_name.h"
#include "profiler/read/reader_impl.h"

#include <algorithm>
#include <fmt/format.h>

namespace kvscope {
namespace {

constexpr std::size_t kMostFlows = 64, kMostRows = 1'000; // a graph's launch may lead to thousands of kernels

/// False where a search for the span would be in vain.
bool hasFlows(const TraceReader& reader, int runId) {
    if (!ReaderAccess::of(reader).hasTable("flow")) return false;
    Statement any(*ReaderAccess::of(reader).connection, "SELECT 1 FROM flow WHERE run_id = ? LIMIT 1");
    any.bind(1, runId);
    return any.step();
}

} // namespace

std::vector<RecordedFlow> recordedFlows(const TraceReader& reader, int runId, const SpanPlace& span,
                                        const SpanRows* rows) {
    std::vector<RecordedFlow> flows;
    if (!hasFlows(reader, runId)) return flows;
    const SpanRows unread(runId);
    if (!rows) rows = &unread;
    const auto id = rows->spanAt(reader, span);
    if (!id) return flows;
    Statement other(*ReaderAccess::of(reader).connection,
                    fmt::format("SELECT t.value, {}, s.start_ns, s.duration_ns, s.depth FROM span s JOIN text t ON"
                                " t.id = s.track JOIN text n ON n.id = s.name {} WHERE s.id = ?",
                                kShownName, kStageJoin));
    for (const SpanRows::Flow& flow : rows->flowsOf(reader, *id, kMostRows)) {
        other.bind(1, flow.other);
        if (other.step())
            flows.push_back({flow.leaves,
                             {std::string(other.text(0)), std::string(other.text(1)), other.int64(2), other.int64(3),
                              int(other.int64(4))}});
        other.reset();
    }
    std::stable_sort(flows.begin(), flows.end(),
                     [](const RecordedFlow& a, const RecordedFlow& b) { return a.other.startNs < b.other.startNs; });
    if (flows.size() > kMostFlows) flows.resize(kMostFlows);
    return flows;
}

} // namespace kvscope
