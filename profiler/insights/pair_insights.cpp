// A run against its twin: the same model, method, parameters and prompts in the same trace, with every block resident.
#include "profiler/insights/insight_rule.h"
#include "profiler/insights/words.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <optional>

namespace kvscope {
namespace {

/// Parameters without those that only say where blocks live.
nlohmann::json attentionParameters(const RunRow& run) {
    auto parameters = nlohmann::json::parse(run.paramsJson, nullptr, false);
    if (parameters.is_object())
        for (const char* key : {"cache_policy", "offload"}) parameters.erase(key);
    return parameters;
}

bool samePrompts(const TraceReader& reader, const RunRow& a, const RunRow& b) {
    const auto same = [](const TokenRow& x, const TokenRow& y) { return x.id == y.id; };
    for (int sequence = 0; sequence < a.sequences; ++sequence) {
        const auto first = reader.prompt(a.runId, sequence), second = reader.prompt(b.runId, sequence);
        if (first.empty() || !std::equal(first.begin(), first.end(), second.begin(), second.end(), same)) return false;
    }
    return true;
}

/// The newest resident twin of an offloaded run.
std::optional<RunRow> twinOf(const RunFacts& facts) {
    const RunRow& run = facts.run();
    if (run.deviceSlots <= 0) return std::nullopt;
    std::optional<RunRow> twin;
    for (const RunRow& other : facts.reader().runs())
        if (other.runId != run.runId && other.deviceSlots == 0 && other.knows.has(Known::Hits) &&
            other.model == run.model && other.method == run.method && other.backend == run.backend &&
            other.device == run.device && other.sequences == run.sequences &&
            attentionParameters(other) == attentionParameters(run) && samePrompts(facts.reader(), run, other))
            twin = other;
    return twin;
}

/// Median of the counted decode steps, modelled transfers included.
double medianStepNs(const ExposureReport& exposure) {
    std::vector<double> steps;
    for (const StepExposure& step : exposure.steps)
        if (exposure.counts(step.kind))
            steps.push_back(double(step.durationNs) + (exposure.measured ? 0.0 : double(step.time.exposedNs)));
    return medianOf(std::move(steps));
}

} // namespace

void findOffloadSlower(RunFacts& facts, std::vector<Insight>& out) {
    const auto twin = twinOf(facts);
    if (!twin) return;
    const double offloaded = medianStepNs(facts.exposure());
    const double resident = medianStepNs(exposureOfSteps(facts.reader(), *twin, facts.reader().steps(twin->runId)));
    if (resident <= 0 || offloaded <= resident) return;
    Insight insight;
    insight.impact = (offloaded - resident) / offloaded;
    // Two modelled runs differ by their machine's noise as well: only the transfers are to blame.
    if (!facts.exposure().measured) insight.impact = std::min(insight.impact, facts.exposure().exposedShare());
    if (insight.impact < kNoteImpact) return;
    insight.severity = severityOf(insight.impact);
    const bool measured = facts.exposure().measured;
    insight.title =
        fmt::format("Offloading slows decoding down: {} per step{}, {} with every block resident (run {})",
                    words::ms(offloaded), measured ? "" : " with modelled transfers", words::ms(resident), twin->runId);
    insight.detail = fmt::format("Median decode steps of two runs of the same model, method, parameters and prompts. "
                                 "Exposed transfer is {} of this run's decode time ({}).",
                                 words::percent(facts.exposure().exposedShare()), measured ? "measured" : "modelled");
    insight.advice = "If the context fits into device memory, do without offloading here; it pays from the batch or "
                     "context on that does not fit.";
    insight.proposal = Proposal{.resident = true};
    insight.predicted = insight.impact;
    insight.evidence = facts.evidence("compare");
    insight.evidence.compareRun = twin->runId;
    insight.figures = {{"offloaded_ms", offloaded / 1e6, "ms"},
                       {"resident_ms", resident / 1e6, "ms"},
                       {"slowdown", offloaded / resident, "x"}};
    out.push_back(std::move(insight));
}

void findOutputDiffers(RunFacts& facts, std::vector<Insight>& out) {
    const auto twin = twinOf(facts);
    if (!twin) return;
    int differing = 0, compared = 0, firstStep = -1, firstSequence = 0;
    for (int sequence = 0; sequence < facts.run().sequences; ++sequence) {
        const auto mine = facts.reader().tokens(facts.run().runId, sequence);
        const auto theirs = facts.reader().tokens(twin->runId, sequence);
        auto other = theirs.begin();
        for (const TokenRow& token : mine) { // by position: steps may have been dropped
            while (other != theirs.end() && other->position < token.position) ++other;
            if (other == theirs.end()) break;
            if (other->position != token.position) continue;
            ++compared;
            if (other->id == token.id) continue;
            ++differing;
            if (firstStep < 0 || token.step < firstStep) firstStep = token.step, firstSequence = sequence;
        }
    }
    if (differing == 0) return;
    Insight insight;
    insight.severity = Severity::Alarm;
    insight.trust = true;
    insight.impact = double(differing) / compared;
    insight.title =
        fmt::format("The output changes with offloading: {} of {} tokens differ from run {}, from step {} on",
                    differing, compared, twin->runId, firstStep);
    insight.detail =
        fmt::format("Run {} has the same model, method, parameters and prompts with every block resident; "
                    "sequence {} differs first. Greedy runs must agree; sampled ones only with equal seeds.",
                    twin->runId, firstSequence);
    insight.advice =
        "Run kvscope-cli run --verify with these options; then compare the selections just before the step.";
    insight.evidence = facts.evidence("compare");
    insight.evidence.compareRun = twin->runId;
    insight.evidence.firstStep = insight.evidence.lastStep = firstStep;
    insight.evidence.sequence = firstSequence;
    insight.figures = {{"differing_tokens", double(differing), ""},
                       {"compared_tokens", double(compared), ""},
                       {"first_step", double(firstStep), ""}};
    out.push_back(std::move(insight));
}

} // namespace kvscope
