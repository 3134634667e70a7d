// A replay of the recorded configuration is the recording, and other caches miss what decoding with them misses.
#include "profiler/replay/replay.h"

#include "core/prompt/prompts.h"
#include "core/session/decode_session.h"
#include "profiler/read/summary.h"
#include "profiler/record/recorder.h"
#include "tests/profiler/replay_histories.h"
#include "tests/profiler/temporary_folder.h"

#include <algorithm>
#include <fmt/format.h>
#include <numeric>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using test::expectColdParts;

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
    Recorder recorder(file, {RecordLevel::Selections, false, std::size_t(256) << 20, 0, {}});
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

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
