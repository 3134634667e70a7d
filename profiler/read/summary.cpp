#include "profiler/read/summary.h"

#include "profiler/read/reader_impl.h"
#include "profiler/store/trace_keys.h"

#include <algorithm>
#include <limits>

namespace kvscope {
namespace {

/// Position of a component in the pipeline; embed first, then the stages of a layer, then what follows the layers.
int orderOf(const std::string& component) {
    if (component == kStepStageNames[0]) return 0;
    for (int i = 0; i < kStageCount; ++i)
        if (component == kStageNames[std::size_t(i)]) return 1 + i;
    for (int i = 1; i < kStepStageCount; ++i)
        if (component == kStepStageNames[std::size_t(i)]) return 1 + kStageCount + i;
    return 100;
}

std::vector<ComponentShare> componentsOf(const std::vector<BreakdownRow>& rows) {
    std::vector<ComponentShare> result;
    double wall[2] = {0, 0};
    for (const BreakdownRow& row : rows) {
        wall[row.phase == "prefill" ? 0 : 1] += double(row.totalNs);
        const auto same = std::find_if(result.begin(), result.end(), [&](const ComponentShare& share) {
            return share.phase == row.phase && share.component == row.component;
        });
        if (same != result.end())
            same->totalNs += row.totalNs;
        else
            result.push_back({row.phase, row.component, row.totalNs, 0});
    }
    for (ComponentShare& share : result) {
        const double whole = wall[share.phase == "prefill" ? 0 : 1];
        share.share = whole > 0 ? double(share.totalNs) / whole : 0;
    }
    std::stable_sort(result.begin(), result.end(), [](const ComponentShare& a, const ComponentShare& b) {
        if (a.phase != b.phase) return a.phase == "prefill";
        return orderOf(a.component) < orderOf(b.component);
    });
    return result;
}

} // namespace

RunSummary summarize(const TraceReader& reader, int runId) {
    const TraceReader::Impl& impl = *reader.impl_;
    const RunRow run = impl.known(runId);
    RunSummary summary;
    summary.runId = runId;
    summary.droppedSteps = run.droppedSteps;
    summary.timing = run.timing;

    Statement steps(
        *impl.connection,
        "SELECT phase, count(*), sum(tokens), total(duration_ns) / 1e6, sum(selected), sum(hits), sum(misses),"
        " sum(h2d_bytes), sum(d2h_bytes), total(transfer_ns) / 1e6, total(exposed_ns) / 1e6"
        " FROM step WHERE id BETWEEN ? AND ? GROUP BY phase");
    steps.bindAll(trace::stepKey(runId, 0), trace::stepKey(runId, trace::kMaxStep));
    while (steps.step()) {
        if (steps.int64(0) == 0) {
            summary.promptTokens = steps.int64(2);
            summary.prefillMs = steps.real(3);
        } else {
            summary.decodeSteps = steps.int64(1);
            summary.decodedTokens = steps.int64(2);
            summary.decodeMs = steps.real(3);
        }
        summary.selected += steps.int64(4);
        summary.hits += steps.int64(5);
        summary.misses += steps.int64(6);
        summary.h2dBytes += steps.int64(7);
        summary.d2hBytes += steps.int64(8);
        summary.transferMs += steps.real(9);
        summary.exposedMs += steps.real(10);
    }
    if (summary.decodeMs > 0) summary.tokensPerSecond = double(summary.decodedTokens) * 1e3 / summary.decodeMs;
    const std::int64_t looked = summary.hits + summary.misses;
    constexpr double undefined = std::numeric_limits<double>::quiet_NaN();
    summary.hitRate = looked > 0 ? double(summary.hits) / double(looked) : undefined;

    Statement locality(*impl.connection,
                       "SELECT total(kept IS NOT NULL AND selected > 0 AND opens_block = 0),"
                       " total(kept IS NULL), total(kept IS NOT NULL AND opens_block <> 0),"
                       " avg(CASE WHEN opens_block = 0 THEN CAST(kept AS REAL) / nullif(selected, 0) END),"
                       " min(CASE WHEN opens_block = 0 THEN CAST(kept AS REAL) / nullif(selected, 0) END)"
                       " FROM selection WHERE id BETWEEN ? AND ?");
    const auto [low, high] = trace::keysOfSteps(runId, 0, trace::kMaxStep, trace::kSelectionShift);
    locality.bindAll(low, high);
    if (locality.step()) {
        summary.localityCount = std::int64_t(locality.real(0));
        summary.localityUndefined = std::int64_t(locality.real(1));
        summary.localityOpening = std::int64_t(locality.real(2));
        summary.localityMean = locality.isNull(3) ? undefined : locality.real(3);
        summary.localityMin = locality.isNull(4) ? undefined : locality.real(4);
    }
    summary.components = componentsOf(reader.breakdown(runId));
    return summary;
}

} // namespace kvscope
