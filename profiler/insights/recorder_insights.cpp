// Whether the recording itself can be trusted, and what it costs.
#include "profiler/insights/insight_rule.h"
#include "profiler/insights/words.h"
#include "profiler/read/counters.h"
#include "profiler/read/recording_cost.h"

#include <fmt/format.h>

namespace kvscope {
namespace {

constexpr double kBusyWriter = 0.10; // of the wall time, on a core that the decode may want
constexpr double kFullWriter = 0.80; // little is left before steps are dropped

} // namespace

void findDroppedSteps(RunFacts& facts, std::vector<Insight>& out) {
    const std::int64_t dropped = facts.run().droppedSteps;
    if (dropped <= 0) return;
    const double recorded = double(facts.decodeSteps().size());
    Insight insight;
    insight.severity = Severity::Alarm;
    insight.trust = true;
    insight.impact = double(dropped) / (recorded + double(dropped));
    insight.title = fmt::format("{} of {} steps are missing from the trace ({}): sums and rates lack them",
                                words::count(double(dropped)), words::count(recorded + double(dropped)),
                                words::percent(insight.impact));
    if (const std::string& error = facts.run().error; error.empty()) {
        insight.detail =
            "The writer could not keep up, so whole steps were dropped and counted. Per-step numbers are right; "
            "totals are of the recorded steps only, and misses may seem to appear from nowhere after a gap.";
        insight.advice = "Record less (--record selections or counters), or to a faster disk.";
    } else {
        insight.detail = fmt::format("The recording ended before the run did: {}. Numbers of the recorded steps are "
                                     "right; what came after them is in no total.",
                                     error);
        insight.advice = "Remove the cause, and record the run again.";
    }
    insight.evidence = facts.evidence("transfers");
    insight.figures = {{"dropped_steps", double(dropped), ""}, {"recorded_steps", recorded, ""}};
    out.push_back(std::move(insight));
}

namespace {

/// Something of what the GPU's tools gave is missing: a note about how far the rest can be trusted.
void noteLoss(std::vector<Insight>& out, std::optional<std::int64_t> lost, const char* thing, const char* title,
              Insight insight) {
    if (lost.value_or(0) <= 0) return;
    insight.severity = Severity::Note;
    insight.trust = true;
    insight.title = words::many(*lost, thing) + title;
    insight.figures = {{fmt::format("lost_{}s", thing), double(*lost), ""}};
    out.push_back(std::move(insight));
}

} // namespace

void findLostGpuRecords(RunFacts& facts, std::vector<Insight>& out) {
    Insight insight;
    insight.detail =
        "CUPTI had no room for them, or gave them no time. Stage times, hits and bytes come from the engine and "
        "are complete; sums of kernels, and idle time between them, are not.";
    insight.advice = "Record fewer steps at level full.";
    insight.evidence = facts.evidence("breakdown");
    noteLoss(out, lostGpuRecords(facts.reader(), facts.run().runId), "record",
             " of GPU kernels or copies were lost: the timeline has holes", std::move(insight));
}

void findLostPmSamples(RunFacts& facts, std::vector<Insight>& out) {
    Insight insight;
    insight.detail =
        "The hardware's buffer was full before it was read, or a sample's times made no sense. The engine's own bytes "
        "are complete; the counters' numbers beside them are too low.";
    insight.advice = "Keep a core free for the recorder, or take the counters from NVML (--pcie-counters nvml).";
    insight.evidence = facts.evidence("transfers");
    noteLoss(out, lostPmSamples(facts.reader(), facts.run().runId), "sample",
             " of the GPU's counters were lost: PCIe and memory curves have holes", std::move(insight));
}

void findRecorderOverhead(RunFacts& facts, std::vector<Insight>& out) {
    double wall = double(facts.prefillNs() + facts.exposure().all.wallNs);
    const ServedFacts* served = facts.served();
    if (served) { // steps of a served run are decodes alone; its iterations read prompts as well
        wall = 0;
        for (const IterationRow& row : served->rows.iterations) wall += double(row.durationNs);
    }
    const double busy = double(facts.run().writerBusyNs);
    if (wall <= 0 || busy < kBusyWriter * wall) return;
    const double share = busy / wall;
    Insight insight;
    insight.trust = true;
    insight.severity = share >= kFullWriter ? Severity::Alarm : Severity::Note;
    insight.impact =
        facts.run().backend == RunBackend::Cpu ? share : 0; // with a GPU the writer's core is not the one that decodes
    insight.title = fmt::format("Recording keeps a core busy for {} of the wall time ({} of writing)",
                                words::percent(share), words::ms(busy));
    insight.detail = fmt::format("CPU time of the writer thread against {} of {}, level {}.{}", words::ms(wall),
                                 served ? "iterations" : "prefill and decode", facts.run().level.text(),
                                 facts.run().backend == RunBackend::Cpu ? " The decode shares the cores with it." : "");
    insight.advice = "Record less (--record selections or counters) when you measure time.";
    insight.evidence = facts.evidence("breakdown");
    insight.figures = {{"writer_busy_ms", busy / 1e6, "ms"}, {"wall_ms", wall / 1e6, "ms"}, {"share", share, ""}};
    out.push_back(std::move(insight));
}

void findRecordingCost(RunFacts& facts, std::vector<Insight>& out) {
    const RecordingCost cost = recordingCost(facts.reader(), facts.run());
    if (!cost.costly() && cost.tokensEqual != false) return;
    const bool compared = cost.way == RecordingCost::Way::Compared;
    Insight insight;
    insight.trust = true;
    insight.priced = false; // the advice changes the recording, not the run
    insight.severity = cost.share >= kAlarmImpact || cost.tokensEqual == false ? Severity::Alarm : Severity::Note;
    insight.impact = std::max(0.0, cost.share / (1 + cost.share));
    insight.title = cost.tokensEqual == false
                        ? "The run generates other tokens while it is recorded"
                        : fmt::format("Recording adds {} to a step: times of this trace are that much too long",
                                      words::percent(cost.share));
    insight.detail =
        compared ? fmt::format("The same generation with and without recording, in turn, the fastest of each: {} and "
                               "{} a step by the clock.",
                               words::ms(cost.recordedMs * 1e6), words::ms(cost.plainMs * 1e6))
                 : fmt::format("Sum of the track \"{}\" over {}: time of hooks and writing in the thread that decodes.",
                               kRecordingTrack, words::many(cost.steps, "step"));
    insight.advice = cost.tokensEqual == false
                         ? "Generate greedily or with a fixed seed, and measure again; if they still differ, report it."
                         : "Compare times only with runs that were recorded alike; record fewer steps or layers.";
    insight.evidence = facts.evidence("breakdown");
    insight.figures = {{"share", cost.share, ""}, {"steps", double(cost.steps), ""}};
    out.push_back(std::move(insight));
}

namespace {

/// Says what was not tested, where a very long run was tested in part and breaks no rule.
void noteUntested(const RunCheck& check, const RunFacts& facts, std::vector<Insight>& out) {
    if (check.unread == 0) return;
    Insight insight;
    insight.severity = Severity::Note;
    insight.trust = true;
    insight.title = "Not every rule of the trace format was tested";
    insight.detail = fmt::format("Here {}.", check.leftOut());
    insight.advice = "Run kvscope-cli check on the trace.";
    insight.evidence = facts.evidence("transfers");
    insight.figures = {{"selections", double(check.unread), ""}};
    out.push_back(std::move(insight));
}

} // namespace

void findBrokenRules(RunFacts& facts, std::vector<Insight>& out) {
    const RunCheck& check = facts.check();
    const std::int64_t violations = check.violations();
    if (violations == 0) {
        noteUntested(check, facts, out);
        return;
    }
    std::string concerned;
    for (int i = 0; i < kConcernCount; ++i)
        if (check.concerns(Concern(i))) concerned += (concerned.empty() ? "" : ", ") + std::string(nameOf(Concern(i)));
    Insight insight;
    insight.severity = Severity::Alarm;
    insight.trust = true;
    insight.title = fmt::format("{} of the trace {} rules of its format: numbers about {} mean nothing",
                                words::many(violations, "row"), violations == 1 ? "breaks" : "break", concerned);
    insight.detail = check.sentence() + ".";
    if (const std::string left = check.leftOut(); !left.empty()) insight.detail += " Beside these, " + left + ".";
    if (!check.examples.empty())
        insight.detail += fmt::format(" The first: {}{}{}.", check.examples.front().where,
                                      check.examples.front().where.empty() ? "" : ", ", check.examples.front().what);
    insight.advice =
        "Run kvscope-cli check on the trace: it names every row. Then correct the writer and record again.";
    insight.evidence = facts.evidence("transfers");
    insight.figures = {{"violations", double(violations), ""}};
    out.push_back(std::move(insight));
}

void findUnfinished(RunFacts& facts, std::vector<Insight>& out) {
    const RunRow& run = facts.run();
    const bool failed = run.status == RunStatus::Failed;
    if (!failed && !run.stale) return;
    Insight insight;
    insight.severity = Severity::Alarm;
    insight.trust = true;
    const std::string steps = words::many(run.steps, "step");
    insight.title = !run.error.empty() ? fmt::format("The recording failed after {}: {}", steps, run.error)
                    : failed           ? fmt::format("The run failed after {}", steps)
                                       : fmt::format("The recording stopped without an end after {}", steps);
    insight.detail = run.statusMessage.empty() || run.statusMessage == run.error
                         ? "What is in the trace was recorded before that."
                         : run.statusMessage;
    insight.advice = "Treat totals as those of an unfinished run; record it again.";
    insight.evidence = facts.evidence("transfers");
    if (!facts.decodeSteps().empty()) insight.evidence.firstStep = insight.evidence.lastStep;
    insight.figures = {{"steps", double(run.steps), ""}};
    out.push_back(std::move(insight));
}

} // namespace kvscope
