// Why blocks are missing from the device tier, and whether its size and budget are right.
#include "profiler/insights/insight_rule.h"
#include "profiler/insights/words.h"
#include "profiler/replay/replay.h"

#include <algorithm>
#include <fmt/format.h>
#include <map>

namespace kvscope {
namespace {

// NOSA guarantees 3/4, InfLLM-V2 reaches 0.8 in most layers (NOSA, figure 2d): below 0.7 a layer is an outlier.
constexpr double kLowLocality = 0.7;
// Half of the misses are avoidable: a larger or better cache then beats every other mend.
constexpr double kAvoidable = 0.5;
// Another policy is worth a session's restart from a fifth fewer misses on.
constexpr double kPolicyGain = 0.2;
// Memory is worth freeing from a quarter of the cache on, if it costs at most 1 % more misses.
constexpr double kOversized = 0.75, kSameMisses = 1.01;
// Forced blocks overlap at the beginning of a text, so a budget is rarely used to the last block.
constexpr double kUnusedBudget = 0.9;

struct MissCauses { // of the warm steps' recorded misses
    double misses = 0, avoidable = 0;
};

/// Counts the misses, and those that another cache could avoid: the first use of a block is a miss in every cache, but
/// a block that misses again was replaced before.
MissCauses causesOf(const RunFacts& facts, const CacheFacts& caches) {
    MissCauses causes;
    for (const LayerExposure& layer : facts.exposure().layers) causes.misses += double(layer.misses);
    causes.avoidable = std::clamp(double(caches.misses - caches.compulsory), 0.0, causes.misses);
    return causes;
}

std::int64_t loadNs(const TransferTime& time) { return time.exposedNs - time.because(Exposure::WriteBack); }

/// Share of decode time in which the engine waits for loads. Waits for write-backs do not count, because a better cache
/// would not shorten them.
double loadShare(const RunFacts& facts) {
    const ExposureReport& exposure = facts.exposure();
    return exposure.decodeNs() > 0 ? double(loadNs(exposure.counted().time)) / exposure.decodeNs() : 0;
}

double impactOf(const RunFacts& facts, const MissCauses& causes) {
    return causes.misses > 0 ? loadShare(facts) * causes.avoidable / causes.misses : 0;
}

int slotsOf(const CacheFacts& caches) { return std::max(caches.trace.run.deviceSlots, caches.lru.smallest); }

/// LRU against the recorded policy, at the recorded size.
bool betterPolicy(const CacheFacts& caches) {
    return caches.misses > 0 && double(caches.lru.at(slotsOf(caches))) <= (1 - kPolicyGain) * double(caches.misses);
}

double bytesPerSlot(const CacheFacts& caches) {
    return double(caches.trace.pools.size()) * double(caches.trace.run.blockBytes);
}

std::int64_t recordedMisses(const PoolTrace& pool) {
    std::int64_t misses = 0;
    for (const RecordedOutcome& outcome : pool.recorded) misses += outcome.misses;
    return misses;
}

std::string nameOf(const PoolTrace& pool, const RunRow& run) {
    std::string name = fmt::format("layer {}, KV head {}", pool.layer, pool.kvHead);
    if (run.sequences > 1) name += fmt::format(", sequence {}", pool.sequence);
    return name;
}

} // namespace

void findLowLocality(RunFacts& facts, std::vector<Insight>& out) {
    struct Layer {
        double sum = 0, count = 0, misses = 0;
        double locality() const { return count > 0 ? sum / count : 1; }
    };
    std::map<int, Layer> layers;
    double misses = 0;
    for (const HeadFacts& head : facts.heads()) {
        Layer& layer = layers[head.layer];
        layer.sum += head.localitySum;
        layer.count += head.localityCount;
        layer.misses += double(head.misses);
        misses += double(head.misses);
    }
    std::vector<LayerExposure> low;
    double saved = 0, waiting = 0, worst = 1;
    int worstLayer = -1;
    for (const LayerExposure& exposed : facts.exposure().layers) {
        const auto at = layers.find(exposed.layer);
        if (at == layers.end()) continue;
        const double locality = at->second.locality();
        if (locality >= kLowLocality || at->second.misses == 0) continue;
        low.push_back(exposed);
        // The time that would not be waited for if only as much changed from step to step as at the threshold.
        saved += double(loadNs(exposed.time)) * (1 - (1 - kLowLocality) / (1 - locality));
        waiting += exposed.share;
        if (locality < worst) worst = locality, worstLayer = exposed.layer;
    }
    if (low.empty() || misses == 0) return;
    Insight insight;
    insight.impact = facts.exposure().decodeNs() > 0 ? saved / facts.exposure().decodeNs() : 0;
    insight.severity = severityOf(insight.impact);
    LayerGroup group;
    for (const LayerExposure& layer : low) {
        if (!group.ranges.empty() && group.ranges.back().last + 1 == layer.layer)
            group.ranges.back().last = layer.layer;
        else
            group.ranges.push_back({layer.layer, layer.layer});
        ++group.layers;
    }
    double lowMisses = 0;
    for (const LayerExposure& layer : low) lowMisses += layers[layer.layer].misses;
    const std::string named = group.ranges.size() <= 4 ? describe(group) : fmt::format("{} layers", group.layers);
    insight.title =
        fmt::format("Low locality in {}: as little as {} of the selected blocks were selected one step before", named,
                    words::percent(worst));
    insight.detail = fmt::format(
        "Mean locality below {} in {} of {} layers, lowest in layer {}; they cause {} of the misses and {} of "
        "the exposed time. Steps that open a block are left out.",
        kLowLocality, group.layers, layers.size(), worstLayer, words::percent(lowMisses / misses),
        words::percent(waiting));
    insight.advice = "Keep these layers resident, give them more query-agnostic blocks (NOSA's select_blocks) or more "
                     "slots with lru, and compare the quality with --oracle.";
    insight.evidence = facts.evidence("locality", "locality");
    insight.evidence.layer = worstLayer;
    insight.figures = {{"layers", double(group.layers), ""},
                       {"lowest_locality", worst, ""},
                       {"miss_share", lowMisses / misses, ""},
                       {"exposed_share", waiting, ""}};
    out.push_back(std::move(insight));
}

void findThrash(RunFacts& facts, std::vector<Insight>& out) {
    const CacheFacts* caches = facts.caches();
    if (!caches) return;
    const MissCauses causes = causesOf(facts, *caches);
    const double impact = impactOf(facts, causes);
    if (causes.misses == 0 || causes.avoidable < kAvoidable * causes.misses || impact < kNoteImpact) return;
    if (betterPolicy(*caches)) return; // the finding about policies says this already

    int heads = 0;
    std::size_t worst = 0;
    std::int64_t most = -1;
    for (std::size_t i = 0; i < caches->trace.pools.size(); ++i) {
        const std::int64_t misses = recordedMisses(caches->trace.pools[i]);
        const std::int64_t again = misses - caches->lruPools[i].compulsory;
        heads += double(again) >= kAvoidable * double(misses) && misses > 0;
        if (again > most) most = again, worst = i;
    }
    const int slots = slotsOf(*caches);
    const double target = double(caches->compulsory) + 0.5 * double(caches->misses - caches->compulsory);
    int enough = slots;
    while (enough < caches->lru.largest() && double(caches->lru.at(enough)) > target) ++enough;
    const double belady = double(caches->belady.at(slots));

    Insight insight;
    insight.impact = impact;
    insight.severity = severityOf(impact);
    insight.title =
        fmt::format("{} of {} heads thrash: {} of the misses are blocks that {} slots had held before", heads,
                    caches->trace.pools.size(), words::percent(causes.avoidable / causes.misses), slots);
    insight.detail = fmt::format(
        "{} misses after the first step, of them {} first uses (compulsory). {} slots with lru would load half of the "
        "blocks that return no more, for {} more device memory. With the first step it missed {} times; Belady's "
        "optimum in {} slots: {}. Worst: {}.",
        words::count(causes.misses), words::count(causes.misses - causes.avoidable), enough,
        words::bytes(double(enough - slots) * bytesPerSlot(*caches)), words::count(double(caches->misses)), slots,
        words::count(belady), nameOf(caches->trace.pools[worst], facts.run()));
    insight.advice = fmt::format("Give the device tier more slots (--device-kv {}), or select fewer blocks per step. "
                                 "kvscope-cli replay --curves shows the misses of every size.",
                                 enough);
    if (enough > slots) {
        insight.proposal = Proposal{.deviceSlots = enough, .cachePolicy = "lru"};
        insight.predicted =
            loadShare(facts) * std::max(0.0, 1 - double(caches->lru.at(enough)) / double(caches->misses));
    }
    insight.evidence = facts.evidence("selection");
    insight.evidence.layer = caches->trace.pools[worst].layer;
    insight.evidence.kvHead = caches->trace.pools[worst].kvHead;
    insight.evidence.sequence = caches->trace.pools[worst].sequence;
    insight.figures = {{"thrashing_heads", double(heads), ""},
                       {"misses", causes.misses, "blocks"},
                       {"avoidable_misses", causes.avoidable, "blocks"},
                       {"belady_misses", belady, "blocks"},
                       {"slots", double(slots), "blocks"},
                       {"slots_to_halve", double(enough), "blocks"}};
    out.push_back(std::move(insight));
}

void findWrongPolicy(RunFacts& facts, std::vector<Insight>& out) {
    const CacheFacts* caches = facts.caches();
    if (!caches || !betterPolicy(*caches)) return;
    const int slots = slotsOf(*caches);
    const double lru = double(caches->lru.at(slots)), recorded = double(caches->misses);
    Insight insight;
    insight.impact = loadShare(facts) * (1 - lru / recorded);
    if (insight.impact < kNoteImpact) return;
    insight.severity = severityOf(insight.impact);
    const std::string policy = caches->trace.cachePolicy.empty() ? "the recorded policy" : caches->trace.cachePolicy;
    insight.title =
        fmt::format("The replacement policy costs {} of the misses: lru would miss {} times in the same {} "
                    "slots, {} missed {}",
                    words::percent(1 - lru / recorded), words::count(lru), slots, policy, words::count(recorded));
    insight.detail =
        fmt::format("Belady's optimum would miss {} times; {} misses are first uses that no cache avoids.",
                    words::count(double(caches->belady.at(slots))), words::count(double(caches->compulsory)));
    insight.advice = "Run with --cache-policy lru; kvscope-cli replay compares every policy.";
    insight.proposal = Proposal{.cachePolicy = "lru"};
    insight.predicted = insight.impact;
    insight.evidence = facts.evidence("cache");
    insight.figures = {{"misses", recorded, "blocks"},
                       {"lru_misses", lru, "blocks"},
                       {"belady_misses", double(caches->belady.at(slots)), "blocks"},
                       {"slots", double(slots), "blocks"}};
    out.push_back(std::move(insight));
}

void findOversizedCache(RunFacts& facts, std::vector<Insight>& out) {
    const CacheFacts* caches = facts.caches();
    if (!caches) return;
    const int slots = caches->trace.run.deviceSlots;
    if (slots <= caches->lru.smallest) return;
    int enough = caches->lru.smallest;
    while (enough<slots&& double(caches->lru.at(enough))> kSameMisses * double(caches->misses)) ++enough;
    if (double(enough) > kOversized * double(slots)) return;
    const double freed = double(slots - enough) * bytesPerSlot(*caches);
    Insight insight;
    insight.title = fmt::format("The cache is larger than its working set: {} of {} slots miss no more than {} did "
                                "(lru), {} of device memory lie idle",
                                enough, slots, words::count(double(caches->misses)), words::bytes(freed));
    insight.detail = fmt::format(
        "Replayed on the recorded selections of {}: {} misses with {} slots, {} recorded with {}, {} of them "
        "first uses. A longer or different text may need more.",
        words::many(std::int64_t(caches->trace.steps.size()), "step"), words::count(double(caches->lru.at(enough))),
        enough, words::count(double(caches->misses)), slots, words::count(double(caches->compulsory)));
    insight.advice =
        fmt::format("Use --device-kv {} and spend the memory on a larger batch or a longer context.", enough);
    insight.proposal = Proposal{.deviceSlots = enough, .cachePolicy = "lru"};
    insight.evidence = facts.evidence("cache");
    insight.figures = {{"slots", double(slots), "blocks"},
                       {"slots_needed", double(enough), "blocks"},
                       {"idle_bytes", freed, "B"},
                       {"misses", double(caches->misses), "blocks"}};
    out.push_back(std::move(insight));
}

void findUnusedBudget(RunFacts& facts, std::vector<Insight>& out) {
    const RunRow& run = facts.run();
    if (run.budgetBlocks <= 0 || facts.heads().empty()) return;
    double selections = 0, selected = 0;
    int largest = 0;
    for (const HeadFacts& head : facts.heads()) {
        selections += double(head.selections);
        selected += double(head.selected);
        largest = std::max(largest, head.largest);
    }
    const double mean = selections > 0 ? selected / selections : 0;
    if (selections == 0 || mean >= kUnusedBudget * run.budgetBlocks) return;
    std::int64_t selecting = 0, wall = 0;
    const ExposureReport& exposure = facts.exposure();
    for (const StepExposure& step : exposure.steps) {
        if (exposure.counted().steps > 0 && !exposure.counts(step.kind)) continue;
        wall += step.durationNs;
        selecting += step.selectingNs;
    }
    const int context = facts.decodeSteps().empty() ? 0 : facts.contextAt(facts.decodeSteps().back().step);
    const int blocks = run.blockSize > 0 ? (context + run.blockSize - 1) / run.blockSize : 0;
    const bool everything = blocks > 0 && largest >= blocks;
    Insight insight;
    insight.impact = everything && wall > 0 ? double(selecting) / double(wall) : 0;
    insight.severity = severityOf(insight.impact);
    const bool compared = std::ranges::any_of(facts.decodeSteps(), [](const StepRow& step) { return step.kept >= 0; });
    const bool reached = largest >= run.budgetBlocks; // the budget is used up as soon as a context has as many blocks
    insight.title = fmt::format("The budget of {} blocks is {}: a head attends {:.1f} on average, {} at most",
                                run.budgetBlocks, reached ? "seldom used up" : "never used", mean, largest);
    insight.detail = everything
                         ? fmt::format("The context ends at {}, {} of {}, so every block is attended: the selection "
                                       "decides nothing and takes {} of decode time.",
                                       words::many(context, "token"), words::many(blocks, "block"), run.blockSize,
                                       words::percent(insight.impact))
                         : fmt::format("Over {} of the decode steps{}.", words::many(selections, "selection"),
                                       compared ? ", without those that have none before them" : "");
    insight.advice =
        everything ? "Use a longer prompt or a smaller budget to see sparse attention, or --method full here."
        : reached  ? "Judge the method where contexts are longer: those that the budget holds are attended as a whole."
                   : "Lower the budget to what is used, or find out why the method fills it so little.";
    insight.evidence = facts.evidence("selection");
    insight.evidence.layer = facts.heads().front().layer;
    insight.figures = {{"budget_blocks", double(run.budgetBlocks), "blocks"},
                       {"mean_selected", mean, "blocks"},
                       {"largest_selected", double(largest), "blocks"},
                       {"context_blocks", double(blocks), "blocks"}};
    out.push_back(std::move(insight));
}

} // namespace kvscope
