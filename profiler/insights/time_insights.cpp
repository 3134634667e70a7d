// Where the wall time of a run goes that is no transfer.
#include "core/trace/run_meta.h"
#include "profiler/insights/insight_rule.h"
#include "profiler/insights/words.h"

#include <algorithm>
#include <fmt/format.h>

namespace kvscope {
namespace {

constexpr std::size_t kTrendSteps = 32; // fewer are no trend
// A quarter more context must bring about a quarter more selection time: proportional growth, beyond noise of medians.
constexpr double kGrowth = 1.25;
// Twice the median: far outside the jitter of a step, and what a person sees as a hiccup.
constexpr double kSlowStep = 2;
constexpr double kPrefillShare = 0.5;

struct Quarter { // medians over a quarter of the steps
    double selectionNs = 0, share = 0;
};
Quarter quarterOf(const std::vector<StepExposure>& steps, std::size_t first, std::size_t count) {
    std::vector<double> selection, share;
    for (std::size_t i = first; i < first + count; ++i) {
        selection.push_back(double(steps[i].selectingNs));
        share.push_back(steps[i].durationNs > 0 ? selection.back() / double(steps[i].durationNs) : 0);
    }
    return {medianOf(selection), medianOf(share)};
}

} // namespace

void findSelectionGrowth(RunFacts& facts, std::vector<Insight>& out) {
    const std::vector<StepExposure>& steps = facts.exposure().steps;
    if (steps.size() < kTrendSteps) return;
    const std::size_t quarter = steps.size() / 4;
    const int from = facts.contextAt(steps[quarter / 2].step);
    const int to = facts.contextAt(steps[steps.size() - 1 - quarter / 2].step);
    const Quarter first = quarterOf(steps, 0, quarter), last = quarterOf(steps, steps.size() - quarter, quarter);
    if (from <= 0 || double(to) < kGrowth * double(from)) return;
    if (first.selectionNs <= 0 || last.selectionNs < kGrowth * first.selectionNs || last.share < kNoteImpact) return;
    Insight insight;
    insight.impact = last.share;
    insight.priced = false; // what is selected has to be chosen in any case
    insight.severity = severityOf(last.share);
    const double perThousand = (last.selectionNs - first.selectionNs) * 1000 / double(to - from);
    insight.title =
        fmt::format("Selecting blocks grows with the context: {} of the step at {} tokens, {} at {}",
                    words::percent(first.share), words::count(from), words::percent(last.share), words::count(to));
    insight.detail = fmt::format("compression, stage1 and pooling together: {} per step, then {} (medians of the first "
                                 "and last quarter), {} more for every 1,000 tokens.",
                                 words::ms(first.selectionNs), words::ms(last.selectionNs), words::ms(perThousand));
    insight.advice =
        "Score fewer, coarser entries (a larger kernel_stride or block), or reuse a selection over several "
        "steps or layers.";
    insight.evidence = facts.evidence("breakdown", "stage1");
    insight.evidence.firstStep = steps[steps.size() - quarter].step;
    insight.figures = {{"first_share", first.share, ""},
                       {"last_share", last.share, ""},
                       {"first_ms", first.selectionNs / 1e6, "ms"},
                       {"last_ms", last.selectionNs / 1e6, "ms"},
                       {"first_tokens", double(from), "tokens"},
                       {"last_tokens", double(to), "tokens"}};
    out.push_back(std::move(insight));
}

void findSlowSteps(RunFacts& facts, std::vector<Insight>& out) {
    const ExposureReport& exposure = facts.exposure();
    if (exposure.counted().steps < int(kTrendSteps)) return;
    std::vector<double> durations;
    for (const StepExposure& step : exposure.steps)
        if (exposure.counts(step.kind)) durations.push_back(double(step.durationNs));
    const double median = medianOf(durations);
    double excess = 0, slowMisses = 0, otherMisses = 0, worst = 0;
    int slow = 0, opening = 0, whole = 0, worstStep = 0;
    const bool denoises = !facts.run().metaOr(run_meta::kDenoisingBlock).empty();
    const bool chooses = std::any_of(facts.decodeSteps().begin(), facts.decodeSteps().end(),
                                     [](const StepRow& step) { return step.selected > 0; });
    for (std::size_t i = 0; i < exposure.steps.size(); ++i) {
        const StepExposure& step = exposure.steps[i];
        if (!exposure.counts(step.kind)) continue;
        const auto duration = double(step.durationNs);
        if (duration <= kSlowStep * median) {
            otherMisses += double(facts.decodeSteps()[i].misses);
            continue;
        }
        ++slow;
        opening += step.kind == StepKind::Opening;
        whole += step.kind == StepKind::Opening || (chooses && facts.decodeSteps()[i].selected == 0);
        slowMisses += double(facts.decodeSteps()[i].misses);
        excess += duration - median;
        if (duration > worst) worst = duration, worstStep = step.step;
    }
    if (slow == 0 || median <= 0) return;
    Insight insight;
    insight.impact = excess / exposure.decodeNs();
    if (insight.impact < kNoteImpact) return;
    insight.title = fmt::format("{} of {} steps take more than twice the median and cost {} of decode time; step {} "
                                "takes {} instead of {}",
                                slow, exposure.counted().steps, words::percent(insight.impact), worstStep,
                                words::ms(worst), words::ms(median));
    const double missesThere = slowMisses / slow;
    const double missesElse = exposure.counted().steps > slow ? otherMisses / (exposure.counted().steps - slow) : 0;
    std::string why;
    // Slow steps that the method causes are an alarm; slow steps that the machine causes are a note.
    if (denoises && 2 * whole >= slow) {
        insight.severity = severityOf(insight.impact);
        why = fmt::format("{} of them are forwards with which a block begins, or that attend to everything.", whole);
    } else if (denoises) {
        why =
            "Neither forwards with which a block begins nor those that attend to everything explain them: look at the "
            "machine (other processes, clocks, a container's CPU limit).";
    } else if (2 * opening >= slow) {
        insight.severity = severityOf(insight.impact);
        why = fmt::format("{} of them open a new block.", opening);
    } else if (!facts.run().knows.has(Known::Hits)) {
        why = "New blocks do not explain them, and the trace does not know its misses: look at the machine (other "
              "processes, clocks, a container's CPU limit).";
    } else if (missesThere >= 2 * missesElse && missesThere > 0) {
        insight.severity = severityOf(insight.impact);
        why = fmt::format("They miss {:.1f} blocks each, the others {:.1f}.", missesThere, missesElse);
    } else {
        why = fmt::format("Neither misses ({:.1f} each, {:.1f} elsewhere) nor new blocks explain them: look at the "
                          "machine (other processes, clocks, a container's CPU limit).",
                          missesThere, missesElse);
    }
    insight.detail = (exposure.coldCounted ? "" : "Cold steps are left out. ") + why;
    insight.advice = "Compare the breakdown of a slow step with its neighbour's; repeat the run on an idle machine.";
    insight.evidence = facts.evidence("breakdown");
    insight.evidence.firstStep = insight.evidence.lastStep = worstStep;
    insight.figures = {{"slow_steps", double(slow), ""},
                       {"excess_ms", excess / 1e6, "ms"},
                       {"median_ms", median / 1e6, "ms"},
                       {"slowest_ms", worst / 1e6, "ms"}};
    out.push_back(std::move(insight));
}

void findPrefillDominates(RunFacts& facts, std::vector<Insight>& out) {
    const double prefill = double(facts.prefillNs()), decode = double(facts.exposure().all.wallNs);
    if (prefill <= 0 || decode <= 0 || prefill < kPrefillShare * (prefill + decode)) return;
    Insight insight; // a note: a long prompt and few tokens are no mistake
    insight.title = fmt::format("The prefill takes {}, {} of the wall time: decoding faster changes little here",
                                words::ms(prefill), words::percent(prefill / (prefill + decode)));
    insight.detail = fmt::format("{} for {}. Every other finding speaks of the decode steps.", words::ms(decode),
                                 words::many(facts.exposure().all.steps, "decode step"));
    insight.advice = "Generate more tokens to study decoding; for the time to the first token look at the prefill's "
                     "breakdown.";
    insight.evidence = facts.evidence("breakdown");
    insight.evidence.firstStep = insight.evidence.lastStep = 0;
    insight.figures = {{"prefill_ms", prefill / 1e6, "ms"}, {"decode_ms", decode / 1e6, "ms"}};
    out.push_back(std::move(insight));
}

} // namespace kvscope
