#include "profiler/replay/replay.h"

#include "kernels/base/error.h"

#include <algorithm>
#include <cassert>
#include <fmt/format.h>

namespace kvscope {
namespace {

// Beyond these a transfer's nanoseconds would not fit their number.
constexpr double kSlowestLink = 1e-6, kLongestLatencyUs = 1e9;

/// The on-demand link model: each layer of each step loads its misses in one transfer, and attention waits for it.
ReplayConfig overLink(const SelectionTrace& trace, const CacheReplay& cache, const Link& link) {
    ReplayConfig config;
    config.linkGbps = link.gigabytesPerSecond;
    config.hits = cache.hits;
    config.misses = cache.misses;
    config.compulsory = cache.compulsory;
    for (const std::int32_t loads : cache.loads) {
        const std::int64_t bytes = loads * trace.run.blockBytes;
        config.h2dBytes += bytes;
        config.exposedNs += link.transferNs(bytes);
    }
    // Modelled link time never passed on the clock; measured link time did and is replaced.
    const bool measured = trace.run.timing == nameOf(Timing::Measured);
    double ns = double(config.exposedNs), tokens = 0;
    for (const ReplayStep& step : trace.steps) {
        ns += std::max(0.0, double(step.durationNs) - (measured ? double(step.exposedNs) : 0.0));
        tokens += step.tokens;
    }
    config.tokensPerSecond = ns > 0 ? tokens * 1e9 / ns : 0;
    return config;
}

std::vector<int> sizesOf(const SelectionTrace& trace, const ReplayOptions& options) {
    if (!options.cacheBlocks.empty()) return options.cacheBlocks;
    return {std::max(trace.run.deviceSlots, int(trace.largestSet))};
}

std::vector<Link> linksOf(const SelectionTrace& trace, const ReplayOptions& options) {
    std::vector<Link> links = options.links;
    if (links.empty() && trace.run.linkGbps > 0)
        links.push_back({"recorded", trace.run.linkGbps, trace.run.linkLatencyUs});
    if (links.empty()) links.emplace_back();
    for (const Link& link : links)
        if (!(link.gigabytesPerSecond >= kSlowestLink) || !(link.latencyUs >= 0 && link.latencyUs <= kLongestLatencyUs))
            throw Error(ErrorKind::BadInput,
                        fmt::format("a link of {:g} GB/s with {:g} us per transfer cannot be replayed",
                                    link.gigabytesPerSecond, link.latencyUs),
                        fmt::format("use --link with at least {:g} GB/s", kSlowestLink));
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

void replayHead(const HeadTrace& head, ReplayPolicy& policy, int slots,
                const std::function<void(const BlockRequest&, const RequestOutcome&)>& seen) {
    assert(std::size_t(slots) >= head.largestSet());
    const auto blocks = std::size_t(head.blockLimit());
    std::vector<std::int32_t> resident(std::size_t(slots), -1), slotOf(blocks, -1);
    std::vector<std::uint8_t> pinned(std::size_t(slots), 0), usedBefore(blocks, 0);
    policy.begin(head, slots);
    if (head.tail >= 0) {
        resident[0] = head.tail;
        slotOf[std::size_t(head.tail)] = 0;
    }
    for (std::size_t r = 0; r < head.requests.size(); ++r) {
        const BlockRequest& request = head.requests[r];
        const std::size_t end = request.first + request.count;
        RequestOutcome outcome;
        const auto use = [&](std::size_t reference, bool entered) {
            const std::int32_t block = head.blocks[reference];
            const int slot = slotOf[std::size_t(block)];
            pinned[std::size_t(slot)] = 1;
            usedBefore[std::size_t(block)] = 1;
            policy.use({int(r), reference, block, slot, entered});
        };
        std::fill(pinned.begin(), pinned.end(), 0);
        for (std::size_t i = request.first; i < end; ++i)
            if (slotOf[std::size_t(head.blocks[i])] >= 0) {
                ++outcome.hits;
                use(i, false);
            }
        for (std::size_t i = request.first; i < end; ++i) {
            const auto block = std::size_t(head.blocks[i]);
            if (slotOf[block] >= 0) continue;
            const auto slot = std::size_t(policy.place(head.blocks[i], resident, pinned));
            if (resident[slot] >= 0) slotOf[std::size_t(resident[slot])] = -1;
            resident[slot] = head.blocks[i];
            slotOf[block] = int(slot);
            if (head.blocks[i] == request.fresh)
                ++outcome.hits;
            else
                ++outcome.misses, outcome.compulsory += usedBefore[block] == 0;
            use(i, true);
        }
        seen(request, outcome);
    }
}

CacheReplay replayCache(const SelectionTrace& trace, const ReplayPolicyEntry& policy, int cacheBlocks) {
    if (cacheBlocks < 0 || std::size_t(cacheBlocks) < trace.largestSet)
        throw Error(ErrorKind::BadInput,
                    fmt::format("a cache of {} block slots per KV head is too small: run {} attends {} blocks at a "
                                "time",
                                cacheBlocks, trace.run.runId, trace.largestSet),
                    fmt::format("give at least --cache-blocks {}", trace.largestSet));
    CacheReplay result;
    const auto layers = std::size_t(trace.run.layers);
    result.loads.assign(trace.steps.size() * layers, 0);
    for (const HeadTrace& head : trace.heads) {
        // More slots than blocks exist would stay empty.
        const int slots = std::min(cacheBlocks, int(head.blockLimit()));
        const std::unique_ptr<ReplayPolicy> state = policy.make();
        replayHead(head, *state, slots, [&](const BlockRequest& request, const RequestOutcome& outcome) {
            result.loads[std::size_t(request.step) * layers + std::size_t(head.layer)] += outcome.misses;
            if (!request.selected) return;
            result.hits += outcome.hits;
            result.misses += outcome.misses;
            result.compulsory += outcome.compulsory;
        });
    }
    return result;
}

std::vector<ReplayConfig> replay(const SelectionTrace& trace, const ReplayOptions& options) {
    const std::vector<const ReplayPolicyEntry*> policies = policiesOf(options);
    const std::vector<int> sizes = sizesOf(trace, options);
    const std::vector<Link> links = linksOf(trace, options);
    std::vector<ReplayConfig> result;
    for (const ReplayPolicyEntry* policy : policies)
        for (const int size : sizes) {
            const CacheReplay cache = replayCache(trace, *policy, size);
            for (const Link& link : links) {
                ReplayConfig& config = result.emplace_back(overLink(trace, cache, link));
                config.policy = policy->name;
                config.cacheBlocks = size;
            }
        }
    return result;
}

} // namespace kvscope
