// What the selection costs in quality, where it was recorded with the oracle.
#include "profiler/insights/insight_rule.h"
#include "profiler/insights/words.h"

#include <fmt/format.h>
#include <map>

namespace kvscope {
namespace {

// An attention output moves by at most twice the missed mass times the longest value: below 0.9 that is visible in a
// layer, below 0.5 most of what the head looks at is not there.
constexpr double kLowMass = 0.9, kLostMass = 0.5;

} // namespace

void findLowMass(RunFacts& facts, std::vector<Insight>& out) {
    struct Mass {
        double sum = 0, count = 0;
        double mean() const { return count > 0 ? sum / count : 1; }
    };
    Mass all;
    std::map<int, Mass> layers;
    const HeadFacts* worst = nullptr;
    for (const HeadFacts& head : facts.heads()) {
        if (head.massCount == 0) continue;
        for (Mass* mass : {&all, &layers[head.layer]}) mass->sum += head.massSum, mass->count += head.massCount;
        if (!worst || head.massSum / head.massCount < worst->massSum / worst->massCount) worst = &head;
    }
    if (!worst || all.mean() >= kLowMass) return;
    int low = 0;
    for (const auto& [layer, mass] : layers) low += mass.mean() < kLowMass;
    Insight insight;
    insight.trust = true;
    insight.severity = all.mean() < kLostMass ? Severity::Alarm : Severity::Note;
    insight.impact = 1 - all.mean();
    insight.title = fmt::format("The selection misses {} of the attention mass, {} in layer {}, KV head {}",
                                words::percent(1 - all.mean()), words::percent(1 - worst->massSum / worst->massCount),
                                worst->layer, worst->kvHead);
    insight.detail =
        fmt::format("Share of the full softmax outside the selected blocks, mean over {} selections; {} of "
                    "{} layers capture less than {}.",
                    words::count(all.count), low, layers.size(), words::percent(kLowMass));
    insight.advice =
        "Raise the budget or the query-aware part of it, or try a method that looks at the query; judge the "
        "answer, not only the speed.";
    insight.evidence = facts.evidence("locality", "mass");
    insight.evidence.layer = worst->layer;
    insight.evidence.kvHead = worst->kvHead;
    insight.evidence.sequence = worst->sequence;
    insight.figures = {{"mass", all.mean(), ""},
                       {"lowest_head_mass", worst->massSum / worst->massCount, ""},
                       {"low_layers", double(low), ""}};
    out.push_back(std::move(insight));
}

} // namespace kvscope
