// Hit rates that are right and still mislead.
#include "core/trace/run_meta.h"
#include "profiler/insights/insight_rule.h"
#include "profiler/insights/words.h"

#include <cmath>
#include <fmt/format.h>

namespace kvscope {
namespace {

// Five points: the difference between InfLLM-V2 and NOSA in the paper that compares them by it.
constexpr double kMisleading = 0.05;

double rate(std::int64_t hits, std::int64_t misses) {
    return hits + misses > 0 ? double(hits) / double(hits + misses) : std::nan("");
}

} // namespace

void findResidentHitRate(RunFacts& facts, std::vector<Insight>& out) {
    std::int64_t hits = 0, misses = 0;
    for (const StepRow& step : facts.decodeSteps()) hits += step.hits, misses += step.misses;
    if (facts.run().deviceSlots != 0 || facts.run().sharesPool() || hits == 0 || misses != 0) return;
    Insight insight;
    insight.title = fmt::format("The hit rate of 100 % says nothing about a cache: everything is resident ({} hits, no "
                                "transfers)",
                                words::count(double(hits)));
    insight.detail = "The run was made without offloading, so every selected block counts as a hit.";
    if (!facts.run().metaOr(run_meta::kDenoisingBlock).empty()) {
        insight.detail =
            "Keys and values of a diffusion model stay on the device, so everything that is selected counts as a hit.";
        insight.advice =
            "Look at the density of the forwards instead: kvscope-cli export --what denoising, or v_denoise_layer.";
    } else {
        insight.advice =
            "Run with offloading and, if you like, --device-kv; or kvscope-cli replay --cache-blocks on this "
            "trace, which needs no second run.";
    }
    insight.evidence = facts.evidence("transfers", "hit_rate");
    insight.figures = {{"hits", double(hits), "blocks"}, {"device_slots", 0, "blocks"}};
    out.push_back(std::move(insight));
}

void findColdHitRate(RunFacts& facts, std::vector<Insight>& out) {
    std::int64_t hits = 0, misses = 0, warmHits = 0, warmMisses = 0;
    int cold = 0;
    for (std::size_t i = 0; i < facts.decodeSteps().size(); ++i) {
        const StepRow& step = facts.decodeSteps()[i];
        hits += step.hits, misses += step.misses;
        if (facts.exposure().steps[i].kind == StepKind::Cold) {
            cold = step.step;
            continue;
        }
        warmHits += step.hits, warmMisses += step.misses;
    }
    const double all = rate(hits, misses), warm = rate(warmHits, warmMisses);
    if (cold == 0 || std::isnan(warm) || std::abs(warm - all) < kMisleading) return;
    Insight insight;
    const bool counted = facts.exposure().coldCounted;
    const bool several = facts.exposure().cold.steps > 1;
    insight.title = fmt::format("The hit rate is {} {} {}, and would be {} {}", words::percent(counted ? all : warm),
                                counted ? "with" : "without", several ? "the cold steps" : "the cold first step",
                                words::percent(counted ? warm : all), counted ? "without" : "with") +
                    (several ? " them" : " it");
    insight.detail =
        fmt::format("{} of {} misses fill the empty cache in {}; over {} decode steps they weigh much. "
                    "Denominator: selected blocks, hits plus misses.",
                    words::count(double(misses - warmMisses)), words::count(double(misses)),
                    facts.exposure().cold.steps == 1 ? fmt::format("decode step {}", cold)
                                                     : words::many(facts.exposure().cold.steps, "cold step"),
                    facts.decodeSteps().size());
    insight.advice = "Compare runs by the rate without cold steps, which KVScope shows unless you count them "
                     "(--count-cold), or generate more tokens.";
    insight.evidence = facts.evidence("transfers", "hit_rate");
    insight.evidence.firstStep = insight.evidence.lastStep = cold;
    insight.figures = {{"hit_rate", counted ? all : warm, ""}, // as everywhere
                       {"hit_rate_of_all_steps", all, ""},
                       {"warm_hit_rate", warm, ""},
                       {"cold_misses", double(misses - warmMisses), "blocks"}};
    out.push_back(std::move(insight));
}

} // namespace kvscope
