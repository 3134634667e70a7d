// A replay of the recorded configuration is the recording; other configurations obey what is known about caches.
#include "profiler/replay/replay.h"

#include "base/error.h"
#include "core/prompt/prompts.h"
#include "core/session/decode_session.h"
#include "profiler/read/summary.h"
#include "profiler/record/recorder.h"
#include "tests/profiler/sql_rows.h"
#include "tests/profiler/synthetic_run.h"
#include "tests/profiler/temporary_folder.h"
#include "tests/support/refusal.h"

#include <algorithm>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <map>
#include <numeric>
#include <random>
#include <set>

namespace kvscope {
namespace {

using testing::HasSubstr;

struct Recording {
    const char* name;
    const char* method;
    std::optional<std::int64_t> slots;
    const char* policy; // "": the engine's choice
    int promptTokens = 1500;
    int sequences = 1;
    std::vector<std::pair<std::string, std::string>> settings;
};

void PrintTo(const Recording& recording, std::ostream* out) { *out << recording.name; }

SessionSummary record(const Recording& recording, const std::string& file) {
    static const std::shared_ptr<const Model> model = Model::load(kDefaultModel);
    std::vector<std::vector<std::int32_t>> prompts;
    for (int s = 0; s < recording.sequences; ++s) {
        NeedleOptions needle;
        needle.tokens = 2000;
        needle.seed = std::uint64_t(s) + 1;
        prompts.push_back(model->tokenizer().encode(makeNeedlePrompt(model->tokenizer(), needle).text));
        prompts.back().resize(std::size_t(recording.promptTokens + 37 * s));
    }
    SessionOptions options;
    options.method = recording.method;
    options.settings = recording.settings;
    options.maxNewTokens = 40;
    options.stopAtEos = false;
    options.deviceKvBlocks = recording.slots;
    options.cachePolicy = recording.policy;
    Recorder recorder(file, {RecordLevel::Selections, false, std::size_t(256) << 20, {}});
    DecodeSession session(model, prompts, options, recorder);
    session.prefill();
    while (session.step()) {
    }
    session.end(RunStatus::Finished);
    recorder.flush();
    return session.summary();
}

class RecordedReplay : public testing::TestWithParam<Recording> {
protected:
    void SetUp() override { summary = record(GetParam(), file); }
    test::Folder folder;
    std::string file = (folder / "run.kvtrace").string();
    SessionSummary summary;
};

TEST_P(RecordedReplay, OfTheSameCacheIsTheRecording) {
    const TraceReader reader(file);
    const SelectionTrace trace = loadSelectionTrace(reader, 1);
    ASSERT_FALSE(trace.cachePolicy.empty());
    ASSERT_GT(trace.misses, 0);
    EXPECT_EQ(trace.hits, summary.hits);
    EXPECT_EQ(trace.misses, summary.misses);

    const ReplayPolicyEntry& policy = findReplayPolicy(trace.cachePolicy);
    std::size_t compared = 0, denseRequests = 0;
    for (const PoolTrace& pool : trace.pools) {
        const bool tail = (GetParam().promptTokens + 37 * pool.sequence) % trace.run.blockSize != 0;
        EXPECT_EQ(pool.steps[0], tail ? -1 : 0);
        const auto state = policy.make(pool.visits, trace.run.deviceSlots);
        replayPool(pool.visits, *state, [&](std::size_t request, const RequestOutcome& got) {
            if (pool.steps[request] < 0) return;
            if (pool.visits.counted(request) == 0) {
                ++denseRequests;
                return;
            }
            ++compared;
            EXPECT_EQ(got.hits, pool.recorded[request].hits)
                << "step " << pool.steps[request] << " layer " << pool.layer << " sequence " << pool.sequence
                << " head " << pool.kvHead;
            EXPECT_EQ(got.misses, pool.recorded[request].misses);
        });
    }
    std::size_t rows = 0;
    for (int layer = 0; layer < trace.run.layers; ++layer)
        for (int sequence = 0; sequence < trace.run.sequences; ++sequence)
            for (int head = 0; head < trace.run.kvHeads; ++head)
                rows += reader.selections(1, layer, sequence, head).size();
    EXPECT_EQ(compared, rows);
    EXPECT_EQ(denseRequests > 0, !GetParam().settings.empty());
    const auto reproduction = reproduce(trace);
    ASSERT_TRUE(reproduction);
    EXPECT_EQ(reproduction->policy, trace.cachePolicy);
    EXPECT_EQ(reproduction->requests, std::int64_t(rows));
    EXPECT_EQ(reproduction->differing, 0);

    ReplayOptions options;
    options.policies = {trace.cachePolicy};
    const auto configs = replay(trace, options);
    ASSERT_EQ(configs.size(), 1u);
    EXPECT_EQ(configs[0].cacheBlocks, trace.run.deviceSlots);
    EXPECT_EQ(configs[0].hits, summary.hits);
    EXPECT_EQ(configs[0].misses, summary.misses);
    EXPECT_EQ(configs[0].h2dBytes, summary.h2dBytes);
    EXPECT_EQ(configs[0].exposedNs, summary.exposedNs);
    EXPECT_EQ(trace.h2dBytes, summary.h2dBytes);
    EXPECT_EQ(trace.exposedNs, summary.exposedNs);
    EXPECT_DOUBLE_EQ(configs[0].tokensPerSecond,
                     double(summary.decodedTokens) * 1e9 / double(summary.decodeNs + summary.exposedNs));
}

TEST_P(RecordedReplay, BeladyAndLargerCachesAreNeverWorse) {
    const SelectionTrace trace = loadSelectionTrace(TraceReader(file), 1);
    ReplayOptions options;
    const int smallest = trace.largest;
    options.cacheBlocks = {smallest, smallest + 1, smallest + 2, smallest + 4, smallest + 100};
    options.prefetch = Prefetch{1, 1};
    std::map<std::string, std::vector<ReplayConfig>> byPolicy;
    for (const ReplayConfig& config : replay(trace, options)) byPolicy[config.policy].push_back(config);
    ASSERT_EQ(byPolicy.size(), replayPolicies().size());
    for (const auto& [policy, configs] : byPolicy)
        for (std::size_t i = 0; i < configs.size(); ++i) {
            SCOPED_TRACE(policy);
            EXPECT_EQ(configs[i].hits + configs[i].misses, trace.hits + trace.misses);
            EXPECT_GE(configs[i].misses, configs[i].compulsory);
            EXPECT_GE(configs[i].h2dBytes, byPolicy["belady"][i].h2dBytes);
            EXPECT_LE(configs[i].prefetched->exposedNs, configs[i].exposedNs);
            EXPECT_EQ(configs[i].prefetched->h2dBytes, configs[i].h2dBytes);
            EXPECT_GE(configs[i].prefetched->tokensPerSecond, configs[i].tokensPerSecond);
            if (i == 0 || (policy != "lru" && policy != "belady")) continue;
            EXPECT_LE(configs[i].h2dBytes, configs[i - 1].h2dBytes);
        }
    std::int64_t layers = 0, steps = 0;
    for (const LayerTime& time : trace.layerTimes) layers += time.beforeNs + time.afterNs;
    for (const ReplayStep& step : trace.steps) steps += step.durationNs;
    EXPECT_LE(layers, steps);
    EXPECT_GT(layers, steps / 4);
    for (const char* policy : {"lru", "fifo", "lfu", "arc", "belady"}) // everything fits: only first uses miss
        EXPECT_EQ(byPolicy[policy].back().misses, byPolicy[policy].back().compulsory) << policy;
}

TEST_P(RecordedReplay, CurvesHaveTheMissesOfEverySize) {
    const SelectionTrace trace = loadSelectionTrace(TraceReader(file), 1);
    for (const CurvePolicy policy : {CurvePolicy::Lru, CurvePolicy::Belady}) {
        const std::vector<MissCurve> curves = missCurves(trace, policy);
        ASSERT_EQ(curves.size(), trace.pools.size());
        const MissCurve total = sum(curves);
        EXPECT_EQ(total.smallest, trace.largest);
        EXPECT_EQ(total.references, trace.hits + trace.misses);
        for (int slots = total.smallest; slots <= total.largest() + 1; ++slots)
            EXPECT_EQ(total.at(slots), replayCache(trace, findReplayPolicy(nameOf(policy)), slots).total.misses)
                << slots;
        if (trace.cachePolicy == nameOf(policy)) {
            EXPECT_EQ(total.at(trace.run.deviceSlots), summary.misses);
        }
    }
}

TEST_P(RecordedReplay, AnotherCacheMissesWhatDecodingWithItMisses) {
    const SelectionTrace trace = loadSelectionTrace(TraceReader(file), 1);
    for (const auto& [policy, more] : {std::pair("lru", 3), std::pair("keep-selected", 3)}) {
        Recording other = GetParam();
        other.slots = trace.run.deviceSlots + more;
        other.policy = policy;
        const std::string otherFile = (folder / fmt::format("{}-{}.kvtrace", policy, more)).string();
        const SessionSummary decoded = record(other, otherFile);
        ReplayOptions options;
        options.policies = {policy};
        options.cacheBlocks = {int(*other.slots)};
        const ReplayConfig predicted = replay(trace, options).front();
        EXPECT_EQ(predicted.misses, decoded.misses) << policy << " " << *other.slots;
        EXPECT_EQ(predicted.h2dBytes, decoded.h2dBytes) << policy << " " << *other.slots;
        EXPECT_EQ(predicted.exposedNs, decoded.exposedNs) << policy << " " << *other.slots;
    }
}

/// Hits, misses and exposed time of the cold steps, request by request and transfer by transfer.
void expectColdParts(const SelectionTrace& trace, const ReplayPolicyEntry& policy, int slots) {
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

TEST_P(RecordedReplay, ColdStepsAreThoseOfTheReaderAndLeaveTheRates) {
    const TraceReader reader(file);
    const SelectionTrace trace = loadSelectionTrace(reader, 1);
    std::vector<int> cold;
    for (const ReplayStep& step : trace.steps)
        if (step.cold) cold.push_back(step.step);
    EXPECT_EQ(cold, coldStepsOf(reader, 1));
    EXPECT_FALSE(cold.empty());
    for (const ReplayPolicyEntry& policy : replayPolicies())
        for (const int slots : {trace.largest, trace.largest + 3}) expectColdParts(trace, policy, slots);
    const SelectionTrace shared = withSharedPools(trace);
    expectColdParts(shared, findReplayPolicy("lru"), shared.largest + 1);
    const RunSummary expected = summarize(reader, 1);
    EXPECT_DOUBLE_EQ(double(trace.hits - trace.coldHits) /
                         double(trace.hits + trace.misses - trace.coldHits - trace.coldMisses),
                     expected.hitRate);
}

TEST_P(RecordedReplay, TimeOverALinkIsThatOfEveryTransfer) {
    const SelectionTrace trace = loadSelectionTrace(TraceReader(file), 1);
    const Link links[] = {trace.link, {"slow", 0.7, 3.3}, {"fast", 450, 0}};
    const Prefetch prefetch{1, 0.75};
    for (const char* policy : {"keep-selected", "lru"}) {
        const int slots = trace.largest + 1;
        const CacheReplay cache = replayCache(trace, findReplayPolicy(policy), slots);
        CacheCounts pools;
        for (const CacheCounts& counts : cache.pools) pools += counts;
        EXPECT_EQ(pools.hits, cache.total.hits);
        EXPECT_EQ(pools.misses, cache.total.misses);
        EXPECT_EQ(pools.compulsory, cache.total.compulsory);
        ReplayOptions options;
        options.policies = {policy};
        options.cacheBlocks = {slots};
        options.links.assign(std::begin(links), std::end(links));
        options.prefetch = prefetch;
        const std::vector<ReplayConfig> replayed = replay(trace, options);
        for (std::size_t i = 0; i < replayed.size(); ++i) {
            std::int64_t bytes = 0, ns = 0;
            for (const std::int32_t blocks : cache.loads) {
                bytes += blocks * trace.run.blockBytes;
                ns += links[i].transferNs(blocks * trace.run.blockBytes);
            }
            const ReplayConfig timed = timeOver(trace, cache, links[i], prefetch);
            EXPECT_EQ(timed.h2dBytes, bytes);
            EXPECT_EQ(timed.exposedNs, ns);
            EXPECT_EQ(timed.misses, replayed[i].misses);
            EXPECT_EQ(timed.exposedNs, replayed[i].exposedNs);
            EXPECT_EQ(timed.tokensPerSecond, replayed[i].tokensPerSecond);
            EXPECT_EQ(timed.prefetched->exposedNs, replayed[i].prefetched->exposedNs);
        }
    }
}

const std::vector<Recording> kRecordings{
    {"nosa", "nosa", {}, "", 1500, 1, {}},
    {"nosa_lru_24", "nosa", 24, "lru", 1500, 1, {}},
    {"infllmv2", "infllmv2", {}, "", 1500, 1, {}},
    {"infllmv2_lru_24", "infllmv2", 24, "lru", 1500, 1, {}},
    {"quest", "quest", {}, "", 1500, 1, {}},
    {"quest_lru_24", "quest", 24, "lru", 1500, 1, {}},
    {"infllmv2_keep_selected_24", "infllmv2", 24, "keep-selected", 1500, 1, {}},
    {"infllmv2_lru_18", "infllmv2", 18, "lru", 1500, 1, {}},
    {"full_last_block", "infllmv2", {}, "", 1536, 1, {}}, // the first decode step opens a block
    {"batch", "nosa", 18, "", 1500, 3, {}},
    {"dense_below_1520", "infllmv2", {}, "lru", 1500, 2, {{"dense_len", "1520"}}},
};
INSTANTIATE_TEST_SUITE_P(Recordings, RecordedReplay, testing::ValuesIn(kRecordings),
                         [](const auto& parameter) { return std::string(parameter.param.name); });

using History = std::vector<std::vector<std::int32_t>>; // [request] its blocks, ascending

BlockVisits visitsOf(const History& history) {
    BlockVisits visits;
    for (const auto& wanted : history) visits.add(wanted);
    return visits;
}

/// Random sets of up to `largest` among `blocks` blocks; neighbours in time resemble each other.
History randomHistory(std::mt19937& random, int requests, int blocks, int largest) {
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
std::vector<int> missesOf(const History& history, std::string_view policy, int slots) {
    const BlockVisits visits = visitsOf(history);
    const auto state = findReplayPolicy(policy).make(visits, slots);
    std::vector<int> misses;
    replayPool(visits, *state, [&](std::size_t, const RequestOutcome& o) { misses.push_back(o.misses); });
    return misses;
}

/// The same by the book: the block that is in no request and has the lowest rank leaves, of equals the lowest.
struct Use {
    int loaded = 0, last = 0, count = 0; // requests
};
template <class RankOf> std::vector<int> byTheBook(const History& history, int slots, const RankOf& rankOf) {
    std::map<std::int32_t, Use> resident;
    std::vector<int> result;
    for (int r = 0; r < int(history.size()); ++r) {
        const auto& wanted = history[std::size_t(r)];
        std::vector<std::pair<decltype(rankOf(Use{})), std::int32_t>> idle;
        for (const auto& [block, use] : resident)
            if (!std::binary_search(wanted.begin(), wanted.end(), block)) idle.emplace_back(rankOf(use), block);
        std::sort(idle.begin(), idle.end());
        int misses = 0;
        for (const std::int32_t block : wanted) {
            const auto [entry, isNew] = resident.try_emplace(block, Use{r, r, 0});
            misses += isNew;
            entry->second.last = r;
            ++entry->second.count;
        }
        for (std::size_t i = 0; int(resident.size()) > slots; ++i) resident.erase(idle.at(i).second);
        result.push_back(misses);
    }
    return result;
}

TEST(Replay, PoliciesAreTheOnesOfTheBook) {
    std::mt19937 random(23);
    for (int round = 0; round < 30; ++round) {
        const History history = randomHistory(random, 300, 40, 12);
        for (int slots = visitsOf(history).largest(); slots <= 42; slots += 2) {
            EXPECT_EQ(missesOf(history, "lru", slots), byTheBook(history, slots, [](const Use& u) { return u.last; }));
            EXPECT_EQ(missesOf(history, "fifo", slots),
                      byTheBook(history, slots, [](const Use& u) { return u.loaded; }));
            EXPECT_EQ(missesOf(history, "lfu", slots),
                      byTheBook(history, slots, [](const Use& u) { return std::pair(u.count, u.last); }));
        }
    }
}

/// Adaptive replacement as its paper writes it, one block at a time. Lists: most recent first.
std::vector<int> adaptiveByTheBook(const std::vector<std::int32_t>& blocks, int c) {
    using List = std::vector<std::int32_t>;
    List t1, t2, b1, b2;
    int p = 0;
    std::vector<int> misses;
    const auto take = [](List& list, std::int32_t block) { return std::erase(list, block) > 0; };
    const auto front = [](List& list, std::int32_t block) { list.insert(list.begin(), block); };
    const auto size = [](const List& list) { return int(list.size()); };
    for (const std::int32_t x : blocks) {
        const auto replace = [&](bool inB2) {
            const bool recent = !t1.empty() && (size(t1) > p || (inB2 && size(t1) == p));
            List &from = recent ? t1 : t2, &to = recent ? b1 : b2;
            front(to, from.back());
            from.pop_back();
        };
        misses.push_back(0);
        if (take(t1, x) || take(t2, x)) {
            front(t2, x);
            continue;
        }
        misses.back() = 1;
        const bool inB1 = std::count(b1.begin(), b1.end(), x) > 0, inB2 = std::count(b2.begin(), b2.end(), x) > 0;
        if (inB1 || inB2) {
            if (inB1) p = std::min(c, p + std::max(1, size(b2) / size(b1)));
            if (inB2) p = std::max(0, p - std::max(1, size(b1) / size(b2)));
            replace(inB2);
            take(b1, x), take(b2, x);
            front(t2, x);
            continue;
        }
        if (size(t1) + size(b1) == c) {
            if (size(t1) < c)
                b1.pop_back(), replace(false);
            else
                t1.pop_back();
        } else if (size(t1) + size(t2) + size(b1) + size(b2) >= c) {
            if (size(t1) + size(t2) + size(b1) + size(b2) == 2 * c) b2.pop_back();
            replace(false);
        }
        front(t1, x);
    }
    return misses;
}

TEST(Replay, ArcIsTheOneOfThePaperWhenARequestIsOneBlock) {
    std::mt19937 random(29);
    for (int round = 0; round < 40; ++round) {
        History history;
        std::vector<std::int32_t> blocks;
        for (int r = 0; r < 600; ++r) { // phases of loops and of repeated use; never the same block twice in a row
            const bool loop = (r / 70 + round) % 2 == 0;
            std::int32_t block = loop ? r % 17 : std::int32_t(random() % 6u);
            if (!blocks.empty() && block == blocks.back()) block = (block + 1) % 17;
            blocks.push_back(block);
            history.push_back({block});
        }
        for (int slots = 2; slots <= 18; slots += 2)
            EXPECT_EQ(missesOf(history, "arc", slots), adaptiveByTheBook(blocks, slots)) << slots;
    }
}

TEST(Replay, NoPolicyBeatsBeladyAndSpaceDoesNotHurtLruAndBelady) {
    std::mt19937 random(11);
    const auto count = [](const std::vector<int>& misses) { return std::accumulate(misses.begin(), misses.end(), 0); };
    for (int round = 0; round < 40; ++round) {
        const History history = randomHistory(random, 200, 40, 12);
        std::map<std::string, int> previous;
        for (int slots = visitsOf(history).largest(); slots <= 44; slots += 3) {
            const int bound = count(missesOf(history, "belady", slots));
            for (const ReplayPolicyEntry& policy : replayPolicies()) {
                const int misses = count(missesOf(history, policy.name, slots));
                EXPECT_GE(misses, bound) << policy.name << " with " << slots;
                if (policy.name != "lru" && policy.name != "belady") continue;
                const auto entry = previous.try_emplace(policy.name, misses).first;
                EXPECT_LE(misses, entry->second) << policy.name << " with " << slots;
                entry->second = misses;
            }
        }
    }
}

/// One block per request: what each policy does is then the textbook's.
std::vector<int> missedRequests(const std::string& policy, int slots, const std::vector<std::int32_t>& blocks) {
    History history;
    for (const std::int32_t block : blocks) history.push_back({block});
    std::vector<int> missed;
    const std::vector<int> misses = missesOf(history, policy, slots);
    for (int r = 0; r < int(misses.size()); ++r)
        if (misses[std::size_t(r)] > 0) missed.push_back(r);
    return missed;
}

TEST(Replay, PoliciesLetGoWhatTheyShould) {
    using testing::ElementsAre;
    // After 0 1 2 0 comes 3: fifo lets 0 go, lru 1, lfu 1 (of 1 and 2 the older), keep-selected whatever is in slot 0.
    const std::vector<std::int32_t> blocks{0, 1, 2, 0, 3, 0, 1};
    EXPECT_THAT(missedRequests("fifo", 3, blocks), ElementsAre(0, 1, 2, 4, 5, 6));
    EXPECT_THAT(missedRequests("lru", 3, blocks), ElementsAre(0, 1, 2, 4, 6));
    EXPECT_THAT(missedRequests("lfu", 3, blocks), ElementsAre(0, 1, 2, 4, 6));
    EXPECT_THAT(missedRequests("belady", 3, blocks), ElementsAre(0, 1, 2, 4));
    EXPECT_THAT(missedRequests("keep-selected", 3, blocks), ElementsAre(0, 1, 2, 3, 4, 5, 6));
    // A scan of blocks used once: lfu and arc keep 0 and 1, which were used twice, lru does not.
    const std::vector<std::int32_t> scan{0, 1, 0, 1, 2, 3, 4, 5, 6, 0, 1};
    EXPECT_THAT(missedRequests("lru", 3, scan), ElementsAre(0, 1, 4, 5, 6, 7, 8, 9, 10));
    EXPECT_THAT(missedRequests("lfu", 3, scan), ElementsAre(0, 1, 4, 5, 6, 7, 8));
    EXPECT_THAT(missedRequests("arc", 3, scan), ElementsAre(0, 1, 4, 5, 6, 7, 8));
}

TEST(Replay, ABegunBlockIsAHitAndWhatIsUncountedStillFillsTheCache) {
    BlockVisits visits;
    const History wanted{{3}, {0, 3}, {1, 3}, {0, 4}, {3, 4}};
    for (std::size_t r = 0; r < wanted.size(); ++r) visits.add(wanted[r], r == 0 ? 3 : r == 3 ? 4 : -1, r > 0);
    for (const ReplayPolicyEntry& policy : replayPolicies()) {
        SCOPED_TRACE(policy.name);
        std::vector<RequestOutcome> outcomes;
        const auto state = policy.make(visits, 2);
        replayPool(visits, *state, [&](std::size_t, const RequestOutcome& o) { outcomes.push_back(o); });
        const int hits[] = {0, 1, 1, 1, 1}, misses[] = {0, 1, 1, 1, 1}, compulsory[] = {0, 1, 1, 0, 0};
        for (std::size_t r = 0; r < wanted.size(); ++r) {
            EXPECT_EQ(outcomes[r].hits, hits[r]) << r;
            EXPECT_EQ(outcomes[r].misses, misses[r]) << r;
            EXPECT_EQ(outcomes[r].loads, misses[r]) << r;
            EXPECT_EQ(outcomes[r].compulsory, compulsory[r]) << r;
        }
    }
}

/// A trace of these histories, one sequence each, one layer, one head.
SelectionTrace traceOf(const std::vector<History>& histories) {
    SelectionTrace trace;
    trace.run.layers = trace.run.kvHeads = 1;
    trace.run.sequences = int(histories.size());
    for (const History& history : histories) {
        PoolTrace& pool = trace.pools.emplace_back();
        pool.sequence = int(trace.pools.size()) - 1;
        pool.visits = visitsOf(history);
        while (pool.steps.size() < history.size()) pool.steps.push_back(int(pool.steps.size()));
        while (trace.steps.size() < history.size()) trace.steps.push_back({int(trace.steps.size()) + 1, 1, 0, 0});
        trace.largest = std::max(trace.largest, pool.visits.largest());
    }
    return trace;
}

/// As in a serving run, where a step is cold for one request and in the middle of another.
TEST(Replay, ColdStepsMayComeInTheMiddle) {
    std::mt19937 random(7);
    for (int round = 0; round < 20; ++round) {
        SelectionTrace trace = traceOf({randomHistory(random, 60, 30, 8), randomHistory(random, 60, 30, 8)});
        for (ReplayStep& step : trace.steps) step.cold = random() % 5 == 0;
        for (const ReplayPolicyEntry& policy : replayPolicies())
            for (const int slots : {trace.largest, trace.largest + 4, 40}) expectColdParts(trace, policy, slots);
        const MissCurve sampled = sampledMissCurve(trace, CurvePolicy::Lru),
                        exact = sum(missCurves(trace, CurvePolicy::Lru, 1));
        EXPECT_EQ(sampled.warm().references, exact.warm().references);
        EXPECT_EQ(sampled.warm().compulsory, exact.warm().compulsory);
        EXPECT_NEAR(sampled.warm().ratio(trace.largest), exact.warm().ratio(trace.largest), 0.15);
    }
}

TEST(Replay, ASharedPoolIsOneCacheForTheBlocksOfAllSequences) {
    std::mt19937 random(31);
    for (int round = 0; round < 10; ++round) {
        const History a = randomHistory(random, 60, 20, 6), b = randomHistory(random, 45, 20, 5);
        const SelectionTrace shared = withSharedPools(traceOf({a, b}));
        ASSERT_EQ(shared.pools.size(), 1u);
        EXPECT_EQ(shared.pools[0].sequence, -1);
        History both; // b ends earlier; its blocks come after a's
        const std::int32_t shift = visitsOf(a).blockLimit();
        for (std::size_t r = 0; r < a.size(); ++r) {
            both.push_back(a[r]);
            if (r < b.size())
                for (const std::int32_t block : b[r]) both.back().push_back(block + shift);
        }
        ASSERT_EQ(shared.largest, visitsOf(both).largest());
        for (const ReplayPolicyEntry& policy : replayPolicies())
            for (int slots = shared.largest; slots < 40; slots += 4) {
                const auto state = policy.make(shared.pools[0].visits, slots);
                std::vector<int> misses;
                replayPool(shared.pools[0].visits, *state,
                           [&](std::size_t, const RequestOutcome& o) { misses.push_back(o.misses); });
                EXPECT_EQ(misses, missesOf(both, policy.name, slots)) << policy.name << " with " << slots;
            }
    }
}

TEST(Replay, ASequenceThatMissesAStepReturnsToASharedPool) {
    SelectionTrace trace = traceOf({{{0, 1}, {0, 2}, {0, 2}, {1, 2}}, {{0}, {0}}});
    trace.pools[1].steps = {0, 3}; // not in steps 1 and 2
    const SelectionTrace shared = withSharedPools(trace);
    const BlockVisits& visits = shared.pools[0].visits;
    const auto blocks = [](std::span<const BlockVisits::Entry> entries) {
        std::vector<std::int32_t> result;
        for (const BlockVisits::Entry& e : entries) result.push_back(e.block());
        return result;
    };
    ASSERT_EQ(visits.requests(), 4u);
    EXPECT_THAT(blocks(visits.entered(0)), testing::ElementsAre(0, 1, 3));
    EXPECT_THAT(visits.left(1), testing::ElementsAre(1, 3));
    EXPECT_THAT(visits.left(2), testing::IsEmpty());
    EXPECT_THAT(blocks(visits.entered(3)), testing::ElementsAre(1, 3));
    EXPECT_FALSE(visits.entered(3)[1].first());
    EXPECT_EQ(visits.size(3), 3);
    EXPECT_EQ(visits.references(), 10);
}

TEST(Replay, TimesFollowTheLinkAndReplaceMeasuredOnes) {
    SelectionTrace trace;
    trace.run.layers = 2;
    trace.run.blockBytes = 1'000'000;
    trace.run.timing = Timing::Modelled;
    trace.steps = {{1, 2, 5'000'000, 1'000'000}, {2, 2, 3'000'000, 500'000}};
    PoolTrace pool;
    pool.layer = 1;
    pool.visits = visitsOf({{0, 1}, {1, 2}});
    pool.steps = {0, 1};
    trace.pools = {pool, pool};
    trace.largest = 2;
    const Link link{"test", 10, 25};
    ReplayOptions options{{"lru"}, {2}, {link}, 1};
    // Step 1 loads 4 blocks in one transfer, step 2 two.
    const std::int64_t exposed = link.transferNs(4'000'000) + link.transferNs(2'000'000);
    ReplayConfig config = replay(trace, options).front();
    EXPECT_EQ(config.misses, 6);
    EXPECT_EQ(config.h2dBytes, 6'000'000);
    EXPECT_EQ(config.exposedNs, exposed);
    EXPECT_DOUBLE_EQ(config.tokensPerSecond, 4e9 / double(8'000'000 + exposed));
    trace.run.timing = Timing::Measured;
    config = replay(trace, options).front();
    EXPECT_DOUBLE_EQ(config.tokensPerSecond, 4e9 / double(8'000'000 - 1'500'000 + exposed));
}

TEST(Replay, ARecordingThatIsNotItsCachesIsFound) {
    SelectionTrace trace = traceOf({{{0, 1}, {1, 2}, {0, 2}}});
    trace.run.deviceSlots = 2;
    trace.cachePolicy = "lru";
    trace.pools[0].recorded = {{0, 2}, {1, 1}, {1, 1}};
    EXPECT_EQ(reproduce(trace)->differing, 0);
    trace.pools[0].recorded[1] = {2, 0};
    EXPECT_EQ(reproduce(trace)->differing, 1);
    EXPECT_EQ(reproduce(trace)->requests, 3);
    EXPECT_FALSE(reproduce(withSharedPools(trace)));
    trace.cachePolicy = "another engine's";
    EXPECT_FALSE(reproduce(trace));
    trace.cachePolicy.clear();
    EXPECT_EQ(reproduce(trace)->policy, "keep-selected");
    trace.run.deviceSlots = 0;
    EXPECT_FALSE(reproduce(trace));
}

TEST(Replay, LoadingAheadHidesTransfersBehindEarlierLayers) {
    SelectionTrace trace;
    trace.run.layers = 3;
    trace.run.blockBytes = 1'000;
    trace.run.timing = Timing::Modelled;
    trace.steps = {{1, 1, 1'000'000, 0}};
    trace.layerTimes = {{10'000, 20'000}, {10'000, 20'000}, {10'000, 20'000}};
    for (const int layer : {0, 1, 2}) { // 10, 10 and 50 blocks, all missed
        PoolTrace& pool = trace.pools.emplace_back();
        pool.layer = layer;
        std::vector<std::int32_t> blocks(layer == 2 ? 50 : 10);
        std::iota(blocks.begin(), blocks.end(), 0);
        pool.visits.add(blocks);
        pool.steps = {0};
    }
    trace.largest = 50;
    const Link link{"test", 1, 2}; // 1 us per block and 2 us: 12, 12 and 52 us
    const auto with = [&](int layersAhead, double accuracy) {
        return replay(trace, {{"lru"}, {50}, {link}, 1, Prefetch{layersAhead, accuracy}}).front();
    };
    const ReplayConfig exact = with(1, 1);
    EXPECT_EQ(exact.exposedNs, 76'000);
    // Layer 0's blocks come at 12 instead of 10; layer 1's, asked at 0, at 24 of 42; layer 2's, asked at 32, at 84
    // of 72.
    EXPECT_EQ(exact.prefetched->exposedNs, 2'000 + 0 + 12'000);
    EXPECT_EQ(exact.prefetched->h2dBytes, 70'000);
    EXPECT_DOUBLE_EQ(exact.prefetched->tokensPerSecond, 1e9 / (1'000'000 + 14'000));
    // Two layers ahead, layer 2's are asked at 0 after the others: at 76 of 72.
    EXPECT_EQ(with(2, 1).prefetched->exposedNs, 2'000 + 0 + 4'000);
    EXPECT_EQ(with(9, 1).prefetched->exposedNs, 2'000 + 0 + 4'000);
    // Half of the guesses are wrong: layer 0 needs 5 more after both guesses, at 24 + 7 of 10. Layer 1 begins at 51;
    // its 5 are asked at 61, behind layer 2's guess from 51 to 103, and come at 110. Layer 2, from 130, at 140 + 27.
    EXPECT_EQ(with(1, 0.5).prefetched->exposedNs, 21'000 + 49'000 + 27'000);
    EXPECT_EQ(with(1, 0.5).prefetched->h2dBytes, 105'000);
    EXPECT_EQ(with(1, 0).prefetched->h2dBytes, 140'000);
    EXPECT_FALSE(replay(trace, {{"lru"}, {50}, {link}, 1, {}}).front().prefetched);
    EXPECT_THROW(with(0, 1), Error);
    EXPECT_THROW(with(1, 1.5), Error);
}

TEST(Replay, ABlockThatBeganInADroppedStepIsStillFresh) {
    const synthetic::RunShape shape;
    const test::Folder folder;
    const std::string file = (folder / "run.kvtrace").string();
    {
        Recorder recorder(file, {});
        recorder.beginRun(synthetic::infoOf(shape));
        for (const StepRecord& step : synthetic::stepsOf(shape))
            if (step.phase == Phase::Prefill || !step.opensBlock)
                recorder.take(std::make_unique<StepRecord>(step)); // the others are lost
        recorder.endRun(RunStatus::Finished, "");
    }
    const SelectionTrace trace = loadSelectionTrace(TraceReader(file), 1);
    const std::int32_t tail = shape.promptTokens / shape.blockSize;
    const int next = (tail + 1) * shape.blockSize - shape.promptTokens; // decode steps until a block is full
    for (const PoolTrace& pool : trace.pools) {
        ASSERT_EQ(pool.steps[0], -1);
        ASSERT_EQ(pool.visits.entered(0).size(), 1u);
        EXPECT_EQ(pool.visits.entered(0)[0].block(), tail);
        for (std::size_t request = 1; request < pool.steps.size(); ++request) {
            const int recorded = trace.steps[std::size_t(pool.steps[request])].step;
            const int sinceOpening = recorded - 1 - next;
            std::int32_t fresh = -1;
            for (const BlockVisits::Entry& e : pool.visits.entered(request))
                if (e.begins()) fresh = e.block();
            const bool first = sinceOpening > 0 && sinceOpening % shape.blockSize == 1;
            EXPECT_EQ(fresh, first ? tail + 1 + sinceOpening / shape.blockSize : -1) << recorded;
        }
    }
}

TEST(Replay, RefusalsNameWhatIsWrongAndTheMend) {
    const test::Folder folder;
    const auto load = [&](const char* name, const synthetic::RunShape& shape, RecordLevel level) {
        const std::string file = (folder / name).string();
        synthetic::recordFile(file, shape, level);
        return loadSelectionTrace(TraceReader(file), 1);
    };
    synthetic::RunShape dense, none;
    dense.denseLayers = dense.layers;
    none.decodeSteps = 0;
    EXPECT_THAT(test::failureOf([&] { load("counters", {}, RecordLevel::Counters); }),
                HasSubstr("--record selections"));
    EXPECT_THAT(test::failureOf([&] { load("dense", dense, RecordLevel::Full); }), HasSubstr("attends every block"));
    EXPECT_THAT(test::failureOf([&] { load("none", none, RecordLevel::Full); }), HasSubstr("no decode steps"));
    const SelectionTrace trace = load("full", {}, RecordLevel::Full);
    EXPECT_THAT(test::failureOf([&] {
                    replay(trace, {{}, {1}, {}, 1});
                }),
                HasSubstr(fmt::format("--cache-blocks {}", trace.largest)));
    EXPECT_THAT(test::failureOf([&] {
                    replay(trace, {{}, {}, {{"slow", 1e-300, 10}}, 1});
                }),
                HasSubstr("at least 1e-06 GB/s"));
    EXPECT_THAT(test::failureOf([&] {
                    replay(trace, {{"random"}, {}, {}, 1});
                }),
                HasSubstr("known policies: keep-selected, lru"));
    EXPECT_THAT(test::failureOf([&] { loadSelectionTrace(TraceReader((folder / "full").string()), 2); }),
                HasSubstr("run 2"));
    for (const char* edit : {"h2d_bytes = 9223372036854775807", "h2d_bytes = -5", "exposed_ns = -7"}) {
        load(edit, {}, RecordLevel::Full); // the file has the edit's name
        test::sql((folder / edit).string(), fmt::format("UPDATE step SET {} WHERE id & 0x1FFFFFF = 5", edit),
                  SQLITE_OPEN_READWRITE);
        EXPECT_THAT(test::failureOf([&] { loadSelectionTrace(TraceReader((folder / edit).string()), 1); }),
                    HasSubstr(fmt::format("step 5 of run 1 has {}", edit)));
    }
}

TEST(Replay, LoadingAndReplayingCanBeStopped) {
    const test::Folder folder;
    const std::string file = (folder / "run.kvtrace").string();
    synthetic::recordFile(file, {});
    const TraceReader reader(file);
    std::stop_source stop;
    double last = -1;
    const Progress progress = [&](double fraction, std::string_view) {
        EXPECT_GE(fraction, last);
        EXPECT_LE(fraction, 1);
        last = fraction;
    };
    const SelectionTrace trace = loadSelectionTrace(reader, 1, progress);
    EXPECT_EQ(last, 1);
    last = -1;
    replay(trace, {}, progress);
    EXPECT_EQ(last, 1);
    last = -1;
    missCurves(trace, CurvePolicy::Lru, 2, progress);
    EXPECT_EQ(last, 1);
    stop.request_stop();
    const auto kindOf = [](const std::function<void()>& action) {
        try {
            action();
        } catch (const Error& error) {
            return error.kind;
        }
        return ErrorKind::BadInput;
    };
    EXPECT_EQ(kindOf([&] { loadSelectionTrace(reader, 1, {}, stop.get_token()); }), ErrorKind::Cancelled);
    EXPECT_EQ(kindOf([&] { replay(trace, {}, {}, stop.get_token()); }), ErrorKind::Cancelled);
    EXPECT_EQ(kindOf([&] { missCurves(trace, CurvePolicy::Belady, 2, {}, stop.get_token()); }), ErrorKind::Cancelled);
}

} // namespace
} // namespace kvscope
