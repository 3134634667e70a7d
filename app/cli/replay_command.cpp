// kvscope-cli replay: a recorded run against other caches and links, without decoding again.
#include "app/cli/commands.h"
#include "app/cli/json_number.h"
#include "app/cli/long_action.h"
#include "app/cli/product_option.h"
#include "app/cli/replay_check.h"
#include "app/cli/run_choice.h"
#include "app/cli/vain.h"
#include "app/terminal/options.h"
#include "app/terminal/output.h"

#include "base/error.h"
#include "core/cache/cache_policy.h"
#include "core/model/model.h"
#include "core/session/products.h"
#include "core/trace/run_meta.h"
#include "profiler/read/own_tier.h"
#include "profiler/replay/device_pool.h"
#include "profiler/replay/locality.h"
#include "profiler/replay/merged_blocks.h"
#include "profiler/replay/replay.h"

#include <algorithm>
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

constexpr int kPredictionWrong = 3; // exit status: --check found other hits, misses or bytes than predicted

struct ReplayArguments {
    std::string trace, model, backend, pool = "partition";
    std::vector<std::string> policies, links;
    std::vector<int> cacheBlocks, blockSizes;
    double latencyUs = -1, sample = 0, accuracy = 1;
    int run = 0, lookahead = 0, windows = 0, check = 0;
    bool sharedPool = false, curves = false, json = false;
    bool devicePool() const { return pool == "device"; }
};

/// Miss ratio against slots, of all pools together and of each, for the policies that one pass answers.
struct Curves {
    CurvePolicy policy;
    std::vector<MissCurve> pools; // empty if sampled
    MissCurve total;
};

/// The curves of LRU and of Belady's choice. share: how much of the work of exact curves is done for sampled ones; 0:
/// the curves are exact.
std::vector<Curves> curvesOf(const SelectionTrace& trace, double share, LongAction& action) {
    std::vector<Curves> result;
    for (const CurvePolicy policy : {CurvePolicy::Lru, CurvePolicy::Belady}) {
        Curves& curves = result.emplace_back(Curves{policy, {}, {}});
        if (share > 0) {
            CurveSample sample;
            sample.share = share;
            curves.total = sampledMissCurve(trace, policy, sample);
        } else {
            curves.pools = missCurves(trace, policy, 0, action.whole(), action.stop());
            curves.total = sum(curves.pools);
        }
    }
    return result;
}

std::string recordedCache(const SelectionTrace& trace) {
    if (!trace.run.knows.has(Known::Hits)) return "cache not known";
    if (trace.run.sharesPool()) return "lru, one pool for all rows";
    if (hasOwnTier(trace.run)) return "kept by the method's own rule";
    if (trace.run.deviceSlots == 0) return "every block resident";
    return fmt::format("{}, {} block slots", trace.cachePolicy.empty() ? "unnamed policy" : trace.cachePolicy,
                       trace.run.deviceSlots);
}

/// Recorded decode time without transfers, by what it was spent on. Empty where that is not known.
std::vector<std::pair<std::string, double>> computePartsNs(const TraceReader& reader, const SelectionTrace& trace) {
    if (!trace.run.knows.has(Known::StageTimes)) return {};
    std::vector<std::pair<std::string, double>> parts{
        {"linear", 0}, {"selection", 0}, {"block_copies", 0}, {"attention", 0}, {"other", 0}};
    const std::map<std::string, std::size_t> partOf{
        {"qkv_linear", 0}, {"o_linear", 0}, {"ffn", 0},        {"lm_head", 0}, {"compression", 1},
        {"stage1", 1},     {"pooling", 1},  {"offloading", 2}, {"stage2", 3},  {"attention", 3}};
    for (const BreakdownRow& row : reader.breakdown(trace.run.runId)) {
        if (row.phase != Phase::Decode) continue;
        const auto part = partOf.find(row.component);
        parts[part == partOf.end() ? 4 : part->second].second += double(row.totalNs);
    }
    if (trace.run.timing == Timing::Measured) parts[2].second -= double(trace.exposedNs);
    return parts;
}

void printTable(const SelectionTrace& trace, const std::vector<ReplayConfig>& configs,
                const std::optional<Reproduction>& reproduction,
                const std::vector<std::pair<std::string, double>>& computeParts,
                const std::optional<DeviceDemand>& demand) {
    printOut("run {}: {}, {} decode steps, at most {} blocks at a time{}\n", trace.run.runId, trace.run.name,
             trace.steps.size(), trace.largest, trace.shared ? ", all sequences in one pool" : "");
    if (demand)
        printOut("one pool for the device: a layer of a step selects at most {} blocks, a step at most {}, on average "
                 "{:.1f}, without the newest block of each sequence, which lies outside\n",
                 demand->largest, demand->mostStep, demand->meanStep);
    const Knowledge knows = trace.run.knows;
    const std::string hits = knows.has(Known::Hits) ? fmt::format("{} hits, {} misses", trace.hits, trace.misses)
                                                    : "hits and misses not known";
    const std::string exposed =
        knows.has(Known::ExposedTimes)
            ? fmt::format("{:.3f} ms exposed ({})", double(trace.exposedNs) / 1e6, trace.run.timing.text())
            : "exposed time not known";
    printOut("recorded: {}, {}, {}\n", recordedCache(trace), hits, exposed);
    if (reproduction && reproduction->differing == 0)
        printOut("replayed with {}, all {} selections have the recorded hits and misses\n", reproduction->policy,
                 reproduction->requests);
    else if (reproduction)
        printOut("replayed with {}, {} of {} selections have other hits or misses than recorded\n",
                 reproduction->policy, reproduction->differing, reproduction->requests);
    double compute = 0;
    std::vector<std::string> parts;
    for (const auto& [name, ns] : computeParts) compute += ns;
    for (const auto& [name, ns] : computeParts)
        parts.push_back(fmt::format("{} {:.0f} %", name, compute > 0 ? 100 * ns / compute : 0.));
    if (parts.empty()) parts.emplace_back("on what is not known");
    const auto cell = [](double value, const char* form) {
        return std::isnan(value) ? "-" : fmt::format(fmt::runtime(form), value);
    };
    const auto ms = [&](double ns) { return cell(ns / 1e6, "{:.3f}"); };
    if (knows.has(Known::StepTimes))
        printOut("recorded compute: {} ms for {:.0f} tokens; {}\n", ms(configs.front().computeNs),
                 configs.front().tokens, fmt::join(parts, ", "));
    else
        printOut("recorded compute: not known, so no tokens/s are predicted\n");
    printOut("{:<14} {:>10} {:>12} {:>9} {:>12} {:>10} {:>10} {:>10} {:>11} {:>12} {:>11}\n", "policy", "block_size",
             "cache_blocks", "GB/s", "hits", "misses", "compulsory", "h2d_MB", "compute_ms", "exposed_ms*",
             "tokens/s**");
    for (const ReplayConfig& c : configs)
        printOut("{:<14} {:>10} {:>12} {:>9.4g} {:>12} {:>10} {:>10} {:>10.2f} {:>11} {:>12.3f} {:>11}\n", c.policy,
                 c.blockSize, c.cacheBlocks, c.linkGbps, c.hits, c.misses, c.compulsory, double(c.h2dBytes) / 1e6,
                 ms(c.computeNs), double(c.exposedNs) / 1e6, cell(c.tokensPerSecond, "{:.1f}"));
    for (const ReplayConfig& c : configs)
        if (c.prefetched)
            printOut("{:<14} {:>10} {:>12} {:>9.4g} {:>35} {:>10.2f} {:>11} {:>12.3f} {:>11}\n", c.policy, c.blockSize,
                     c.cacheBlocks, c.linkGbps, "loading ahead", double(c.prefetched->h2dBytes) / 1e6, ms(c.computeNs),
                     double(c.prefetched->exposedNs) / 1e6, cell(c.prefetched->tokensPerSecond, "{:.1f}"));
    printOut("*modelled: {} us + bytes / bandwidth per layer and step; **predicted: recorded compute time plus *\n",
             fmt::format("{:.4g}", configs.front().linkLatencyUs));
    printOut("every decode step counts, cold ones too: a replayed cache starts empty as the recorded one did\n");
    if (std::any_of(configs.begin(), configs.end(),
                    [&](const ReplayConfig& c) { return c.blockSize != trace.run.blockSize; }))
        printOut(
            "blocks of other sizes are recorded ones merged: a method would have selected larger blocks by their own "
            "scores, and attended other tokens\n");
}

void printCurves(const std::vector<Curves>& curves) {
    printOut("\n{:>12}", "cache_blocks");
    for (const Curves& c : curves) printOut(" {:>12}", fmt::format("{} miss %", nameOf(c.policy)));
    const int first = curves.front().total.smallest, last = curves.front().total.largest();
    constexpr int kRows = 16; // --json has every size
    int previous = -1;
    for (int row = 0; row <= kRows; ++row) {
        const int slots = first + int(std::int64_t(last - first) * row / kRows);
        if (slots == previous) continue;
        previous = slots;
        printOut("\n{:>12}", slots);
        for (const Curves& c : curves) printOut(" {:>12.3f}", 100 * c.total.ratio(slots));
    }
    printOut("\n");
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
            if (pool.request >= 0) entry["request"] = pool.request;
            entry.update(toJson(c.pools[i]));
            heads.push_back(std::move(entry));
        }
        out.push_back({{"policy", nameOf(c.policy)}, {"total", toJson(c.total)}, {"pools", std::move(heads)}});
    }
    return out;
}

/// The rates as `info` and the desktop make them: without cold steps.
Json warmJson(const ReplayConfig& config) {
    const RateSums sums = rateSums(config, ColdSteps::LeftOut);
    return {{"hits", sums.hits},
            {"misses", sums.misses},
            {"hit_rate", numberOrNull(sums.hitRate())},
            {"exposed_ms", double(sums.exposedNs) / 1e6},
            {"compute_ms", numberOrNull(sums.computeNs / 1e6)},
            {"tokens", std::int64_t(sums.tokens)},
            {"tokens_per_s", numberOrNull(sums.tokensPerSecond())}};
}

Json toJson(const ReplayConfig& c) {
    Json out{{"policy", c.policy},
             {"block_size", c.blockSize},
             {"cache_blocks", c.cacheBlocks},
             {"link_gbps", c.linkGbps},
             {"link_latency_us", c.linkLatencyUs},
             {"hits", c.hits},
             {"misses", c.misses},
             {"compulsory", c.compulsory},
             {"h2d_bytes", c.h2dBytes},
             {"exposed_ms", double(c.exposedNs) / 1e6},
             {"compute_ms", numberOrNull(c.computeNs / 1e6)},
             {"tokens", std::int64_t(c.tokens)},
             {"tokens_per_s", numberOrNull(c.tokensPerSecond)}};
    ReplayConfig onDemand = c;
    onDemand.prefetched.reset();
    out["warm"] = warmJson(onDemand);
    if (c.prefetched)
        out["prefetched"] = {{"h2d_bytes", c.prefetched->h2dBytes},
                             {"exposed_ms", double(c.prefetched->exposedNs) / 1e6},
                             {"tokens_per_s", numberOrNull(c.prefetched->tokensPerSecond)},
                             {"warm", warmJson(c)}};
    return out;
}

Json toJson(const LocalityProfile& profile) {
    Json workingSet = Json::array(), kept = Json::array();
    for (int i = 1; i <= profile.longest(); ++i) {
        workingSet.push_back(numberOrNull(profile.workingSet(i)));
        kept.push_back(numberOrNull(profile.kept(i)));
    }
    return {{"working_set_blocks", std::move(workingSet)}, {"kept_share", std::move(kept)}};
}

/// The locality of all heads together, and that of each layer.
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
    const auto cell = [](double value) { return std::isnan(value) ? "-" : fmt::format("{:.2f}", value); };
    LocalityProfile total;
    for (const LocalityProfile& profile : profiles) total += profile;
    printOut("\n{:>12} {:>18} {:>24}\n", "steps", "working set, blocks", "kept from so long ago, %");
    for (int i = 1; i <= total.longest(); i = i < 4 ? i + 1 : i + i / 2)
        printOut("{:>12} {:>18} {:>24}\n", i, cell(total.workingSet(i)), cell(100 * total.kept(i)));
}

/// How many recorded blocks are one of each wanted size.
std::vector<int> mergeFactors(const ReplayArguments& arguments, const SelectionTrace& trace) {
    if (arguments.blockSizes.empty()) return {1};
    if (arguments.blockSizes.size() > 1 && (arguments.curves || arguments.windows > 0))
        throw Error(ErrorKind::BadInput, "--curves and --windows need a single block size", "give one --block-size");
    std::vector<int> factors;
    for (const int size : arguments.blockSizes) {
        if (size < trace.run.blockSize || trace.run.blockSize < 1 || size % trace.run.blockSize != 0)
            throw Error(
                ErrorKind::BadInput,
                fmt::format("blocks of {} tokens cannot be made of the recorded ones of {}", size, trace.run.blockSize),
                fmt::format("give a multiple, e.g. --block-size {}", 2 * trace.run.blockSize));
        factors.push_back(size / trace.run.blockSize);
    }
    return factors;
}

/// The model that was recorded: the one asked for, the one at the recorded path, or an embedded one of its name.
std::shared_ptr<const Model> recordedModel(const ReplayArguments& arguments, const RunRow& run) {
    if (!arguments.model.empty()) return Model::load(arguments.model);
    if (const std::string& path = run.metaOr(run_meta::kModelPath); !path.empty()) {
        try {
            return Model::load(path);
        } catch (Error& error) {
            error.during(fmt::format("loading the recorded model {} (another place: --model)", run.model));
            throw;
        }
    }
    const auto embedded = embeddedModels();
    if (std::find(embedded.begin(), embedded.end(), run.model) == embedded.end())
        throw Error(ErrorKind::BadInput, fmt::format("the trace does not say where its model {} lies", run.model),
                    "give its folder with --model");
    return Model::load(run.model);
}

/// The caches of the grid, where one was given; otherwise some that are unlike the recorded one.
std::vector<EngineCache> cachesToCheck(const ReplayArguments& arguments, const ReplayOptions& options,
                                       const SelectionTrace& trace) {
    if (options.policies.empty() && options.cacheBlocks.empty() && options.links.empty())
        return otherCaches(trace, arguments.check);
    std::vector<std::string> policies; // the engine's among the given ones
    for (const std::string& policy : options.policies)
        for (const CachePolicy& known : cachePolicies())
            if (policy == known.name) policies.push_back(policy);
    if (!options.policies.empty() && policies.empty())
        throw Error(ErrorKind::BadInput, "none of these policies is the engine's, so they cannot be run",
                    "check with --policy keep-selected,lru");
    if (policies.empty()) policies.emplace_back("lru");
    const std::vector<int> sizes =
        options.cacheBlocks.empty() ? std::vector{std::max(trace.run.deviceSlots, trace.largest)} : options.cacheBlocks;
    const std::vector<Link> links = options.links.empty() ? std::vector{trace.link} : options.links;
    std::vector<EngineCache> caches;
    for (const std::string& policy : policies)
        for (const int size : sizes)
            for (const Link& link : links) caches.push_back({policy, size, link});
    return caches;
}

/// The recorded configuration first, then the others.
CheckReport check(const ReplayArguments& arguments, const ReplayOptions& options, const TraceReader& reader,
                  const SelectionTrace& trace, const Progress& progress, const std::stop_token& stop) {
    const auto model = recordedModel(arguments, trace.run);
    std::vector<EngineCache> caches = cachesToCheck(arguments, options, trace);
    const std::string recorded = trace.cachePolicy.empty() ? "keep-selected" : trace.cachePolicy;
    const auto known = replayPolicies(); // without lru-s, which needs the worth of blocks: a recording does not hold it
    const bool hasControl = trace.run.deviceSlots > 0 &&
                            std::any_of(known.begin(), known.end(), [&](const auto& p) { return p.name == recorded; });
    if (hasControl) caches.insert(caches.begin(), {recorded, trace.run.deviceSlots, trace.link});
    CheckReport report{model->name(), {}, checkReplay(reader, trace, model, caches, 0, progress, stop)};
    if (hasControl) {
        report.control = report.configs.front();
        report.configs.erase(report.configs.begin());
    }
    return report;
}

struct Results {
    std::vector<ReplayConfig> configs;
    std::optional<Reproduction> reproduction;
    std::vector<LocalityProfile> profiles;
    std::vector<Curves> curves;
    std::vector<std::pair<std::string, double>> computeParts;
    std::optional<CheckReport> check;
    std::optional<DeviceDemand> demand; // of the block size that was replayed last
};

Json toJson(const ReplayArguments& arguments, const SelectionTrace& trace, const SelectionTrace& last,
            const Results& results) {
    Json out{{"configs", Json::array()}};
    const auto known = [&](Known what, Json value) { return trace.run.knows.has(what) ? std::move(value) : Json(); };
    for (const ReplayConfig& config : results.configs) out["configs"].push_back(toJson(config));
    out["recorded"] = {{"run_id", trace.run.runId},
                       {"policy", trace.cachePolicy},
                       {"cache_blocks", trace.run.deviceSlots},
                       {"block_size", trace.run.blockSize},
                       {"hits", known(Known::Hits, trace.hits)},
                       {"misses", known(Known::Hits, trace.misses)},
                       {"h2d_bytes", known(Known::Bytes, trace.h2dBytes)},
                       {"exposed_ms", known(Known::ExposedTimes, double(trace.exposedNs) / 1e6)},
                       {"timing", trace.run.timing.text()},
                       {"link", trace.link.name},
                       {"dropped_steps", trace.run.droppedSteps}};
    out["compute_ms_parts"] = Json::object();
    for (const auto& [name, ns] : results.computeParts) out["compute_ms_parts"][name] = ns / 1e6;
    if (results.reproduction)
        out["reproduction"] = {{"policy", results.reproduction->policy},
                               {"selections", results.reproduction->requests},
                               {"differing", results.reproduction->differing}};
    out["shared_pool"] = last.shared;
    out["pool"] = arguments.devicePool() ? "device" : last.shared ? "shared" : "partition";
    if (results.demand)
        out["device_demand"] = {{"largest_layer_blocks", results.demand->largest},
                                {"largest_step_blocks", results.demand->mostStep},
                                {"mean_step_blocks", results.demand->meanStep}};
    out["counts"] = "all steps";
    out["exposed_ms_is"] = "modelled";
    out["tokens_per_s_is"] = "predicted";
    if (arguments.curves) {
        out["curves"] = toJson(last, results.curves);
        out["curves_are"] = arguments.sample > 0 ? "sampled" : "exact";
    }
    if (arguments.windows > 0) out["locality"] = localityJson(last, results.profiles);
    if (results.check) out["check"] = checkedJson(*results.check, trace.run);
    return out;
}

int run(const ReplayArguments& arguments) {
    refuseRepeated("--cache-blocks", arguments.cacheBlocks);
    refuseRepeated("--policy", arguments.policies);
    refuseRepeated("--block-size", arguments.blockSizes);
    refuseRepeated("--link", arguments.links, sameLink);
    const TraceReader reader(arguments.trace);
    ReplayOptions options;
    options.policies = arguments.policies;
    options.cacheBlocks = arguments.cacheBlocks;
    for (const std::string& link : arguments.links) options.links.push_back(Link::parse(link));
    for (const std::string& policy : arguments.policies) findReplayPolicy(policy); // before the long read
    if (arguments.lookahead != 0) options.prefetch = Prefetch{arguments.lookahead, arguments.accuracy};
    const bool shared = arguments.sharedPool || arguments.pool == "shared";
    if (arguments.check > 0 && (shared || arguments.devicePool()))
        throw Error(ErrorKind::BadInput, "the engine has no shared pools, so they cannot be checked",
                    fmt::format("leave out {} or --check", arguments.sharedPool ? "--shared-pool" : "--pool"));
    if (arguments.curves && arguments.devicePool())
        throw Error(ErrorKind::BadInput,
                    "--curves has no effect with --pool device: curves are for pools of one layer and KV head",
                    "give the sizes of a pool for the device with --cache-blocks");
    if (arguments.devicePool())
        for (const std::string& policy : arguments.policies) parseDevicePolicy(policy);
    LongAction action;
    // The progress at which the trace has been read, and at which the replays are done. With --check the sessions then
    // run again, which takes longest.
    const double read = arguments.check > 0 ? 0.05 : 0.5, replayed = arguments.check > 0 ? 0.1 : 1;
    const SelectionTrace trace =
        loadSelectionTrace(reader, chooseRun(reader, arguments.run), action.part(0, read), action.stop());
    if (!arguments.backend.empty() && arguments.backend != trace.run.backend.text())
        throw Error(ErrorKind::BadInput,
                    fmt::format("run {} was recorded on {}: its times and block bytes say nothing about {}",
                                trace.run.runId, trace.run.backend.text(), arguments.backend),
                    fmt::format("record a run with --backend {} and check that", arguments.backend));
    if (arguments.check > 0 && trace.run.serves())
        throw Error(ErrorKind::BadInput,
                    fmt::format("run {} served requests that came at their times, which cannot be run again with "
                                "another cache",
                                trace.run.runId),
                    "leave out --check");
    if (arguments.latencyUs >= 0) {
        if (options.links.empty()) options.links.push_back(trace.link);
        for (Link& link : options.links) link.latencyUs = arguments.latencyUs;
    }
    const std::vector<int> factors = mergeFactors(arguments, trace);
    Results results;
    SelectionTrace wanted; // of the block size and pools asked for; the last one also for curves and windows
    for (std::size_t i = 0; i < factors.size(); ++i) {
        const double from = read + (replayed - read) * double(i) / double(factors.size()),
                     to = read + (replayed - read) * double(i + 1) / double(factors.size());
        wanted = withMergedBlocks(trace, factors[i], action.stop());
        if (shared) wanted = withSharedPools(wanted);
        std::vector<ReplayConfig> configs;
        if (arguments.devicePool()) {
            const DeviceRequests requests(wanted);
            results.demand = requests.demand();
            configs = replayDevicePool(wanted, requests, options, action.part(from, to), action.stop());
        } else {
            configs = replay(wanted, options, action.part(from, to), action.stop());
        }
        for (ReplayConfig& config : configs) results.configs.push_back(std::move(config));
    }
    results.computeParts = computePartsNs(reader, trace);
    results.reproduction = reproduce(trace, 0, action.part(replayed, replayed), action.stop());
    results.profiles = localityProfiles(wanted, arguments.windows);
    if (arguments.curves) results.curves = curvesOf(wanted, arguments.sample, action);
    if (arguments.check > 0) {
        const std::string& products = trace.run.metaOr(kProductsMeta);
        if (trace.run.backend == RunBackend::Cuda) chooseProducts({}, Backend::Cuda, products);
        results.check = check(arguments, options, reader, trace, action.part(replayed, 1), action.stop());
    }
    action.clear();
    if (results.check) remarkOnProducts(trace.run.metaOr(kProductsMeta));
    if (trace.run.droppedSteps > 0)
        printErr("kvscope-cli: {} steps of this run were dropped while recording, the replay lacks them\n",
                 trace.run.droppedSteps);
    const std::string broken = remarkOnBrokenRules(reader, trace.run.runId);
    if (arguments.json) {
        Json out = toJson(arguments, trace, wanted, results);
        if (!broken.empty()) out["broken_rules"] = broken;
        printOut("{}\n", out.dump(2, ' ', false, Json::error_handler_t::replace));
    } else {
        printTable(trace, results.configs, results.reproduction, results.computeParts, results.demand);
        if (arguments.curves) printCurves(results.curves);
        if (arguments.windows > 0) printLocality(results.profiles);
        if (results.check) printChecked(*results.check, trace.run);
    }
    return results.check && !results.check->exact() ? kPredictionWrong : 0;
}

} // namespace

Command addReplay(Options& program) {
    auto arguments = std::make_shared<ReplayArguments>();
    Options sub = program.command("replay", "Try other caches and links on the selections of a recorded run");
    std::vector<std::string> names;
    for (const ReplayPolicyEntry& policy : replayPolicies()) names.push_back(policy.name);
    sub.add("trace", arguments->trace, "The .kvtrace file").required();
    sub.add("--cache-blocks", arguments->cacheBlocks,
            "Block slots per sequence, layer and KV head (with --shared-pool per layer and KV head, with --pool device "
            "of the device), e.g. 16,24,32; default: as recorded, with --pool device some around the largest step")
        .commaSeparated();
    sub.add("--policy", arguments->policies, fmt::format("Some of {}; default: all", fmt::join(names, ", ")))
        .commaSeparated();
    sub.add("--block-size", arguments->blockSizes,
            "Tokens of a block, multiples of the recorded size, e.g. 64,128: recorded blocks merged")
        .commaSeparated();
    sub.add("--link", arguments->links,
            "pcie4, pcie5 or GB/s, e.g. 12,26,55.5; default: as recorded; where times were measured, fitted to them")
        .commaSeparated();
    sub.add("--latency", arguments->latencyUs, "Microseconds per transfer; default: as recorded, or 10").notNegative();
    const Option lookahead =
        sub.add("--lookahead", arguments->lookahead,
                "Also load ahead: guess a layer's misses this many layers before it; default: on demand only")
            .range(1, 1024);
    sub.add("--accuracy", arguments->accuracy, "With --lookahead: share of the guesses that are right")
        .needs(lookahead)
        .range(0.0, 1.0)
        .showsDefault();
    sub.add("--windows", arguments->windows,
            "Also the working set of windows of 1 to this many steps, and the locality at these distances")
        .range(1, 100'000);
    const Option sharedPool =
        sub.flag("--shared-pool", arguments->sharedPool, "All sequences share one pool per layer and KV head");
    sub.add("--pool", arguments->pool,
            "partition: a pool per sequence, layer and KV head; shared: as --shared-pool; device: one pool for "
            "everything, of lru or belady, whose size --cache-blocks gives")
        .oneOf({"partition", "shared", "device"})
        .excludes(sharedPool)
        .showsDefault();
    const Option curves =
        sub.flag("--curves", arguments->curves, "Also misses against every number of block slots, of lru and belady");
    sub.add("--sample", arguments->sample, "With --curves: estimate them from this share, e.g. 0.01")
        .needs(curves)
        .positive()
        .range(0.0, 1.0);
    const Option check =
        sub.flag("--check{3}", arguments->check,
                 "Run the recorded model, prompt and settings again with other caches and links (--check=5: five of "
                 "them; or those given by --policy, --cache-blocks, --link) and print the predictions' errors; exit "
                 "status 3 if hits, misses or bytes differ")
            .range(1, 100);
    sub.add("--model", arguments->model,
            "With --check: where the recorded model lies, if it is no longer at the recorded place")
        .needs(check);
    sub.add("--backend", arguments->backend,
            "With --check: cpu or cuda; it must be the recorded one, which is the default")
        .needs(check)
        .oneOf({"cpu", "cuda"});
    sub.add("--run", arguments->run, "Run of the trace; default: the last").range(1, 255);
    sub.flag("--json", arguments->json, "Print one JSON document");
    return [arguments] { return run(*arguments); };
}

} // namespace kvscope::cli
