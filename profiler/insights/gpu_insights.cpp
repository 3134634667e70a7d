// What keeps a GPU from working, from the kernels that CUPTI recorded at level full.
#include "profiler/insights/insight_rule.h"
#include "profiler/insights/words.h"

#include <fmt/format.h>

namespace kvscope {
namespace {

enum class Idle { WaitsForKv, LaunchBound, Other };

/// The cause of the idle time: the one that explains at least half of it.
Idle causeOf(const GpuFacts& gpu) {
    if (2 * gpu.idleInOffloadingNs >= gpu.idleNs) return Idle::WaitsForKv;
    if (2 * gpu.shortGapsNs >= gpu.idleNs) return Idle::LaunchBound;
    return Idle::Other;
}

bool begin(RunFacts& facts, Idle cause, Insight& insight) {
    const GpuFacts& gpu = facts.gpu();
    if (gpu.steps == 0 || gpu.wallNs <= 0) return false;
    insight.impact = double(gpu.idleNs) / double(gpu.wallNs);
    if (insight.impact < kNoteImpact || causeOf(gpu) != cause) return false;
    insight.severity = severityOf(insight.impact);
    insight.evidence = facts.evidence("breakdown");
    insight.figures = {{"idle_share", insight.impact, ""},
                       {"idle_ms_per_step", double(gpu.idleNs) / gpu.steps / 1e6, "ms"},
                       {"idle_in_offloading_share", double(gpu.idleInOffloadingNs) / double(gpu.idleNs), ""},
                       {"kernels_per_step", double(gpu.kernels) / gpu.steps, ""}};
    return true;
}

std::string idleOf(const GpuFacts& gpu) {
    return fmt::format("{} per step ({} of wall time, union of {} kernels' intervals over {})",
                       words::ms(double(gpu.idleNs) / gpu.steps),
                       words::percent(double(gpu.idleNs) / double(gpu.wallNs)), words::count(double(gpu.kernels)),
                       words::many(gpu.steps, "step"));
}

} // namespace

void findGpuWaitsForKv(RunFacts& facts, std::vector<Insight>& out) {
    Insight insight;
    if (!begin(facts, Idle::WaitsForKv, insight)) return;
    const GpuFacts& gpu = facts.gpu();
    insight.title = fmt::format("The GPU idles {} per step, {} of it while KV blocks are moved",
                                words::ms(double(gpu.idleNs) / gpu.steps),
                                words::percent(double(gpu.idleInOffloadingNs) / double(gpu.idleNs)));
    insight.detail = fmt::format("Idle {}.", idleOf(gpu));
    insight.advice = "Overlap the loads with compute: load ahead, or attend what is resident while the rest arrives.";
    insight.evidence.metric = "offloading";
    out.push_back(std::move(insight));
}

void findLaunchBound(RunFacts& facts, std::vector<Insight>& out) {
    Insight insight;
    if (!begin(facts, Idle::LaunchBound, insight)) return;
    const GpuFacts& gpu = facts.gpu();
    insight.title = fmt::format("The step is launch-bound: {} kernels of {} on average, the GPU idles {} between them",
                                words::count(double(gpu.kernels) / gpu.steps),
                                words::ms(double(gpu.kernelNs) / double(std::max<std::int64_t>(gpu.kernels, 1))),
                                words::percent(insight.impact));
    insight.detail = fmt::format("Idle {}; {} of it in gaps of at most 10 us.", idleOf(gpu),
                                 words::percent(double(gpu.shortGapsNs) / double(gpu.idleNs)));
    insight.advice = "Capture the step in one CUDA graph, fuse small kernels, or decode a larger batch.";
    out.push_back(std::move(insight));
}

void findGpuIdle(RunFacts& facts, std::vector<Insight>& out) {
    Insight insight;
    if (!begin(facts, Idle::Other, insight)) return;
    const GpuFacts& gpu = facts.gpu();
    insight.title = fmt::format("The GPU idles {} per step, {} of wall time, outside transfers",
                                words::ms(double(gpu.idleNs) / gpu.steps), words::percent(insight.impact));
    insight.detail =
        fmt::format("Idle {}, mostly in gaps longer than a launch: the host is late, or synchronises.", idleOf(gpu));
    insight.advice = "Look at what the host does between kernels: sampling, copies of results, waiting on events.";
    out.push_back(std::move(insight));
}

} // namespace kvscope
