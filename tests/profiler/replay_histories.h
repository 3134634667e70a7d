// Histories of requests to a cache, made by chance, and what a replay does with them.
#pragma once

#include "profiler/replay/replay.h"

#include <cstdint>
#include <gtest/gtest.h>
#include <iterator>
#include <random>
#include <set>
#include <string_view>
#include <vector>

namespace kvscope::test {

using History = std::vector<std::vector<std::int32_t>>; // [request] its blocks, ascending

inline BlockVisits visitsOf(const History& history) {
    BlockVisits visits;
    for (const auto& wanted : history) visits.add(wanted);
    return visits;
}

/// Random sets of up to `largest` among `blocks` blocks; neighbours in time resemble each other.
inline History randomHistory(std::mt19937& random, int requests, int blocks, int largest) {
    History history;
    std::set<std::int32_t> set;
    for (int r = 0; r < requests; ++r) {
        const int changes = 1 + int(random() % 3u);
        for (int i = 0; i < changes && !set.empty(); ++i)
            set.erase(std::next(set.begin(), std::ptrdiff_t(random() % set.size())));
        const auto wanted = 1 + std::size_t(random() % unsigned(largest));
        while (set.size() < wanted) set.insert(std::int32_t(random() % unsigned(blocks)));
        history.emplace_back(set.begin(), set.end());
    }
    return history;
}

/// [request] misses
inline std::vector<int> missesOf(const History& history, std::string_view policy, int slots) {
    const BlockVisits visits = visitsOf(history);
    const auto state = findReplayPolicy(policy).make(visits, slots);
    std::vector<int> misses;
    replayPool(visits, *state, [&](std::size_t, const RequestOutcome& o) { misses.push_back(o.misses); });
    return misses;
}

/// Hits, misses and exposed time of the cold steps, request by request and transfer by transfer.
inline void expectColdParts(const SelectionTrace& trace, const ReplayPolicyEntry& policy, int slots) {
    const Link link{"some", 3, 7};
    const CacheReplay cache = replayCache(trace, policy, slots, 1);
    CacheCounts cold;
    std::int64_t exposed = 0;
    double tokens = 0, compute = 0;
    for (const PoolTrace& pool : trace.pools) {
        const auto state = policy.make(pool.visits, std::min(slots, int(pool.visits.blockLimit())));
        replayPool(pool.visits, *state, [&](std::size_t request, const RequestOutcome& outcome) {
            const int step = pool.steps[request];
            if (step >= 0 && trace.steps[std::size_t(step)].cold) cold.add(outcome);
        });
    }
    for (std::size_t i = 0; i < trace.steps.size(); ++i) {
        const ReplayStep& step = trace.steps[i];
        if (!step.cold) continue;
        for (int layer = 0; layer < trace.run.layers; ++layer)
            exposed += link.transferNs(cache.loads[i * std::size_t(trace.run.layers) + std::size_t(layer)] *
                                       trace.run.blockBytes);
        const bool measured = trace.run.timing == Timing::Measured;
        tokens += step.tokens, compute += double(step.durationNs - (measured ? step.exposedNs : 0));
    }
    const ReplayConfig config = timeOver(trace, cache, link);
    const RateSums all = rateSums(config, ColdSteps::Counted), warm = rateSums(config, ColdSteps::LeftOut);
    EXPECT_EQ(all.misses, cache.total.misses);
    EXPECT_EQ(all.exposedNs, config.exposedNs);
    EXPECT_EQ(all.misses - warm.misses, cold.misses) << policy.name << " " << slots;
    EXPECT_EQ(all.hits - warm.hits, cold.hits) << policy.name << " " << slots;
    EXPECT_EQ(all.exposedNs - warm.exposedNs, exposed) << policy.name << " " << slots;
    EXPECT_EQ(all.tokens - warm.tokens, tokens);
    EXPECT_NEAR(all.computeNs - warm.computeNs, compute, 1);
    EXPECT_DOUBLE_EQ(all.tokensPerSecond(), config.tokensPerSecond);
    for (const CurvePolicy curve : {CurvePolicy::Lru, CurvePolicy::Belady})
        if (policy.name == nameOf(curve)) {
            const MissCurve total = sum(missCurves(trace, curve, 1)), rest = total.warm();
            EXPECT_EQ(rest.at(slots), warm.misses) << policy.name << " " << slots;
            EXPECT_EQ(rest.references, warm.hits + warm.misses);
            EXPECT_EQ(total.compulsory - rest.compulsory, cold.compulsory);
        }
}

} // namespace kvscope::test
