#include "profiler/replay/replay.h"

#include "base/error.h"
#include "base/parallel.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <fmt/format.h>
#include <limits>

namespace kvscope {
namespace {

// With slower links or longer latencies the nanoseconds of a transfer would not fit 64 bits.
constexpr double kSlowestLink = 1e-6, kLongestLatencyUs = 1e9;

/// 0 where no time passed; NaN where the time is not known.
double perSecond(double tokens, double ns) { return ns == 0 ? 0 : tokens * 1e9 / ns; }

/// The times when misses are loaded on demand: each layer of each step loads its misses in one transfer, and the
/// attention waits for the transfer.
ReplayConfig onDemand(const SelectionTrace& trace, const CacheReplay& cache, const Link& link) {
    ReplayConfig config;
    config.linkGbps = link.gigabytesPerSecond;
    config.linkLatencyUs = link.latencyUs;
    config.hits = cache.total.hits;
    config.misses = cache.total.misses;
    config.compulsory = cache.total.compulsory;
    for (const TransferSize& size : cache.transfers) {
        const std::int64_t bytes = size.blocks * trace.run.blockBytes;
        config.h2dBytes += size.transfers * bytes;
        config.exposedNs += size.transfers * link.transferNs(bytes);
    }
    config.blockSize = trace.run.blockSize;
    for (const ReplayStep& step : trace.steps) {
        const double compute = trace.computeNs(step);
        config.computeNs += compute;
        config.tokens += step.tokens;
        if (!step.cold) continue;
        config.coldComputeNs += compute;
        config.coldTokens += step.tokens;
    }
    config.coldHits = cache.coldTotal.hits;
    config.coldMisses = cache.coldTotal.misses;
    for (const TransferSize& size : cache.coldTransfers)
        config.coldExposedNs += size.transfers * link.transferNs(size.blocks * trace.run.blockBytes);
    config.tokensPerSecond = perSecond(config.tokens, config.computeNs + double(config.exposedNs));
    return config;
}

void check(const Link& link) {
    if (!(link.gigabytesPerSecond >= kSlowestLink) || !(link.latencyUs >= 0 && link.latencyUs <= kLongestLatencyUs))
        throw Error(ErrorKind::BadInput,
                    fmt::format("a link of {:g} GB/s with {:g} us per transfer cannot be replayed",
                                link.gigabytesPerSecond, link.latencyUs),
                    fmt::format("use --link with at least {:g} GB/s and --latency of at most {:g} us", kSlowestLink,
                                kLongestLatencyUs));
}

void check(const Prefetch& prefetch) {
    if (prefetch.layersAhead < 1 || !(prefetch.accuracy >= 0 && prefetch.accuracy <= 1))
        throw Error(
            ErrorKind::BadInput,
            fmt::format("cannot load {} layers ahead with accuracy {:g}", prefetch.layersAhead, prefetch.accuracy),
            "use --lookahead of at least 1 and --accuracy from 0 to 1");
}

/// Works out how long each layer of one step waits when blocks are loaded ahead.
class PrefetchedStep {
public:
    PrefetchedStep(const Link& link, std::int64_t blockBytes, const Prefetch& prefetch)
        : link_(link), blockBytes_(blockBytes), prefetch_(prefetch) {}

    void add(std::span<const std::int32_t> loads, std::span<const LayerTime> times, PrefetchedTime& out) {
        const auto ahead = std::size_t(prefetch_.layersAhead);
        std::int64_t now = 0;
        linkFree_ = 0;
        arrived_.assign(loads.size(), 0);
        for (std::size_t layer = 0; layer < std::min(ahead, loads.size()); ++layer) guess(layer, loads[layer], 0, out);
        for (std::size_t layer = 0; layer < loads.size(); ++layer) {
            if (layer + ahead < loads.size()) guess(layer + ahead, loads[layer + ahead], now, out);
            const std::int64_t needed = now + times[layer].beforeNs;
            std::int64_t ready = std::max(needed, arrived_[layer]);
            const std::int32_t wrong = loads[layer] - right(loads[layer]);
            if (wrong > 0) ready = std::max(ready, transfer(wrong, needed, out));
            out.exposedNs += ready - needed;
            now = ready + times[layer].afterNs;
        }
    }

private:
    std::int32_t right(std::int32_t loads) const { return std::int32_t(std::lround(loads * prefetch_.accuracy)); }
    void guess(std::size_t layer, std::int32_t loads, std::int64_t now, PrefetchedTime& out) {
        if (loads > 0) arrived_[layer] = transfer(loads, now, out);
    }
    std::int64_t transfer(std::int32_t blocks, std::int64_t now, PrefetchedTime& out) {
        const std::int64_t bytes = blocks * blockBytes_;
        out.h2dBytes += bytes;
        return linkFree_ = std::max(linkFree_, now) + link_.transferNs(bytes);
    }

    const Link& link_;
    std::int64_t blockBytes_, linkFree_ = 0;
    const Prefetch& prefetch_;
    std::vector<std::int64_t> arrived_; // [layer] the time at which its guessed blocks have arrived
};

PrefetchedTime prefetchedOver(const SelectionTrace& trace, const CacheReplay& cache, const Link& link,
                              const Prefetch& prefetch, const ReplayConfig& config) {
    PrefetchedTime out;
    PrefetchedStep step(link, trace.run.blockBytes, prefetch);
    const Extents<int, int> cells = trace.layerSteps();
    for (int i = 0; i < cells.length(0); ++i) {
        const std::int64_t before = out.exposedNs;
        step.add(cells.part(std::span(cache.loads), i), cells.part(std::span(trace.layerTimes), i), out);
        if (trace.isCold(i)) out.coldExposedNs += out.exposedNs - before;
    }
    out.tokensPerSecond = perSecond(config.tokens, config.computeNs + double(out.exposedNs));
    return out;
}

std::vector<int> sizesOf(const SelectionTrace& trace, const ReplayOptions& options) {
    if (!options.cacheBlocks.empty()) return options.cacheBlocks;
    const auto recorded = std::int64_t(trace.run.deviceSlots) * (trace.shared ? trace.run.sequences : 1);
    return {int(std::clamp<std::int64_t>(recorded, trace.largest, std::numeric_limits<int>::max()))};
}

std::vector<Link> linksOf(const SelectionTrace& trace, const ReplayOptions& options) {
    std::vector<Link> links = options.links.empty() ? std::vector{trace.link} : options.links;
    for (const Link& link : links) check(link);
    return links;
}

std::vector<const ReplayPolicyEntry*> policiesOf(const ReplayOptions& options) {
    std::vector<const ReplayPolicyEntry*> result;
    for (const std::string& name : options.policies) result.push_back(&findReplayPolicy(name));
    if (result.empty())
        for (const ReplayPolicyEntry& policy : replayPolicies()) result.push_back(&policy);
    return result;
}

} // namespace

std::vector<TransferSize> transferSizes(const std::vector<std::int32_t>& loads) {
    Numbered<std::int64_t> count(loads.empty() ? 0 : *std::ranges::max_element(loads) + 1, 0);
    for (const std::int32_t blocks : loads) ++count[blocks];
    std::vector<TransferSize> sizes;
    for (std::int32_t blocks = 1; blocks < count.count(); ++blocks)
        if (count[blocks] > 0) sizes.push_back({blocks, count[blocks]});
    return sizes;
}

std::vector<TransferSize> coldTransfers(const SelectionTrace& trace, const std::vector<std::int32_t>& loads) {
    const Extents<int, int> cells = trace.layerSteps();
    std::vector<std::int32_t> cold;
    for (int step = 0; step < cells.length(0); ++step) {
        if (!trace.isCold(step)) continue;
        const std::span<const std::int32_t> part = cells.part(std::span(loads), step);
        cold.insert(cold.end(), part.begin(), part.end());
    }
    return transferSizes(cold);
}

double RateSums::hitRate() const {
    return hits + misses > 0 ? double(hits) / double(hits + misses) : std::numeric_limits<double>::quiet_NaN();
}

double RateSums::tokensPerSecond() const { return perSecond(tokens, computeNs + double(exposedNs)); }

RateSums rateSums(const ReplayConfig& config, ColdSteps cold) {
    const std::int64_t exposed = config.prefetched ? config.prefetched->exposedNs : config.exposedNs;
    const RateSums all{config.hits, config.misses, exposed, config.computeNs, config.tokens};
    if (cold == ColdSteps::Counted) return all;
    const std::int64_t coldExposed = config.prefetched ? config.prefetched->coldExposedNs : config.coldExposedNs;
    return {all.hits - config.coldHits, all.misses - config.coldMisses, all.exposedNs - coldExposed,
            all.computeNs - config.coldComputeNs, all.tokens - config.coldTokens};
}

void CacheCounts::add(const RequestOutcome& outcome) {
    hits += outcome.hits;
    misses += outcome.misses;
    compulsory += outcome.compulsory;
}

CacheCounts& CacheCounts::operator+=(const CacheCounts& other) {
    hits += other.hits;
    misses += other.misses;
    compulsory += other.compulsory;
    return *this;
}

void replayPool(const BlockVisits& visits, ReplayPolicy& policy,
                const std::function<void(std::size_t, const RequestOutcome&)>& seen) {
    Numbered<std::uint8_t> missed(visits.largest());
    for (std::size_t request = 0; request < visits.requests(); ++request) {
        policy.next(request, missed);
        RequestOutcome outcome;
        const auto entered = visits.entered(request);
        for (std::size_t i = 0; i < entered.size(); ++i) {
            if (missed[i] == 0 || entered[i].begins()) continue;
            ++outcome.loads;
            outcome.misses += entered[i].counted();
            outcome.compulsory += entered[i].compulsory();
        }
        outcome.hits = visits.counted(request) - outcome.misses;
        seen(request, outcome);
    }
}

CacheReplay replayCache(const SelectionTrace& trace, const ReplayPolicyEntry& policy, int cacheBlocks, int threads,
                        const Progress& progress, const std::stop_token& stop) {
    if (cacheBlocks < trace.largest)
        throw Error(ErrorKind::BadInput,
                    fmt::format("{} block slots {} are too few: run {} attends {} blocks at a time", cacheBlocks,
                                trace.shared ? "for all sequences" : "per KV head", trace.run.runId, trace.largest),
                    fmt::format("give at least --cache-blocks {}", trace.largest));
    const Extents<int, int> cells = trace.layerSteps();
    CacheReplay result;
    result.loads.assign(cells.size(), 0);
    result.pools.resize(trace.pools.size());
    result.coldPools.resize(trace.pools.size());
    Numbered<std::vector<std::size_t>> poolsOf(
        trace.run.layers); // a layer is one thread's work: no two threads share a cell
    for (std::size_t i = 0; i < trace.pools.size(); ++i) poolsOf[trace.pools[i].layer].push_back(i);
    forEachParallel(poolsOf.size(), threads, "replaying", progress, stop, [&](std::size_t layer) {
        for (const std::size_t index : poolsOf[layer]) {
            throwIfCancelled(stop);
            const PoolTrace& pool = trace.pools[index];
            // Slots beyond the number of blocks would stay empty, and are not simulated.
            const int slots = std::min(cacheBlocks, int(pool.visits.blockLimit()));
            const std::unique_ptr<ReplayPolicy> state = policy.make(pool.visits, slots);
            CacheCounts counts, cold;
            replayPool(pool.visits, *state, [&](std::size_t request, const RequestOutcome& outcome) {
                const std::int32_t step = pool.steps[request];
                if (step >= 0) result.loads[cells.offset(step, int(layer))] += outcome.loads;
                counts.add(outcome);
                if (trace.isCold(step)) cold.add(outcome);
            });
            result.pools[index] = counts;
            result.coldPools[index] = cold;
        }
    });
    for (const CacheCounts& counts : result.pools) result.total += counts;
    for (const CacheCounts& counts : result.coldPools) result.coldTotal += counts;
    result.transfers = transferSizes(result.loads);
    result.coldTransfers = coldTransfers(trace, result.loads);
    return result;
}

std::optional<Reproduction> reproduce(const SelectionTrace& trace, int threads, const Progress& progress,
                                      const std::stop_token& stop) {
    const std::string name = trace.cachePolicy.empty() ? "keep-selected" : trace.cachePolicy;
    const auto policies = replayPolicies();
    const auto policy = std::find_if(policies.begin(), policies.end(), [&](const auto& p) { return p.name == name; });
    if (!trace.run.knows.has(Known::Hits)) return std::nullopt; // nothing to compare with
    if (trace.shared || trace.run.deviceSlots == 0 || policy == policies.end()) return std::nullopt;
    std::atomic<std::int64_t> requests = 0, differing = 0;
    forEachParallel(trace.pools.size(), threads, "comparing with the recording", progress, stop, [&](std::size_t i) {
        const PoolTrace& pool = trace.pools[i];
        const int slots = std::min(trace.run.deviceSlots, int(pool.visits.blockLimit()));
        const std::unique_ptr<ReplayPolicy> state = policy->make(pool.visits, slots);
        std::int64_t seen = 0, other = 0;
        replayPool(pool.visits, *state, [&](std::size_t request, const RequestOutcome& outcome) {
            if (pool.visits.counted(request) == 0) return;
            ++seen;
            other += outcome.hits != pool.recorded[request].hits || outcome.misses != pool.recorded[request].misses;
        });
        requests += seen;
        differing += other;
    });
    return Reproduction{name, requests, differing};
}

ReplayConfig timeOver(const SelectionTrace& trace, const CacheReplay& cache, const Link& link,
                      const std::optional<Prefetch>& prefetch) {
    check(link);
    if (prefetch) check(*prefetch);
    ReplayConfig config = onDemand(trace, cache, link);
    if (prefetch) config.prefetched = prefetchedOver(trace, cache, link, *prefetch, config);
    return config;
}

std::vector<ReplayConfig> replay(const SelectionTrace& trace, const ReplayOptions& options, const Progress& progress,
                                 const std::stop_token& stop) {
    const std::vector<const ReplayPolicyEntry*> policies = policiesOf(options);
    const std::vector<int> sizes = sizesOf(trace, options);
    const std::vector<Link> links = linksOf(trace, options);
    if (options.prefetch) check(*options.prefetch);
    const auto runs = double(policies.size() * sizes.size());
    std::vector<ReplayConfig> result;
    int done = 0;
    for (const ReplayPolicyEntry* policy : policies)
        for (const int size : sizes) {
            const auto part = [&](double fraction, std::string_view what) {
                report(progress, (done + fraction) / runs, what);
            };
            const CacheReplay cache = replayCache(trace, *policy, size, options.threads, part, stop);
            ++done;
            for (const Link& link : links) {
                ReplayConfig& config = result.emplace_back(timeOver(trace, cache, link, options.prefetch));
                config.policy = policy->name;
                config.cacheBlocks = size;
            }
        }
    return result;
}

std::vector<MissCurve> missCurves(const SelectionTrace& trace, CurvePolicy policy, int threads,
                                  const Progress& progress, const std::stop_token& stop) {
    std::vector<MissCurve> curves(trace.pools.size());
    forEachParallel(curves.size(), threads, "counting misses", progress, stop, [&](std::size_t i) {
        curves[i] = missCurve(trace.pools[i].visits, policy, trace.coldRequests(trace.pools[i]));
    });
    return curves;
}

MissCurve sampledMissCurve(const SelectionTrace& trace, CurvePolicy policy, const CurveSample& sample) {
    std::vector<const BlockVisits*> caches;
    for (const PoolTrace& pool : trace.pools) caches.push_back(&pool.visits);
    MissCurve curve = sampledMissCurve(caches, policy, sample);
    for (const PoolTrace& pool : trace.pools)
        for (std::size_t request = 0; request < pool.visits.requests(); ++request) {
            if (!trace.isCold(pool.steps[request])) continue;
            curve.coldReferences += pool.visits.counted(request);
            for (const BlockVisits::Entry& entry : pool.visits.entered(request))
                curve.coldCompulsory += entry.compulsory();
        }
    if (curve.coldReferences == 0) return curve;
    // References in cold steps that are not compulsory misses are estimated to miss as often as such references
    // elsewhere.
    const std::int64_t others = curve.references - curve.compulsory;
    const double share = others > 0 ? double(curve.coldReferences - curve.coldCompulsory) / double(others) : 0;
    for (const std::int64_t misses : curve.misses)
        curve.coldMisses.push_back(curve.coldCompulsory + std::llround(share * double(misses - curve.compulsory)));
    return curve;
}

} // namespace kvscope
