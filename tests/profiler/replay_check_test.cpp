// Predictions against really running what they predict.
#include "profiler/replay/check.h"

#include "base/error.h"
#include "core/prompt/prompts.h"
#include "profiler/record/recorder.h"
#include "tests/core/backend.h"
#include "tests/profiler/temporary_folder.h"
#include "tests/support/refusal.h"

#include <cmath>
#include <functional>
#include <gmock/gmock.h>
#include <optional>
#include <set>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using testing::HasSubstr;

struct Recorded {
    const char* name;
    const char* method;
    std::vector<std::pair<std::string, std::string>> settings;
    int sequences = 1;
    double temperature = 0;
    std::int64_t slots = 0; // 0: as many as needed
    Backend backend = Backend::Cpu;
    std::optional<KvType> kvType = {};
};

void PrintTo(const Recorded& recorded, std::ostream* out) { *out << recorded.name; }

const std::shared_ptr<const Model>& model() {
    static const std::shared_ptr<const Model> loaded = Model::load(kDefaultModel);
    return loaded;
}

void record(const Recorded& recorded, const std::string& file) {
    std::vector<std::vector<std::int32_t>> prompts;
    for (int s = 0; s < recorded.sequences; ++s) {
        NeedleOptions needle;
        needle.tokens = 1200 + 90 * s;
        needle.seed = std::uint64_t(s) + 1;
        prompts.push_back(model()->tokenizer().encode(makeNeedlePrompt(model()->tokenizer(), needle).text));
    }
    SessionOptions options;
    options.backend = recorded.backend;
    options.method = recorded.method;
    options.settings = recorded.settings;
    options.kvType = recorded.kvType;
    options.maxNewTokens = 28;
    options.stopAtEos = false;
    options.sampling.temperature = recorded.temperature;
    if (recorded.slots > 0) options.deviceKvBlocks = recorded.slots;
    Recorder recorder(file, {RecordLevel::Selections, false, std::size_t(256) << 20, 0, {}});
    DecodeSession session(model(), prompts, options, recorder);
    session.prefill();
    while (session.step()) {
    }
    session.end(RunStatus::Finished);
    recorder.flush();
}

class CheckedReplay : public testing::TestWithParam<Recorded> {};

TEST_P(CheckedReplay, PredictsHitsMissesAndBytesExactly) {
    if (GetParam().backend == Backend::Cuda) {
        try {
            describeGpu();
        } catch (const Error& error) {
            GTEST_SKIP() << error.what();
        }
    }
    const test::Folder folder;
    const std::string file = (folder / "run.kvtrace").string();
    record(GetParam(), file);
    const TraceReader reader(file);
    const SelectionTrace trace = loadSelectionTrace(reader, 1);
    const std::vector<EngineCache> caches = otherCaches(trace, 3);
    const std::vector<CheckedConfig> checked = checkReplay(reader, trace, model(), caches);
    ASSERT_EQ(checked.size(), 3u);
    std::set<std::int64_t> misses;
    for (std::size_t i = 0; i < checked.size(); ++i) {
        SCOPED_TRACE(testing::Message() << caches[i].policy << ' ' << caches[i].cacheBlocks);
        const CheckedConfig& c = checked[i];
        EXPECT_EQ(c.predicted.policy, caches[i].policy);
        EXPECT_EQ(c.predicted.hits, c.run.hits);
        EXPECT_EQ(c.predicted.misses, c.run.misses);
        EXPECT_EQ(c.predicted.h2dBytes, c.run.h2dBytes);
        EXPECT_TRUE(c.exact());
        EXPECT_TRUE(c.run.sameTokens || GetParam().temperature > 0);
        if (trace.run.timing == Timing::Modelled) {
            EXPECT_EQ(c.predicted.exposedNs, c.run.exposedNs);
        }
        EXPECT_GT(c.run.tokensPerSecond, 0);
        EXPECT_GT(c.run.computeNs, 0);
        EXPECT_TRUE(caches[i].cacheBlocks != trace.run.deviceSlots || caches[i].policy != trace.cachePolicy)
            << "this was recorded, not predicted";
        misses.insert(c.run.misses);
    }
    if (std::string(GetParam().method) == "infllmv2") {
        EXPECT_GT(misses.size(), 1u) << "the configurations differ in what they do";
    }
}

INSTANTIATE_TEST_SUITE_P(Methods, CheckedReplay,
                         testing::Values(Recorded{"nosa", "nosa", {}}, Recorded{"infllmv2", "infllmv2", {}},
                                         Recorded{"dma", "dma", {{"total_blocks", "12"}, {"window_blocks", "4"}}},
                                         Recorded{"quest", "quest", {{"total_blocks", "9"}}},
                                         Recorded{"denseAtFirst", "nosa", {{"dense_len", "1210"}}},
                                         Recorded{"twoSequences", "nosa", {}, 2},
                                         Recorded{"sampled", "infllmv2", {}, 1, 1.0},
                                         Recorded{"lru", "infllmv2", {}, 1, 0, 20},
                                         Recorded{"quantised", "infllmv2", {}, 1, 0, 0, Backend::Cpu, KvType::INT4},
                                         Recorded{"cuda", "nosa", {}, 2, 0, 0, Backend::Cuda}),
                         [](const auto& parameter) { return std::string(parameter.param.name); });

TEST(CheckedReplayErrors, AreRelativeToTheTruth) {
    EXPECT_DOUBLE_EQ(errorPercent(103, 100), 3);
    EXPECT_DOUBLE_EQ(errorPercent(50, 100), -50);
    EXPECT_EQ(errorPercent(0, 0), 0);
    EXPECT_TRUE(std::isinf(errorPercent(1, 0)));
}

TEST(CheckedReplayErrors, AWrongPredictionIsFound) {
    const test::Folder folder;
    const std::string file = (folder / "run.kvtrace").string();
    record({"nosa", "nosa", {}}, file);
    const TraceReader reader(file);
    SelectionTrace trace = loadSelectionTrace(reader, 1);
    trace.run.blockBytes += 1;
    const auto checked = checkReplay(reader, trace, model(), otherCaches(trace, 1));
    EXPECT_FALSE(checked[0].exact());
    EXPECT_EQ(checked[0].predicted.misses, checked[0].run.misses);
}

TEST(CheckedReplayErrors, RefusalsNameWhatIsWrong) {
    const test::Folder folder;
    const std::string file = (folder / "run.kvtrace").string();
    record({"nosa", "nosa", {}}, file);
    const TraceReader reader(file);
    const SelectionTrace trace = loadSelectionTrace(reader, 1);
    const EngineCache same{"lru", trace.run.deviceSlots, trace.link};
    EXPECT_THAT(test::failureOf([&] {
                    checkReplay(reader, trace, model(), {{"belady", 40, trace.link}});
                }),
                testing::HasSubstr("keep-selected, lru"));
    EXPECT_THAT(test::failureOf([&] { checkReplay(reader, withSharedPools(trace), model(), {same}); }),
                testing::HasSubstr("--shared-pool"));
    SelectionTrace other = trace;
    other.run.layers = 9;
    EXPECT_THAT(test::failureOf([&] { checkReplay(reader, other, model(), {same}); }), testing::HasSubstr("--model"));
    other = trace;
    other.run.droppedSteps = 1;
    EXPECT_THAT(test::failureOf([&] { checkReplay(reader, other, model(), {same}); }), testing::HasSubstr("dropped"));
    std::stop_source stop;
    stop.request_stop();
    EXPECT_THAT(test::failureOf([&] { checkReplay(reader, trace, model(), {same}, 1, {}, stop.get_token()); }),
                testing::HasSubstr("cancelled"));
}

TEST(CheckedReplayModel, OfAnotherFingerprintIsRefused) {
    const test::Folder folder;
    const std::string file = (folder / "run.kvtrace").string();
    record({"nosa", "nosa", {}}, file);
    RunRow run = *TraceReader(file).run(1);
    EXPECT_NO_THROW(requireSameWeights(run, *model()));
    run.meta["model_fingerprint"] = "1:1:5:0000000000000000";
    try {
        requireSameWeights(run, *model());
        FAIL() << "another model passed";
    } catch (const Error& error) {
        EXPECT_EQ(error.kind, ErrorKind::BadInput);
        EXPECT_THAT(error.what(), HasSubstr("1:1:5:0000000000000000"));
        EXPECT_THAT(error.what(), HasSubstr(model()->fingerprint()));
    }
    run.meta.clear();
    EXPECT_NO_THROW(requireSameWeights(run, *model())) << "older traces do not say it";
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
