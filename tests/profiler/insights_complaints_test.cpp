// Complaints of people who offload KV caches, reproduced: the first finding names the cause. And healthy runs raise no
// alarm. docs/insights.md has the table.
#include "profiler/insights/insight_rule.h"
#include "tests/profiler/insights_fixture.h"
#include "tests/profiler/sql_rows.h"
#include "tests/profiler/synthetic_denoise.h"
#include "tests/profiler/synthetic_run.h"
#include "tests/support/places.h"

#include <algorithm>
#include <fstream>
#include <gmock/gmock.h>
#include <set>
#include <sstream>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using test::EngineRun;
using test::listed;
using testing::HasSubstr;

class Complaint : public testing::Test {
protected:
    InsightReport judge(int runId = 1) const { return insightsOf(TraceReader(file), runId); }
    void expectFirst(const InsightReport& report, const std::string& id, Severity severity) const {
        ASSERT_FALSE(report.insights.empty()) << listed(report);
        EXPECT_EQ(report.insights.front().id, id) << listed(report);
        EXPECT_EQ(report.insights.front().severity, severity) << listed(report);
    }
    static Link link(double gbps, double latencyUs) { return {"custom", gbps, latencyUs}; }

    test::Folder folder;
    std::string file = (folder / "run.kvtrace").string();
};

// LMCache#1260: the hit rate is always 1.
TEST_F(Complaint, HitRateIsAlwaysOne) {
    test::record(file, {.with = [](SessionOptions& o) { o.offload = false; }});
    expectFirst(judge(), "hit-rate-resident", Severity::Note);
}

// LMCache#1789, #2574: the hit rate disagrees with what is seen.
TEST_F(Complaint, HitRateOfAShortRunDisagreesWithALongOne) {
    test::record(file, {.newTokens = 6, .link = link(55.5, 1)});
    const InsightReport report = judge();
    expectFirst(report, "hit-rate-cold", Severity::Note);
    EXPECT_LT(test::figure(report.insights[0], "hit_rate_of_all_steps"),
              test::figure(report.insights[0], "warm_hit_rate") - 0.05);
    EXPECT_EQ(test::figure(report.insights[0], "hit_rate"), test::figure(report.insights[0], "warm_hit_rate"))
        << "one quantity has one number: summaries leave the cold step out, too";
}

TEST_F(Complaint, LoadsThatFitBesideALayerAreMendedByTheForecast) {
    EngineRun run{.link = link(0.5, 1)};
    test::record(file, run);
    const InsightReport waits = judge();
    const Insight* found = test::find(waits, "serial-transfers");
    ASSERT_NE(found, nullptr) << listed(waits);
    ASSERT_TRUE(found->proposal->forecast.has_value());
    EXPECT_EQ(found->proposal->forecast->key, "ahead");
    EXPECT_EQ(found->proposal->forecast->with, "forecast");
    EXPECT_TRUE(found->proposal->canRun());
    EXPECT_THAT(found->advice, HasSubstr("ahead=forecast"));
    // What is proposed helps.
    run.with = [](SessionOptions& o) { o.settings = {{"ahead", "forecast"}}; };
    const std::string other = (folder / "ahead.kvtrace").string();
    test::record(other, run);
    const InsightReport ahead = insightsOf(TraceReader(other), 1);
    if (const Insight* left = test::find(ahead, "serial-transfers")) { // the first layer, which nothing is before
        EXPECT_LT(left->impact, found->impact / 2) << listed(ahead);
        EXPECT_FALSE(left->proposal->canRun()) << "it is run so already";
    }
    EXPECT_LT(ahead.exposure.exposedShare(), waits.exposure.exposedShare() / 2);
    // A method that has no such setting gets the advice alone.
    run = {.method = "quest", .link = link(0.5, 1)};
    const std::string third = (folder / "quest.kvtrace").string();
    test::record(third, run);
    const InsightReport quest = insightsOf(TraceReader(third), 1);
    found = test::find(quest, "serial-transfers");
    ASSERT_NE(found, nullptr) << listed(quest);
    EXPECT_FALSE(found->proposal->canRun());
    EXPECT_THAT(found->advice, testing::Not(HasSubstr("ahead=forecast")));
}

// vllm#27942, #42466: nobody sees that the link is the limit.
TEST_F(Complaint, TheLinkIsSaturated) {
    test::record(file, {.method = "infllmv2", .link = link(0.02, 10)});
    const InsightReport report = judge();
    expectFirst(report, "link-saturated", Severity::Alarm);
    EXPECT_GT(report.exposure.exposedShare(), 0.5);
}

// vllm#42212, #57555: many small copies cost their calls, not their bytes.
TEST_F(Complaint, SmallTransfersPayTheirLatency) {
    test::record(file, {.link = link(55.5, 200)});
    expectFirst(judge(), "latency-bound", Severity::Alarm);
}

// vllm#32604, llama.cpp#27515: offloading slows decoding down.
TEST_F(Complaint, OffloadingIsSlowerThanResident) {
    test::record(file, {.with = [](SessionOptions& o) { o.offload = false; }});
    test::record(file, {.link = link(0.5, 30)});
    const InsightReport report = judge(2);
    expectFirst(report, "offload-slower", Severity::Alarm);
    EXPECT_EQ(report.insights[0].evidence.compareRun, 1);
    EXPECT_GT(test::figure(report.insights[0], "slowdown"), 1.1);
}

// LMCache#3659: a view that says why a lookup missed. Here: the cache holds just what one step selects.
TEST_F(Complaint, TheCacheIsTooSmall) {
    test::record(file, {.method = "infllmv2", .link = link(2, 50)});
    const InsightReport report = judge();
    expectFirst(report, "thrash", Severity::Alarm);
    EXPECT_GT(test::figure(report.insights[0], "slots_to_halve"), test::figure(report.insights[0], "slots"));
}

// vllm#24256, sglang#28874: tuning the cache by guesswork. Here: slots to spare, and a policy that does not use them.
TEST_F(Complaint, ThePolicyWastesTheSlots) {
    test::record(file, {.method = "infllmv2", .link = link(2, 50), .with = [](SessionOptions& o) {
                            o.deviceKvBlocks = 22;
                            o.cachePolicy = "keep-selected";
                        }});
    const InsightReport report = judge();
    expectFirst(report, "wrong-policy", Severity::Alarm);
    EXPECT_LT(test::figure(report.insights[0], "lru_misses"), test::figure(report.insights[0], "misses"));
}

/// Runs what a finding proposes, and compares what it saves with what was predicted.
void expectPriceToHold(const InsightReport& report, const std::string& id, test::EngineRun run) {
    const Insight* insight = test::find(report, id);
    ASSERT_NE(insight, nullptr) << test::listed(report);
    ASSERT_TRUE(insight->proposal && insight->predicted && insight->price);
    run.with = [proposal = *insight->proposal, before = run.with](SessionOptions& options) {
        before(options);
        if (proposal.deviceSlots > 0) options.deviceKvBlocks = proposal.deviceSlots;
        if (!proposal.cachePolicy.empty()) options.cachePolicy = proposal.cachePolicy;
        if (proposal.resident) options.offload = false;
    };
    const test::Folder folder;
    const std::string file = (folder / "proposed.kvtrace").string();
    test::record(file, run);
    const double then = exposureOf(TraceReader(file), 1).decodeNs(), now = report.exposure.decodeNs();
    const double saved = 1 - then / now;
    EXPECT_NEAR(saved, *insight->predicted, std::max(*insight->predicted / 3, kPriceError)) << insight->title;
    EXPECT_GE(saved, insight->price->low - 1e-9);
    EXPECT_LE(saved, insight->price->high + kPriceError);
}

TEST_F(Complaint, ThePriceOfALargerCacheIsWhatARunWithItSaves) {
    const test::EngineRun run{.method = "infllmv2", .link = link(2, 50)};
    test::record(file, run);
    expectPriceToHold(judge(), "thrash", run);
}

TEST_F(Complaint, ThePriceOfAPolicyIsWhatARunWithTheOtherSaves) {
    const test::EngineRun run{.method = "infllmv2", .link = link(2, 50), .with = [](SessionOptions& o) {
                                  o.deviceKvBlocks = 22;
                                  o.cachePolicy = "keep-selected";
                              }};
    test::record(file, run);
    expectPriceToHold(judge(), "wrong-policy", run);
}

TEST_F(Complaint, NoPolicyIsBlamedWhereNothingIsMissed) {
    test::record(file, {.promptTokens = 40, .newTokens = 3, .link = link(55.5, 1)});
    const InsightReport report = judge();
    for (const Insight& insight : report.insights) {
        EXPECT_NE(insight.id, "wrong-policy") << insight.title;
        EXPECT_EQ(insight.title.find("nan"), std::string::npos) << insight.title;
        EXPECT_EQ(insight.detail.find("1 blocks"), std::string::npos) << insight.detail;
    }
}

// llm-d-planner#15, llama.cpp#3457: how much device memory is really needed?
TEST_F(Complaint, TheCacheIsLargerThanItsWorkingSet) {
    test::record(
        file, {.promptTokens = 3000, .link = link(55.5, 1), .with = [](SessionOptions& o) { o.deviceKvBlocks = 200; }});
    const InsightReport report = judge();
    expectFirst(report, "oversized-cache", Severity::Note);
    EXPECT_LT(test::figure(report.insights[0], "slots_needed"), 36);
}

// RocketKV#1: what does the token budget count?
TEST_F(Complaint, TheBudgetIsNeverUsed) {
    test::record(file, {.promptTokens = 500, .link = link(55.5, 1)});
    const InsightReport report = judge();
    expectFirst(report, "unused-budget", Severity::Alarm); // a third of the step selects what is everything
    EXPECT_THAT(report.insights[0].detail, HasSubstr("every block is attended"));
}

/// 16 blocks of 64 tokens: a context of 400 to 1,099 tokens has 7 to 18 of them.
TEST_F(Complaint, ABudgetThatOnlyTheLongestContextsReachIsNotCalledUnused) {
    test::record(file, {.promptTokens = 400, .newTokens = 700, .link = link(55.5, 1)});
    const InsightReport report = judge();
    const auto found = std::find_if(report.insights.begin(), report.insights.end(),
                                    [](const Insight& insight) { return insight.id == "unused-budget"; });
    ASSERT_NE(found, report.insights.end());
    EXPECT_THAT(found->title, HasSubstr("The budget of 16 blocks is seldom used up"));
    EXPECT_THAT(found->title, HasSubstr("16 at most"));
    EXPECT_THAT(found->advice, HasSubstr("contexts are longer"));
    const std::string compared =
        test::value(file, "SELECT printf('%,d', count(*)) FROM v_locality WHERE kept NOT NULL");
    EXPECT_EQ(found->detail, "Over " + compared +
                                 " selections of the decode steps, without those that have none before "
                                 "them.");
}

// Quest#4, ShadowKV#13: fast, but is it still right?
TEST_F(Complaint, TheSelectionMissesTheAttention) {
    test::record(file, {.method = "streaming",
                        .promptTokens = 3000,
                        .newTokens = 24,
                        .link = link(55.5, 1),
                        .with = [](SessionOptions& o) { o.oracle = true; }});
    const InsightReport report = judge();
    expectFirst(report, "low-mass", Severity::Note);
    EXPECT_LT(test::figure(report.insights[0], "mass"), 0.9);
}

// KTransformers#1122, #1302: slower and slower with the context.
TEST_F(Complaint, SelectingGrowsWithTheContext) {
    test::record(file, {.promptTokens = 300, .newTokens = 400, .link = link(55.5, 1)},
                 [](const StepRecord& step, int, Stage stage) -> std::int64_t {
                     return stage == Stage::Stage1 ? 100 * (300 + step.step) : test::kStageNs;
                 });
    const InsightReport report = judge();
    const Insight* growth = test::find(report, "selection-growth");
    ASSERT_NE(growth, nullptr) << listed(report);
    EXPECT_EQ(growth->severity, Severity::Alarm);
    EXPECT_EQ(growth, &report.insights.front()) << listed(report);
}

TEST_F(Complaint, TheForwardsThatBeginABlockAreSlow) {
    synthetic::recordDenoising(file, {.decodeSteps = 54}); // its selections stay within the tokens written
    test::sql(file,                                        // far enough apart for steps of any length below
              "UPDATE step SET start_ns = start_ns + 100000000 * (id & 0x1FFFFFF);"
              "UPDATE layer_step SET start_ns = start_ns + 100000000 * ((id >> 10) & 0x1FFFFFF)",
              SQLITE_OPEN_READWRITE);
    const auto whySlow = [&](const std::string& forwards) {
        test::sql(
            file,
            "UPDATE step SET duration_ns = CASE WHEN id & 0x1FFFFFF IN (SELECT (id >> 20) & 0x1FFFFFF FROM denoise"
            " WHERE " +
                forwards + ") THEN 90000000 ELSE 10000000 END WHERE phase = 1",
            SQLITE_OPEN_READWRITE);
        const InsightReport report = judge();
        const Insight* slow = test::find(report, "slow-steps");
        return slow != nullptr ? slow->detail : listed(report);
    };
    EXPECT_THAT(whySlow("denoise_step = 0"), HasSubstr("forwards with which a block begins, or that attend"));
    EXPECT_THAT(whySlow("denoise_step = 4"),
                testing::AllOf(HasSubstr("look at the machine"), testing::Not(HasSubstr("misses"))));
}

// sglang#21880: slow in containers.
TEST_F(Complaint, AFewStepsAreSlow) {
    test::record(file, {.newTokens = 60, .link = link(55.5, 1)}, [](const StepRecord& step, int, Stage) {
        return step.step % 10 == 9 ? 6 * test::kStageNs : test::kStageNs;
    });
    const InsightReport report = judge();
    expectFirst(report, "slow-steps", Severity::Note); // the machine's doing, not the method's
    EXPECT_EQ(test::figure(report.insights[0], "slow_steps"), 6);
    // The share is of the decode time that the headline gives and prices are made of, with what is modelled as exposed.
    EXPECT_GT(report.exposure.decodeNs(), double(report.exposure.counted().wallNs));
    EXPECT_NEAR(report.insights[0].impact * report.exposure.decodeNs() / 1e6,
                test::figure(report.insights[0], "excess_ms"), 1e-6);
    EXPECT_EQ(report.insights[0].evidence.firstStep % 10, 9);
}

// vllm#49127: the output changes with offloading.
TEST_F(Complaint, TheOutputChangesWithOffloading) {
    CollectingSink resident = test::decode({.with = [](SessionOptions& o) { o.offload = false; }});
    CollectingSink offloaded = test::decode({});
    test::retime(resident.steps), test::retime(offloaded.steps);
    test::write(file, resident.info, resident.steps);
    test::write(file, offloaded.info, offloaded.steps);
    EXPECT_EQ(test::find(judge(2), "output-differs"), nullptr) << "the engine's own pair agrees";
    for (std::size_t step = 9; step < offloaded.steps.size(); ++step) offloaded.steps[step].generated[0].id ^= 1;
    test::write(file, offloaded.info, offloaded.steps);
    const InsightReport report = judge(3);
    expectFirst(report, "output-differs", Severity::Alarm);
    EXPECT_EQ(test::figure(report.insights[0], "first_step"), 9);
}

// vllm#53782: counters that were sampled now and then.
TEST_F(Complaint, StepsAreMissingFromTheTrace) {
    CollectingSink run = test::decode({});
    test::retime(run.steps);
    std::erase_if(run.steps, [](const StepRecord& step) { return step.step % 4 == 3; });
    test::write(file, run.info, run.steps, {}, 10);
    expectFirst(judge(), "dropped-steps", Severity::Alarm);
}

TEST_F(Complaint, AFullDiskIsNamedAsTheCause) {
    const CollectingSink run = test::decode({});
    test::write(file, run.info, run.steps);
    const std::string full = "the disk is full: run.kvtrace cannot grow; free some space";
    test::sql(file, "UPDATE health SET dropped_steps = 40, error = '" + full + "'", SQLITE_OPEN_READWRITE);
    const InsightReport report = judge();
    const Insight* dropped = test::find(report, "dropped-steps");
    const Insight* unfinished = test::find(report, "unfinished");
    ASSERT_TRUE(dropped != nullptr && unfinished != nullptr) << test::listed(report);
    EXPECT_THAT(dropped->detail, testing::HasSubstr(full));
    EXPECT_THAT(dropped->detail, testing::Not(testing::HasSubstr("could not keep up")));
    EXPECT_THAT(unfinished->title,
                testing::HasSubstr("failed after " + std::to_string(run.steps.size()) + " steps: " + full));
    const RunRow row = *TraceReader(file).run(1);
    EXPECT_EQ(row.status, RunStatus::Failed) << "a recording that ended early is not finished, whatever the file says";
    EXPECT_EQ(row.statusMessage, full);
}

TEST_F(Complaint, AVanishedWriterLeavesTheStepsItHasWritten) {
    const CollectingSink run = test::decode({});
    test::write(file, run.info, run.steps);
    test::sql(file, "UPDATE run SET status = 'running'; UPDATE health SET heartbeat_ms = 1000", SQLITE_OPEN_READWRITE);
    const InsightReport report = judge();
    const Insight* unfinished = test::find(report, "unfinished");
    ASSERT_NE(unfinished, nullptr);
    EXPECT_THAT(unfinished->title,
                testing::HasSubstr("without an end after " + std::to_string(run.steps.size()) + " steps"));
}

/// Kernels of `length` in every decode step, `pause` apart, none while blocks are moved.
std::vector<SpanRecord> kernelsOf(const std::vector<StepRecord>& steps, std::int64_t length, std::int64_t pause) {
    std::vector<SpanRecord> spans;
    for (const StepRecord& step : steps) {
        if (step.phase == Phase::Prefill) continue;
        for (std::int64_t at = step.startNs; at + length <= step.startNs + step.durationNs; at += length + pause) {
            bool moving = false;
            for (const LayerRecord& layer : step.layers) {
                std::int64_t from = layer.startNs;
                for (int stage = 0; stage < int(Stage::Offloading); ++stage) from += layer.stageNs[std::size_t(stage)];
                moving |= at + length > from && at < from + layer.stageNs[std::size_t(Stage::Offloading)];
            }
            if (!moving) spans.push_back({step.step, -1, SpanRecord::Kind::Kernel, "stream", "kernel", at, length, 0});
        }
    }
    return spans;
}

/// A GPU's run: times are measured, and the wait for the link is inside the offloading stage.
CollectingSink measuredRun() {
    CollectingSink run = test::decode({.link = {"pcie", 55.5, 1}});
    run.info.linkTiming = Timing::Measured;
    run.info.backend = "cuda";
    run.info.linkGbps = run.info.linkLatencyUs = 0;
    return run;
}

// vllm#41784: the GPU idles 350 ms per step on KV stalls, found only by hand.
TEST_F(Complaint, TheGpuWaitsForBlocks) {
    CollectingSink run = measuredRun();
    test::retime(run.steps, [](const StepRecord&, int, Stage stage) {
        return stage == Stage::Offloading ? 8 * test::kStageNs : test::kStageNs;
    });
    test::write(file, run.info, run.steps, kernelsOf(run.steps, 25'000, 0));
    expectFirst(judge(), "gpu-waits-for-kv", Severity::Alarm);
}

// vllm-omni#3730, Quest#8: the host launches, the GPU waits.
TEST_F(Complaint, TheStepIsLaunchBound) {
    CollectingSink run = measuredRun();
    test::retime(run.steps, [](const StepRecord&, int, Stage stage) {
        return stage == Stage::Offloading ? std::int64_t(1) : test::kStageNs;
    });
    test::write(file, run.info, run.steps, kernelsOf(run.steps, 4'000, 4'000));
    expectFirst(judge(), "launch-bound", Severity::Alarm);
}

// vllm#35259, nvbandwidth#53: stores get in the way of loads.
TEST_F(Complaint, WriteBacksAreWaitedFor) {
    CollectingSink run = measuredRun();
    test::retime(run.steps);
    for (StepRecord& step : run.steps)
        for (LayerRecord& layer : step.layers) {
            if (step.phase == Phase::Prefill) continue;
            layer.d2hBlocks = 4 * std::max(layer.h2dBlocks, 4);
            layer.d2hBytes = layer.d2hBlocks * run.info.blockBytes;
            layer.transferNs = layer.exposedNs = 60'000;
        }
    test::write(file, run.info, run.steps);
    expectFirst(judge(), "write-back", Severity::Alarm);
}

struct Healthy {
    const char* name;
    EngineRun run;
};
void PrintTo(const Healthy& healthy, std::ostream* out) { *out << healthy.name; }

class HealthyRun : public testing::TestWithParam<Healthy> {};

TEST_P(HealthyRun, RaisesNoAlarm) {
    test::Folder folder;
    const std::string file = (folder / "run.kvtrace").string();
    test::record(file, GetParam().run);
    const InsightReport report = insightsOf(TraceReader(file), 1);
    EXPECT_EQ(report.alarms(), 0) << listed(report);
}

const Healthy kHealthy[] = {
    {"nosa", {}},
    {"infllmv2", {.method = "infllmv2"}},
    {"quest", {.method = "quest"}},
    {"dma", {.method = "dma"}},
    {"streaming", {.method = "streaming"}},
    {"full", {.method = "full"}},
    {"batch", {.newTokens = 20, .sequences = 2}},
    {"lru", {.method = "infllmv2", .with = [](SessionOptions& o) { o.deviceKvBlocks = 22; }}},
    {"resident", {.method = "infllmv2", .with = [](SessionOptions& o) { o.offload = false; }}},
    {"pcie4_long", {.promptTokens = 2500, .newTokens = 80, .link = {"pcie4", 26, 10}}},
    {"sampled", {.newTokens = 60, .with = [](SessionOptions& o) { o.sampling.temperature = 0.8; }}},
};
INSTANTIATE_TEST_SUITE_P(Engine, HealthyRun, testing::ValuesIn(kHealthy),
                         [](const auto& row) { return std::string(row.param.name); });

TEST(InsightRules, AreAllDocumentedAndNamedOnce) {
    std::ifstream page(test::source("docs/insights.md"));
    std::stringstream text;
    text << page.rdbuf();
    std::set<std::string> ids;
    for (const InsightRule& rule : insightRules()) {
        EXPECT_TRUE(ids.insert(rule.id).second) << rule.id;
        EXPECT_THAT(text.str(), HasSubstr("| `" + std::string(rule.id) + "` |"));
    }
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
