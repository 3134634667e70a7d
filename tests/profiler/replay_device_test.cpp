// A pool for the whole device against a simulator that keeps sets and searches them, on random selections.
#include "base/error.h"
#include "profiler/replay/device_pool.h"
#include "tests/profiler/sql_rows.h"
#include "tests/support/places.h"

#include <algorithm>
#include <bit>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <tuple>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using ::testing::HasSubstr;

/// A block of a pool, numbered as the trace numbers its pools.
using Key = std::pair<std::size_t, int>;

/// What one layer of a step asks for.
struct Asked {
    int step = 0, layer = 0;
    std::set<std::int64_t> leave; // requests whose blocks leave before it
    std::set<Key> wanted;
    std::vector<Key> full; // get a slot behind it
    int newest = 0;
};

/// What a head selects in a step: blocks but the newest one, which may get full.
struct Selected {
    std::vector<std::int32_t> blocks;
    int newest = 0;
    bool dense = false, full = false;
};

struct Random {
    SelectionTrace trace;
    std::vector<Asked> asked;
    std::vector<std::int64_t> requestOf; // [pool]
};

/// Requests that come, pause and go, with selections that drift. Layers of a request decode in the same steps.
Random randomRun(unsigned seed) {
    std::mt19937 random(seed);
    const auto below = [&](int limit) { return int(random() % unsigned(limit)); };
    Random run;
    SelectionTrace& trace = run.trace;
    trace.run.runId = 1, trace.run.layers = 1 + below(3), trace.run.blockSize = 4, trace.run.blockBytes = 1024;
    const int heads = 1 + below(2), requests = 1 + below(4), steps = 12 + below(30);
    for (int step = 0; step < steps; ++step) trace.steps.push_back({step * 2 + 3, requests, 1000, 0});
    trace.layerTimes.assign(std::size_t(steps * trace.run.layers), {});
    std::vector<std::vector<bool>> decodes; // [request][step]
    for (int request = 0; request < requests; ++request) {
        const int first = below(steps - 5), last = first + 3 + below(steps - first - 3);
        const int pause = below(2) == 0 ? first + 1 + below(last - first) : steps, resume = pause + 1 + below(4);
        std::vector<bool>& of = decodes.emplace_back();
        for (int step = 0; step < steps; ++step)
            of.push_back(step >= first && step <= last && !(step >= pause && step < resume));
        if (pause < last) trace.leaves.push_back({trace.steps[std::size_t(pause)].step, request});
        if (last + 1 < steps) trace.leaves.push_back({trace.steps[std::size_t(last)].step + 1, request});
    }
    std::ranges::stable_sort(trace.leaves, {}, &RequestLeave::step);

    std::map<std::tuple<int, int, std::size_t>, Selected> selections; // step, layer, pool
    for (int layer = 0; layer < trace.run.layers; ++layer)
        for (int head = 0; head < heads; ++head)
            for (int request = 0; request < requests; ++request) {
                const std::size_t index = trace.pools.size();
                PoolTrace& pool = trace.pools.emplace_back();
                pool.sequence = request % 2, pool.layer = layer, pool.kvHead = head, pool.request = request;
                run.requestOf.push_back(request);
                int position = 8 + 7 * request, tail = -1;
                std::set<int> chosen;
                for (int step = 0; step < steps; ++step) {
                    if (!decodes[std::size_t(request)][std::size_t(step)]) continue;
                    const int newest = position / trace.run.blockSize;
                    while (int(chosen.size()) < std::min(3, newest)) chosen.insert(below(newest));
                    if (below(2) == 0) {
                        chosen.erase(std::next(chosen.begin(), below(int(chosen.size()))));
                        while (int(chosen.size()) < std::min(3, newest)) chosen.insert(below(newest));
                    }
                    std::vector<std::int32_t> blocks(chosen.begin(), chosen.end());
                    blocks.push_back(newest);
                    const bool opens = position % trace.run.blockSize == 0;
                    if (tail < 0 && !opens) { // the prompt's last block is there before the first step
                        pool.visits.add(std::vector<std::int32_t>{newest}, newest, false);
                        pool.steps.push_back(-1);
                    }
                    // A step in which the head attends to everything is no lookup.
                    const bool dense = below(8) == 0;
                    if (dense) {
                        blocks.clear();
                        for (int block = 0; block <= newest; ++block) blocks.push_back(block);
                    }
                    pool.visits.add(blocks, opens ? newest : -1, !dense);
                    pool.steps.push_back(step);
                    blocks.pop_back();
                    Selected& selected = selections[{step, layer, index}];
                    if (!dense) selected.blocks = blocks;
                    selected.newest = newest, selected.dense = dense;
                    tail = newest, ++position;
                    // Whether the block is full behind the step is seen at the next step of the head.
                    const auto& of = decodes[std::size_t(request)];
                    selected.full = position % trace.run.blockSize == 0 &&
                                    std::find(of.begin() + step + 1, of.end(), true) != of.end();
                }
            }
    std::size_t left = 0;
    for (const auto& [place, selection] : selections) {
        const auto& [step, layer, pool] = place;
        if (run.asked.empty() || run.asked.back().step != step || run.asked.back().layer != layer) {
            Asked& asked = run.asked.emplace_back();
            asked.step = step, asked.layer = layer;
            for (; left < trace.leaves.size() && trace.leaves[left].step <= trace.steps[std::size_t(step)].step; ++left)
                asked.leave.insert(trace.leaves[left].request);
        }
        Asked& asked = run.asked.back();
        asked.newest += !selection.dense;
        for (const std::int32_t block : selection.blocks) asked.wanted.insert({pool, block});
        if (selection.full) asked.full.emplace_back(pool, selection.newest);
    }
    return run;
}

struct Counted {
    std::int64_t hits = 0, misses = 0;
    std::map<std::pair<int, int>, int> loads; // by step and layer
    bool operator==(const Counted&) const = default;
};

/// When the block is asked for next, behind `at`; the largest number: never before it leaves with its request.
std::size_t nextUse(const Random& run, const Key& key, std::size_t at) {
    for (std::size_t i = at + 1; i < run.asked.size() && !run.asked[i].leave.contains(run.requestOf[key.first]); ++i)
        if (run.asked[i].wanted.contains(key)) return i;
    return std::numeric_limits<std::size_t>::max();
}

/// As the words say it: a set of blocks, and when there are too many, the one that leaves is searched.
Counted simulate(const Random& run, DevicePolicy policy, std::size_t slots) {
    std::map<Key, std::size_t> pool; // with the last use
    Counted counted;
    for (std::size_t i = 0; i < run.asked.size(); ++i) {
        const Asked& asked = run.asked[i];
        std::erase_if(pool, [&](const auto& held) { return asked.leave.contains(run.requestOf[held.first.first]); });
        counted.hits += asked.newest;
        for (const Key& key : asked.wanted) {
            const bool had = pool.contains(key);
            counted.hits += had, counted.misses += !had;
            if (!had) ++counted.loads[{asked.step, asked.layer}];
            pool[key] = i;
        }
        while (pool.size() > slots) {
            auto leaves = pool.end();
            for (auto held = pool.begin(); held != pool.end(); ++held) {
                if (asked.wanted.contains(held->first)) continue; // pinned
                const auto worse = [&](const auto& a, const auto& b) {
                    return policy == DevicePolicy::Lru ? a.second < b.second
                                                       : nextUse(run, a.first, i) > nextUse(run, b.first, i);
                };
                if (leaves == pool.end() || worse(*held, *leaves)) leaves = held;
            }
            pool.erase(leaves);
        }
        for (const Key& key : asked.full) pool[key] = i;
    }
    return counted;
}

Counted counted(const Random& run, const CacheReplay& replay) {
    Counted result{replay.total.hits, replay.total.misses, {}};
    for (std::size_t i = 0; i < replay.loads.size(); ++i)
        if (replay.loads[i] > 0)
            result.loads[{int(i) / run.trace.run.layers, int(i) % run.trace.run.layers}] = replay.loads[i];
    return result;
}

TEST(ReplayDevice, HasTheHitsOfASimulatorThatSearchesSets) {
    std::int64_t misses = 0, filled = 0, leaving = 0;
    for (unsigned seed = 0; seed < 300; ++seed) {
        SCOPED_TRACE(fmt::format("seed {}", seed));
        const Random run = randomRun(seed);
        const DeviceRequests requests(run.trace);
        ASSERT_EQ(requests.layers().size(), run.asked.size());
        std::size_t largest = 0;
        for (const Asked& asked : run.asked) {
            largest = std::max(largest, asked.wanted.size());
            filled += std::int64_t(asked.full.size()), leaving += std::int64_t(asked.leave.size());
        }
        ASSERT_EQ(requests.demand().largest, std::int64_t(largest));
        for (const std::size_t slots : {largest, largest + 1, largest + 5, 2 * largest, 4 * largest + 3}) {
            Counted lru;
            for (const DevicePolicy policy : {DevicePolicy::Lru, DevicePolicy::Belady}) {
                const CacheReplay replay = replayDevice(run.trace, requests, policy, std::int64_t(slots));
                const Counted have = counted(run, replay);
                ASSERT_EQ(have, simulate(run, policy, slots)) << nameOf(policy) << ", " << slots << " slots";
                if (policy == DevicePolicy::Lru)
                    lru = have;
                else
                    EXPECT_LE(have.misses, lru.misses);
                EXPECT_LE(replay.total.compulsory, have.misses);
                misses += have.misses;
            }
        }
    }
    EXPECT_GT(misses, 1000);
    EXPECT_GT(filled, 100);
    EXPECT_GT(leaving, 100);
}

/// The fewest misses of any policy that loads on demand: every choice of what stays is tried.
int fewestMisses(const Random& run, std::size_t slots) {
    std::map<std::set<Key>, int> states{{{}, 0}};
    for (const Asked& asked : run.asked) {
        std::map<std::set<Key>, int> after;
        for (const auto& [held, misses] : states) {
            std::vector<Key> others;
            int missed = 0;
            for (const Key& key : held)
                if (!asked.wanted.contains(key) && !asked.leave.contains(run.requestOf[key.first]))
                    others.push_back(key);
            for (const Key& key : asked.wanted)
                missed += !held.contains(key) || asked.leave.contains(run.requestOf[key.first]);
            const std::size_t room = slots - asked.wanted.size();
            for (unsigned keep = 0; keep < 1u << others.size(); ++keep) {
                // A choice that keeps fewer blocks than there is room for has at least as many misses.
                if (std::size_t(std::popcount(keep)) != std::min(room, others.size())) continue;
                std::set<Key> next = asked.wanted;
                for (std::size_t i = 0; i < others.size(); ++i)
                    if ((keep >> i & 1u) != 0) next.insert(others[i]);
                for (const Key& key : asked.full) next.insert(key);
                const auto [found, isNew] = after.try_emplace(std::move(next), misses + missed);
                if (!isNew) found->second = std::min(found->second, misses + missed);
            }
        }
        states = std::move(after);
    }
    int fewest = std::numeric_limits<int>::max();
    for (const auto& [held, misses] : states) fewest = std::min(fewest, misses);
    return fewest;
}

TEST(ReplayDevice, NoPolicyMissesLessThanBelady) {
    int compared = 0;
    for (unsigned seed = 0; seed < 400 && compared < 25; ++seed) {
        const Random run = randomRun(seed);
        const DeviceRequests requests(run.trace);
        if (requests.blockLimit() > 45 || run.asked.size() > 40) continue;
        const auto slots = std::size_t(requests.demand().largest + 1);
        if (slots > 7) continue;
        const CacheReplay replay = replayDevice(run.trace, requests, DevicePolicy::Belady, std::int64_t(slots));
        EXPECT_EQ(replay.total.misses, fewestMisses(run, slots)) << seed;
        ++compared;
    }
    EXPECT_GE(compared, 10);
}

// The sample was decoded with a pool that holds a fraction of a step: LRU has the newest blocks and nothing else, and
// the replay of such a pool has the server's own hits but for what the pool's exact size decides.
TEST(ReplayDevice, OfAServerThatThrashedHasTheServersOwnHits) {
    const TraceReader reader(test::source("resources/samples/h200-serving.kvtrace"));
    const SelectionTrace trace = loadSelectionTrace(reader, 2);
    const DeviceRequests requests(trace);
    const std::int64_t step = requests.demand().mostStep;
    const auto hitRate = [&](DevicePolicy policy, std::int64_t slotCount) {
        const CacheCounts counts = replayDevice(trace, requests, policy, slotCount).total;
        return double(counts.hits) / double(counts.hits + counts.misses);
    };
    const CacheCounts replayed = replayDevice(trace, requests, DevicePolicy::Lru, step / 4).total;
    const double hits = std::stod(test::value(test::source("resources/samples/h200-serving.kvtrace"),
                                              "SELECT sum(hits) FROM v_step WHERE run_id = 2"));
    EXPECT_NEAR(double(replayed.hits), hits, 0.002 * hits);
    EXPECT_GT(hitRate(DevicePolicy::Lru, step), 0.95);
    EXPECT_LT(hitRate(DevicePolicy::Lru, step * 3 / 4), 0.2);
    EXPECT_GT(hitRate(DevicePolicy::Belady, step * 7 / 8), 0.92);
}

TEST(ReplayDevice, GivesTheTableOfAReplay) {
    const Random run = randomRun(7);
    const DeviceRequests requests(run.trace);
    ReplayOptions options;
    options.threads = 1;
    const std::vector<ReplayConfig> configs = replayDevicePool(run.trace, requests, options);
    const std::vector<int> sizes = deviceSizes(requests.demand());
    ASSERT_EQ(configs.size(), 2 * sizes.size());
    EXPECT_TRUE(std::ranges::is_sorted(sizes));
    EXPECT_GE(sizes.front(), requests.demand().largest);
    EXPECT_EQ(sizes.back(), 2 * requests.demand().mostStep);
    EXPECT_EQ(configs.front().policy, "lru");
    EXPECT_EQ(configs.back().policy, "belady");
    for (const ReplayConfig& config : configs) {
        EXPECT_EQ(config.hits + config.misses, configs.front().hits + configs.front().misses);
        EXPECT_EQ(config.h2dBytes, config.misses * run.trace.run.blockBytes);
    }
    options.policies = {"fifo"};
    try {
        replayDevicePool(run.trace, requests, options);
        FAIL();
    } catch (const Error& error) {
        EXPECT_THAT(oneLine(error), HasSubstr("lru,belady"));
    }
    EXPECT_THROW(replayDevice(run.trace, requests, DevicePolicy::Lru, requests.demand().largest - 1), Error);
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
