// kvscope-cli replay: a recorded run against other caches and links, without decoding again.
#include "app/cli/commands.h"
#include "app/cli/run_choice.h"

#include "kernels/base/error.h"
#include "profiler/replay/locality.h"
#include "profiler/replay/replay.h"

#include <CLI/CLI.hpp>
#include <cmath>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace kvscope::cli {
namespace {

using Json = nlohmann::ordered_json;

struct Arguments {
    std::string trace;
    std::vector<std::string> policies, links;
    std::vector<int> cacheBlocks;
    double latencyUs = -1, sample = 0, accuracy = 1;
    int run = 0, lookahead = 0, windows = 0;
    bool sharedPool = false, curves = false, json = false;
};

/// Miss ratio against slots, of all pools together and of each, for the policies that one pass answers.
struct Curves {
    CurvePolicy policy;
    std::vector<MissCurve> pools; // empty if sampled
    MissCurve total;
};

/// share: of the work to do; 0: exact curves.
std::vector<Curves> curvesOf(const SelectionTrace& trace, double share) {
    std::vector<Curves> result;
    for (const CurvePolicy policy : {CurvePolicy::Lru, CurvePolicy::Belady}) {
        Curves& curves = result.emplace_back(Curves{policy, {}, {}});
        if (share > 0) {
            CurveSample sample;
            sample.share = share;
            curves.total = sampledMissCurve(trace, policy, sample);
        } else {
            curves.pools = missCurves(trace, policy);
            curves.total = sum(curves.pools);
        }
    }
    return result;
}

std::string recordedCache(const SelectionTrace& trace) {
    if (trace.run.deviceSlots == 0) return "every block resident";
    return fmt::format("{}, {} block slots", trace.cachePolicy.empty() ? "unnamed policy" : trace.cachePolicy,
                       trace.run.deviceSlots);
}

void printTable(const SelectionTrace& trace, const std::vector<ReplayConfig>& configs,
                const std::optional<Reproduction>& reproduction) {
    fmt::print("run {}: {}, {} decode steps, at most {} blocks at a time{}\n", trace.run.runId, trace.run.name,
               trace.steps.size(), trace.largest, trace.shared ? ", all sequences in one pool" : "");
    fmt::print("recorded: {}, {} hits, {} misses, {:.3f} ms exposed ({})\n", recordedCache(trace), trace.hits,
               trace.misses, double(trace.exposedNs) / 1e6, trace.run.timing);
    if (reproduction && reproduction->differing == 0)
        fmt::print("replayed with {}, all {} selections have the recorded hits and misses\n", reproduction->policy,
                   reproduction->requests);
    else if (reproduction)
        fmt::print("replayed with {}, {} of {} selections have other hits or misses than recorded\n",
                   reproduction->policy, reproduction->differing, reproduction->requests);
    fmt::print("{:<14} {:>12} {:>9} {:>12} {:>10} {:>10} {:>10} {:>12} {:>11}\n", "policy", "cache_blocks", "GB/s",
               "hits", "misses", "compulsory", "h2d_MB", "exposed_ms*", "tokens/s**");
    for (const ReplayConfig& c : configs)
        fmt::print("{:<14} {:>12} {:>9.4g} {:>12} {:>10} {:>10} {:>10.2f} {:>12.3f} {:>11.1f}\n", c.policy,
                   c.cacheBlocks, c.linkGbps, c.hits, c.misses, c.compulsory, double(c.h2dBytes) / 1e6,
                   double(c.exposedNs) / 1e6, c.tokensPerSecond);
    for (const ReplayConfig& c : configs)
        if (c.prefetched)
            fmt::print("{:<14} {:>12} {:>9.4g} {:>35} {:>10.2f} {:>12.3f} {:>11.1f}\n", c.policy, c.cacheBlocks,
                       c.linkGbps, "loading ahead", double(c.prefetched->h2dBytes) / 1e6,
                       double(c.prefetched->exposedNs) / 1e6, c.prefetched->tokensPerSecond);
    fmt::print("*modelled: {} us + bytes / bandwidth per layer and step; **predicted: recorded compute time plus *\n",
               fmt::format("{:.4g}", configs.front().linkLatencyUs));
}

void printCurves(const std::vector<Curves>& curves) {
    fmt::print("\n{:>12}", "cache_blocks");
    for (const Curves& c : curves) fmt::print(" {:>12}", fmt::format("{} miss %", nameOf(c.policy)));
    const int first = curves.front().total.smallest, last = curves.front().total.largest();
    constexpr int kRows = 16; // --json has every size
    int previous = -1;
    for (int row = 0; row <= kRows; ++row) {
        const int slots = first + int(std::int64_t(last - first) * row / kRows);
        if (slots == previous) continue;
        previous = slots;
        fmt::print("\n{:>12}", slots);
        for (const Curves& c : curves) fmt::print(" {:>12.3f}", 100 * c.total.ratio(slots));
    }
    fmt::print("\n");
}

Json toJson(const MissCurve& curve) {
    return {{"first_cache_blocks", curve.smallest},
            {"references", curve.references},
            {"compulsory", curve.compulsory},
            {"misses", curve.misses}};
}

Json toJson(const SelectionTrace& trace, const std::vector<Curves>& curves) {
    Json out = Json::array();
    for (const Curves& c : curves) {
        Json heads = Json::array();
        for (std::size_t i = 0; i < c.pools.size(); ++i) {
            const PoolTrace& pool = trace.pools[i];
            Json entry{{"layer", pool.layer}, {"kv_head", pool.kvHead}};
            if (!trace.shared) entry["sequence"] = pool.sequence;
            entry.update(toJson(c.pools[i]));
            heads.push_back(std::move(entry));
        }
        out.push_back({{"policy", nameOf(c.policy)}, {"total", toJson(c.total)}, {"pools", std::move(heads)}});
    }
    return out;
}

Json toJson(const ReplayConfig& c) {
    Json out{{"policy", c.policy},
             {"cache_blocks", c.cacheBlocks},
             {"link_gbps", c.linkGbps},
             {"link_latency_us", c.linkLatencyUs},
             {"hits", c.hits},
             {"misses", c.misses},
             {"compulsory", c.compulsory},
             {"h2d_bytes", c.h2dBytes},
             {"exposed_ms", double(c.exposedNs) / 1e6},
             {"compute_ms", c.computeNs / 1e6},
             {"tokens_per_s", c.tokensPerSecond}};
    if (c.prefetched)
        out["prefetched"] = {{"h2d_bytes", c.prefetched->h2dBytes},
                             {"exposed_ms", double(c.prefetched->exposedNs) / 1e6},
                             {"tokens_per_s", c.prefetched->tokensPerSecond}};
    return out;
}

Json number(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

Json toJson(const LocalityProfile& profile) {
    Json workingSet = Json::array(), kept = Json::array();
    for (int i = 1; i <= profile.longest(); ++i) {
        workingSet.push_back(number(profile.workingSet(i)));
        kept.push_back(number(profile.kept(i)));
    }
    return {{"working_set_blocks", std::move(workingSet)}, {"kept_share", std::move(kept)}};
}

/// Of all heads together and of each layer.
Json localityJson(const SelectionTrace& trace, const std::vector<LocalityProfile>& profiles) {
    LocalityProfile total;
    std::map<int, LocalityProfile> layers;
    for (std::size_t i = 0; i < profiles.size(); ++i) {
        total += profiles[i];
        layers[trace.pools[i].layer] += profiles[i];
    }
    Json out = toJson(total);
    out["layers"] = Json::array();
    for (const auto& [layer, profile] : layers) {
        Json entry{{"layer", layer}};
        entry.update(toJson(profile));
        out["layers"].push_back(std::move(entry));
    }
    return out;
}

void printLocality(const std::vector<LocalityProfile>& profiles) {
    LocalityProfile total;
    for (const LocalityProfile& profile : profiles) total += profile;
    fmt::print("\n{:>12} {:>18} {:>24}\n", "steps", "working set, blocks", "kept from so long ago, %");
    for (int i = 1; i <= total.longest(); i = i < 4 ? i + 1 : i + i / 2)
        fmt::print("{:>12} {:>18.2f} {:>24.2f}\n", i, total.workingSet(i), 100 * total.kept(i));
}

int run(const Arguments& arguments) {
    const TraceReader reader(arguments.trace);
    ReplayOptions options;
    options.policies = arguments.policies;
    options.cacheBlocks = arguments.cacheBlocks;
    for (const std::string& link : arguments.links) options.links.push_back(Link::parse(link));
    for (const std::string& policy : arguments.policies) findReplayPolicy(policy); // before the long read
    SelectionTrace trace = loadSelectionTrace(reader, chooseRun(reader, arguments.run));
    if (arguments.sharedPool) trace = withSharedPools(trace);
    if (arguments.latencyUs >= 0) {
        if (options.links.empty()) options.links.push_back(trace.link);
        for (Link& link : options.links) link.latencyUs = arguments.latencyUs;
    }
    if (trace.run.droppedSteps > 0)
        fmt::print(stderr, "kvscope-cli: {} steps of this run were dropped while recording, the replay lacks them\n",
                   trace.run.droppedSteps);
    if (arguments.lookahead != 0) options.prefetch = Prefetch{arguments.lookahead, arguments.accuracy};
    const std::vector<ReplayConfig> configs = replay(trace, options);
    const std::optional<Reproduction> reproduction = reproduce(trace);
    const std::vector<LocalityProfile> profiles = localityProfiles(trace, arguments.windows);
    const std::vector<Curves> curves = arguments.curves ? curvesOf(trace, arguments.sample) : std::vector<Curves>{};
    if (!arguments.json) {
        printTable(trace, configs, reproduction);
        if (arguments.curves) printCurves(curves);
        if (arguments.windows > 0) printLocality(profiles);
        return 0;
    }
    Json out{{"configs", Json::array()}};
    for (const ReplayConfig& config : configs) out["configs"].push_back(toJson(config));
    out["recorded"] = {{"run_id", trace.run.runId},
                       {"policy", trace.cachePolicy},
                       {"cache_blocks", trace.run.deviceSlots},
                       {"hits", trace.hits},
                       {"misses", trace.misses},
                       {"h2d_bytes", trace.h2dBytes},
                       {"exposed_ms", double(trace.exposedNs) / 1e6},
                       {"timing", trace.run.timing},
                       {"link", trace.link.name},
                       {"dropped_steps", trace.run.droppedSteps}};
    if (reproduction)
        out["reproduction"] = {{"policy", reproduction->policy},
                               {"selections", reproduction->requests},
                               {"differing", reproduction->differing}};
    out["shared_pool"] = trace.shared;
    out["exposed_ms_is"] = "modelled";
    out["tokens_per_s_is"] = "predicted";
    if (arguments.curves) {
        out["curves"] = toJson(trace, curves);
        out["curves_are"] = arguments.sample > 0 ? "sampled" : "exact";
    }
    if (arguments.windows > 0) out["locality"] = localityJson(trace, profiles);
    fmt::print("{}\n", out.dump(2, ' ', false, Json::error_handler_t::replace));
    return 0;
}

} // namespace

Command addReplay(CLI::App& app) {
    auto arguments = std::make_shared<Arguments>();
    CLI::App* sub = app.add_subcommand("replay", "Try other caches and links on the selections of a recorded run");
    std::vector<std::string> names;
    for (const ReplayPolicyEntry& policy : replayPolicies()) names.push_back(policy.name);
    sub->add_option("trace", arguments->trace, "The .kvtrace file")->required();
    sub->add_option("--cache-blocks", arguments->cacheBlocks,
                    "Block slots per sequence, layer and KV head (with --shared-pool per layer and KV head), "
                    "e.g. 16,24,32; default: as recorded")
        ->delimiter(',');
    sub->add_option("--policy", arguments->policies, fmt::format("Some of {}; default: all", fmt::join(names, ", ")))
        ->delimiter(',');
    sub->add_option(
           "--link", arguments->links,
           "pcie4, pcie5 or GB/s, e.g. 12,26,55.5; default: as recorded; where times were measured, fitted to them")
        ->delimiter(',');
    sub->add_option("--latency", arguments->latencyUs, "Microseconds per transfer; default: as recorded, or 10")
        ->check(CLI::NonNegativeNumber);
    sub->add_option("--lookahead", arguments->lookahead,
                    "Also load ahead: guess a layer's misses this many layers before it; default: on demand only")
        ->check(CLI::Range(1, 1024));
    sub->add_option("--accuracy", arguments->accuracy, "With --lookahead: share of the guesses that are right")
        ->check(CLI::Range(0.0, 1.0))
        ->capture_default_str();
    sub->add_option("--windows", arguments->windows,
                    "Also the working set of windows of 1 to this many steps, and the locality at these distances")
        ->check(CLI::Range(1, 100'000));
    sub->add_flag("--shared-pool", arguments->sharedPool, "All sequences share one pool per layer and KV head");
    sub->add_flag("--curves", arguments->curves, "Also misses against every number of block slots, of lru and belady");
    sub->add_option("--sample", arguments->sample, "With --curves: estimate them from this share, e.g. 0.01")
        ->check(CLI::Range(0.0, 1.0));
    sub->add_option("--run", arguments->run, "Run of the trace; default: the last");
    sub->add_flag("--json", arguments->json, "Print one JSON document");
    return [arguments] { return run(*arguments); };
}

} // namespace kvscope::cli
