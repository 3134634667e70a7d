#include "profiler/insights/insight_rule.h"

#include <algorithm>
#include <array>

namespace kvscope {

std::span<const InsightRule> insightRules() {
    static constexpr std::array rules{
        InsightRule{"dropped-steps", "Steps never reached the file, so every sum lacks them", findDroppedSteps},
        InsightRule{"lost-gpu-records", "Kernels or copies are missing from the timeline", findLostGpuRecords},
        InsightRule{"unfinished", "The run failed, or its writer vanished", findUnfinished},
        InsightRule{"output-differs", "Another run with all blocks resident generated other tokens", findOutputDiffers},
        InsightRule{"low-mass", "The selection misses much of the attention", findLowMass},
        InsightRule{"link-saturated", "Loads take longer than the compute they could hide behind", findLinkSaturated},
        InsightRule{"latency-bound", "Small transfers pay mostly the fixed cost of each", findLatencyBound},
        InsightRule{"serial-transfers", "Loads would fit beside compute but begin too late", findSerialTransfers},
        InsightRule{"late-prediction", "Loads begun ahead come late or were guessed wrong", findLatePrediction},
        InsightRule{"write-back", "Copies of full blocks to the host are waited for", findWriteBack},
        InsightRule{"low-locality", "Layers whose selection changes much from step to step", findLowLocality},
        InsightRule{"thrash", "Most misses are blocks that the cache has had before: it is too small", findThrash},
        InsightRule{"wrong-policy", "Another replacement policy would miss less in the same cache", findWrongPolicy},
        InsightRule{"gpu-waits-for-kv", "The GPU idles while KV blocks are moved", findGpuWaitsForKv},
        InsightRule{"launch-bound", "The GPU idles in gaps as short as a launch", findLaunchBound},
        InsightRule{"gpu-idle", "The GPU idles for other reasons", findGpuIdle},
        InsightRule{"offload-slower", "Another run with all blocks resident is faster", findOffloadSlower},
        InsightRule{"selection-growth", "Selecting takes a growing part of the step", findSelectionGrowth},
        InsightRule{"slow-steps", "A few steps take much longer than the others", findSlowSteps},
        InsightRule{"prefill-dominates", "Most of the time passes before the first token", findPrefillDominates},
        InsightRule{"hit-rate-resident", "The hit rate says nothing: every block is resident", findResidentHitRate},
        InsightRule{"hit-rate-cold", "The cold first step pulls the hit rate down", findColdHitRate},
        InsightRule{"unused-budget", "Fewer blocks are attended than the budget allows", findUnusedBudget},
        InsightRule{"oversized-cache", "A smaller cache would miss no more", findOversizedCache},
        InsightRule{"recorder-overhead", "Writing the trace takes a noticeable part of a core", findRecorderOverhead},
    };
    return rules;
}

int InsightReport::alarms() const {
    return int(std::count_if(insights.begin(), insights.end(),
                             [](const Insight& insight) { return insight.severity == Severity::Alarm; }));
}

InsightReport insightsOf(const TraceReader& reader, int runId, const InsightOptions& options) {
    RunFacts facts(reader, runId, options);
    InsightReport report;
    for (const InsightRule& rule : insightRules()) {
        const std::size_t before = report.insights.size();
        rule.find(facts, report.insights);
        for (std::size_t i = before; i < report.insights.size(); ++i) report.insights[i].id = rule.id;
    }
    std::stable_sort(report.insights.begin(), report.insights.end(), [](const Insight& a, const Insight& b) {
        if (a.severity != b.severity) return a.severity == Severity::Alarm;
        if (a.trust != b.trust) return a.trust;
        return a.impact > b.impact;
    });
    report.exposure = facts.takeExposure();
    return report;
}

} // namespace kvscope
