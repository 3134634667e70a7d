#include "profiler/insights/insight_rule.h"
#include "profiler/insights/words.h"

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <iterator>

namespace kvscope {

std::span<const InsightRule> insightRules() {
    constexpr Knowledge none = Knowledge::nothing();
    constexpr Knowledge kSelections = none.with(Known::Selections), kHits = kSelections.with(Known::Hits),
                        kSteps = none.with(Known::StepTimes), kStages = kSteps.with(Known::StageTimes),
                        kTransfers = kSteps.with(Known::Bytes).with(Known::TransferTimes).with(Known::ExposedTimes),
                        kCache = kHits.with(Known::ExposedTimes).with(Known::StepTimes),
                        kCacheAndSteps = kHits.with(Known::StepTimes);
    static constexpr std::array rules{
        InsightRule{"dropped-steps", "Steps never reached the file, so every sum lacks them", RuleReads::Steps,
                    findDroppedSteps},
        InsightRule{"broken-rules", "Rows break rules of the trace format", RuleReads::Steps, findBrokenRules},
        InsightRule{"lost-gpu-records", "Kernels or copies are missing from the timeline", RuleReads::Spans,
                    findLostGpuRecords},
        InsightRule{"lost-pm-samples", "The GPU's counters have holes", RuleReads::Spans, findLostPmSamples},
        InsightRule{"unfinished", "The run or its recording failed, or its writer vanished", RuleReads::Steps,
                    findUnfinished},
        InsightRule{"output-differs", "Another run with all blocks resident generated other tokens", RuleReads::Tokens,
                    findOutputDiffers, kHits},
        InsightRule{"answer", "What was answered, where the prompt asks for a fact that it hides", RuleReads::Tokens,
                    findAnswer},
        InsightRule{"refused-requests", "A server refuses requests", RuleReads::Tokens, findRefusedRequests},
        InsightRule{"queue-bound", "First tokens come later than promised: who waits for what", RuleReads::Tokens,
                    findQueueBound},
        InsightRule{"prefill-stalls-decode", "Tokens come late because prompts are read beside them", RuleReads::Tokens,
                    findPrefillStallsDecode},
        InsightRule{"working-sets-beyond", "Working sets exceed the device: loads explode", RuleReads::Tokens,
                    findWorkingSetsBeyond},
        InsightRule{"long-pauses", "Requests are paused for longer than a token may take", RuleReads::Tokens,
                    findLongPauses},
        InsightRule{"estimate-off", "Selections leave the estimated working sets", RuleReads::Tokens,
                    findWorkingSetEstimateOff},
        InsightRule{"plan-times-off", "Iterations do not take what their plans predicted", RuleReads::Tokens,
                    findPlanTimesOff},
        InsightRule{"low-mass", "The selection misses much of the attention", RuleReads::Selections, findLowMass},
        InsightRule{"link-saturated", "Loads take longer than the compute they could hide behind", RuleReads::Layers,
                    findLinkSaturated, kTransfers},
        InsightRule{"latency-bound", "Small transfers pay mostly the fixed cost of each", RuleReads::Layers,
                    findLatencyBound, kTransfers},
        InsightRule{"serial-transfers", "Loads would fit beside compute but begin too late", RuleReads::Layers,
                    findSerialTransfers, kTransfers},
        InsightRule{"late-prediction", "Loads begun ahead come late or were guessed wrong", RuleReads::Layers,
                    findLatePrediction, kTransfers},
        InsightRule{"write-back", "Copies of full blocks to the host are waited for", RuleReads::Layers, findWriteBack,
                    kTransfers},
        InsightRule{"low-locality", "Layers whose selection changes much from step to step", RuleReads::Selections,
                    findLowLocality, kHits},
        InsightRule{"thrash", "Most misses are blocks that the cache has had before: it is too small",
                    RuleReads::Replays, findThrash, kCache},
        InsightRule{"wrong-policy", "Another replacement policy would miss less in the same cache", RuleReads::Replays,
                    findWrongPolicy, kCache},
        InsightRule{"gpu-waits-for-kv", "The GPU idles while KV blocks are moved", RuleReads::Spans, findGpuWaitsForKv,
                    kSteps},
        InsightRule{"launch-bound", "The GPU idles in gaps as short as a launch", RuleReads::Spans, findLaunchBound,
                    kSteps},
        InsightRule{"gpu-idle", "The GPU idles for other reasons", RuleReads::Spans, findGpuIdle, kSteps},
        InsightRule{"offload-slower", "Another run with all blocks resident is faster", RuleReads::Tokens,
                    findOffloadSlower, kCacheAndSteps},
        InsightRule{"selection-growth", "Selecting takes a growing part of the step", RuleReads::Layers,
                    findSelectionGrowth, kStages},
        InsightRule{"slow-steps", "A few steps take much longer than the others", RuleReads::Steps, findSlowSteps,
                    kSteps},
        InsightRule{"prefill-dominates", "Most of the time passes before the first token", RuleReads::Steps,
                    findPrefillDominates, kSteps},
        InsightRule{"hit-rate-resident", "The hit rate says nothing: everything is resident", RuleReads::Steps,
                    findResidentHitRate, kHits},
        InsightRule{"hit-rate-cold", "The cold first step pulls the hit rate down", RuleReads::Steps, findColdHitRate,
                    kHits},
        InsightRule{"unused-budget", "Fewer blocks are attended than the budget allows", RuleReads::Selections,
                    findUnusedBudget, kSelections},
        InsightRule{"oversized-cache", "A smaller cache would miss no more", RuleReads::Replays, findOversizedCache,
                    kHits},
        InsightRule{"recorder-overhead", "Writing the trace takes a noticeable part of a core", RuleReads::Steps,
                    findRecorderOverhead},
        InsightRule{"recording-cost", "Recording adds more than 3 % to the steps that it records", RuleReads::Steps,
                    findRecordingCost},
    };
    return rules;
}

std::string Price::text() const {
    const auto gain = [](double saved) { return words::percent(saved / (1 - saved)); };
    const std::string most = words::count(tokensPerSecondHigh);
    if (low <= 0) return fmt::format("up to +{} ({} tokens/s)", gain(high), most);
    std::string least = gain(low);
    least.resize(least.size() - 2); // " %" stands behind the other number
    return fmt::format("+{} to +{} ({} to {} tokens/s)", least, gain(high), words::count(tokensPerSecondLow), most);
}

int InsightReport::alarms() const {
    return int(std::count_if(insights.begin(), insights.end(),
                             [](const Insight& insight) { return insight.severity == Severity::Alarm; }));
}

namespace {

/// The most that the proposal of a finding would save; without a price, what the finding concerns.
double worthOf(const Insight& insight) { return insight.price ? insight.price->high : insight.impact; }

/// Alarms first, those about trust before the others, then by price; ties in the order of the registry.
Numbered<Insight> ranked(const std::vector<std::vector<Insight>>& byRule) {
    Numbered<Insight> all;
    for (const auto& found : byRule) all.insert(all.end(), found.begin(), found.end());
    std::stable_sort(all.begin(), all.end(), [](const Insight& a, const Insight& b) {
        if (a.severity != b.severity) return a.severity == Severity::Alarm;
        if (a.trust != b.trust) return a.trust;
        return worthOf(a) > worthOf(b);
    });
    return all;
}

} // namespace

namespace {

/// Whether a broken rule concerns numbers from which findings are made.
bool breaksNumbers(const RunCheck& check) {
    constexpr Concern kNumbers[] = {Concern::Times, Concern::Selection, Concern::Hits,
                                    Concern::Bytes, Concern::Transfer,  Concern::Exposed};
    return std::any_of(std::begin(kNumbers), std::end(kNumbers), [&](Concern each) { return check.concerns(each); });
}

constexpr double kMostSaved = 0.99; // share of the decode time: something of it always remains

/// Sets the price of each finding: the share of decode time that its proposal saves, at least and at most. Without a
/// prediction these are 0 and all that the finding concerns. With one, the proposal saves at least the prediction less
/// its error, and at most all that the finding concerns or, if that is more, the prediction plus its error.
void setPrices(std::vector<Insight>& found, const RunFacts& facts) {
    const ExposureReport& exposure = facts.exposure();
    double tokens = 0;
    for (std::size_t i = 0; i < exposure.steps.size() && i < facts.decodeSteps().size(); ++i)
        if (exposure.counts(exposure.steps[i].kind)) tokens += double(facts.decodeSteps()[i].decodeTokens());
    const double decodeNs = exposure.decodeNs();
    if (decodeNs <= 0 || tokens <= 0) return;
    for (Insight& insight : found) {
        if (insight.trust || !insight.priced || insight.impact <= 0 || insight.impact >= 1) continue;
        Price price;
        price.high = insight.impact;
        if (insight.predicted) {
            const double error = std::max(*insight.predicted / 3, kPriceError);
            price.low = std::max(0.0, *insight.predicted - error);
            price.high = std::min(std::max(price.high, *insight.predicted + error), kMostSaved);
        }
        price.tokensPerSecondLow = tokens / (decodeNs * (1 - price.low)) * 1e9;
        price.tokensPerSecondHigh = tokens / (decodeNs * (1 - price.high)) * 1e9;
        insight.price = price;
    }
}

/// The report of a run whose rows break rules: no statement about exposed time, and no findings but those about trust.
InsightReport refused(InsightReport report, const RunCheck& check) {
    if (!breaksNumbers(check)) return report;
    report.refusal = check.sentence();
    report.exposure.layers.clear(); // the bars are made of numbers that mean nothing
    report.exposure.byLayer = report.exposure.known = false;
    report.exposure.headline = "No statement about exposed transfer time: rows break rules of the trace format";
    report.exposure.detail = report.refusal + ".";
    std::erase_if(report.insights, [](const Insight& insight) { return !insight.trust; });
    return report;
}

} // namespace

InsightReport insightsOf(const TraceReader& reader, int runId, const InsightOptions& options) {
    RunFacts facts(reader, runId, options);
    const std::span<const InsightRule> rules = insightRules();
    std::vector<std::vector<Insight>> byRule(rules.size());
    const int all = int(rules.size());
    int judged = 0;
    std::vector<std::string> unasked;
    for (const RuleReads reads : kRuleReads) {
        if (options.found)
            options.found(refused({facts.exposure(), ranked(byRule), all, judged, {}, {}}, facts.check()));
        if (reads == RuleReads::Layers) facts.readLayers();
        for (std::size_t i = 0; i < rules.size(); ++i) {
            if (rules[i].reads != reads) continue;
            ++judged;
            if ((reads == RuleReads::Selections || reads == RuleReads::Replays) && facts.hasDamagedBlobs()) continue;
            if (reads == RuleReads::Replays && breaksNumbers(facts.check())) continue; // no replay reads such a run
            if (facts.run().knows.covers(rules[i].needs))
                rules[i].find(facts, byRule[i]);
            else
                unasked.emplace_back(rules[i].id);
            for (Insight& insight : byRule[i]) insight.id = rules[i].id;
            setPrices(byRule[i], facts);
        }
    }
    const RunCheck check = facts.check();
    return refused({facts.takeExposure(), ranked(byRule), all, judged, std::move(unasked), {}}, check);
}

} // namespace kvscope
