// What CUPTI reports becomes spans: records made by hand, no GPU.
#include "profiler/cupti/activity_log.h"

#ifdef KVSCOPE_HAVE_CUPTI

#include "profiler/format/span_name.h"
#include "profiler/record/recorder.h"
#include "tests/profiler/cupti_records.h"
#include "tests/profiler/sql_rows.h"
#include "tests/profiler/synthetic_run.h"
#include "tests/profiler/temporary_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using namespace cupti;
using testing::ElementsAre;

constexpr std::uint32_t kGraphLaunch = 311, kGetDevice = 16, kMemcpy = 41;

std::string nameOfCall(std::uint32_t callback) {
    switch (callback) {
    case kGraphLaunch:
        return "cudaGraphLaunch_v10000";
    case kMemcpy:
        return "cudaMemcpyAsync_ptsz_v7000";
    case kGetDevice:
        return "cudaGetDevice_v3020";
    default:
        return {};
    }
}

template <class Record> void take(ActivityLog& log, const Record& record) { log.take(&record); }

std::uint64_t idOf(int step, int layer = -1, StageId stage = {}) { return LaunchPlace{step, layer, stage}.packed(); }

std::vector<std::string> said(const std::vector<SpanRecord>& spans) {
    std::vector<std::string> lines;
    for (const SpanRecord& span : spans) {
        const SpanName name{span.stage.name(), span.bytes, span.name};
        lines.push_back(span.track + "|" + name.shown() + "|" + std::to_string(span.startNs) + "+" +
                        std::to_string(span.durationNs) + "|step " + std::to_string(span.step) + " layer " +
                        std::to_string(span.layer) + "|launch " + std::to_string(span.launch));
    }
    return lines;
}

TEST(LaunchPlace, SurvivesTheWayThroughCupti) {
    for (const LaunchPlace& place : {LaunchPlace{}, LaunchPlace{0, 0, Stage::QkvLinear}, LaunchPlace{7, -1, {}},
                                     LaunchPlace{1 << 24, 1023, Stage::Ffn}, LaunchPlace{3, -1, StepStage::Sample}})
        EXPECT_EQ(LaunchPlace::unpacked(place.packed()), place);
    EXPECT_EQ(LaunchPlace::unpacked(0xffff), (LaunchPlace{-1, -1, {}})) << "not ours: no stage";
}

TEST(StageId, HasANameAndANumberForEveryStage) {
    EXPECT_TRUE(StageId().isNone());
    EXPECT_EQ(StageId().name(), "");
    for (int number = 1; number <= kStageCount + kStepStageCount; ++number) {
        EXPECT_EQ(StageId::of(number).number(), number);
        EXPECT_EQ(StageId::named(StageId::of(number).name()).number(), number);
    }
    EXPECT_EQ(StageId(Stage::Ffn).name(), "ffn");
    EXPECT_EQ(StageId(StepStage::Embed).name(), "embed");
    EXPECT_TRUE(StageId::named("gemm").isNone());
    EXPECT_TRUE(StageId::of(kStageCount + kStepStageCount + 1).isNone());
}

TEST(ActivityLog, TiesTheKernelsOfAGraphToTheirStagesAndToTheCallThatLaunchedIt) {
    ActivityLog log(nameOfCall);
    log.nodeMade(100, {-1, 2, Stage::Stage2});
    log.nodeCloned(200, 100); // the executable graph has nodes of its own
    take(log, claim(9, idOf(5)));
    take(log, call(kGraphLaunch, 9, 1'000, 1'040));
    take(log, call(kGetDevice, 10, 1'050, 1'051));
    take(log, kernel("_ZN7kvscope4cuda12_GLOBAL__N_110ringKernelILi128EEEvPf", 9, 200, 1'100, 1'300));
    CUpti_ActivityMemcpy6 copy{};
    copy.kind = CUPTI_ACTIVITY_KIND_MEMCPY;
    copy.copyKind = CUPTI_ACTIVITY_MEMCPY_KIND_DTOH;
    copy.bytes = 64;
    copy.correlationId = 9;
    copy.start = 1'400;
    copy.end = 1'410;
    take(log, copy);
    const std::vector<SpanRecord> spans = log.collect(1'000, false);
    EXPECT_THAT(said(spans),
                ElementsAre("CUDA calls|cudaGraphLaunch|0+40|step 5 layer -1|launch 9",
                            "stream 7|stage2: ringKernel<128>|100+200|step 5 layer 2|launch 9",
                            "copies device to host|64 bytes device to host|400+10|step 5 layer -1|launch 9"));
    // Stage and bytes are fields of the span, not parts of its name.
    EXPECT_EQ(spans[1].name, "ringKernel<128>");
    EXPECT_EQ(spans[1].stage, StageId(Stage::Stage2));
    EXPECT_EQ(spans[1].bytes, -1);
    EXPECT_EQ(spans[2].name, "device to host");
    EXPECT_EQ(spans[2].bytes, 64);
    EXPECT_TRUE(spans[2].stage.isNone());
}

TEST(ActivityLog, KeepsAKernelUntilItsStepIsKnownAndACallNever) {
    ActivityLog log(nameOfCall);
    take(log, kernel("gemm", 4, 0, 200, 300));
    take(log, call(kMemcpy, 5, 100, 110, 77));
    EXPECT_THAT(said(log.collect(0, false)),
                ElementsAre("CUDA calls|cudaMemcpyAsync|100+10|step -1 layer -1|launch 5"));
    take(log, claim(4, idOf(-1, 1, Stage::Ffn)));
    EXPECT_THAT(said(log.collect(0, false)), ElementsAre("stream 7|ffn: gemm|200+100|step -1 layer 1|launch 4"));
    take(log, kernel("gemm", 6, 0, 400, 500));
    EXPECT_TRUE(log.collect(0, false).empty());
    EXPECT_THAT(said(log.collect(0, true)), ElementsAre("stream 7|gemm|400+100|step -1 layer -1|launch 6"));
}

/// A step as an engine makes it: a call that starts a kernel, and one that starts nothing.
void takeStep(ActivityLog& log, int step, std::uint32_t firstId) {
    const std::uint64_t external = idOf(step);
    take(log, claim(firstId, external));
    take(log, claim(firstId + 1, external));
}

std::vector<int> stepsOf(const std::vector<SpanRecord>& spans) {
    std::vector<int> steps;
    for (const SpanRecord& span : spans) steps.push_back(span.step);
    return steps;
}

TEST(ActivityLog, ForgetsLaunchesWhoseWorkWasCollected) {
    ActivityLog log;
    constexpr int kCollections = 500, kSteps = 16;
    int step = 0;
    for (int i = 0; i < kCollections; ++i) {
        std::vector<int> steps;
        for (int s = 0; s < kSteps; ++s, ++step) {
            const auto id = std::uint32_t(2 * step + 1);
            takeStep(log, step, id);
            take(log, kernel("gemm", id, 0, std::uint64_t(100 * step + 1), std::uint64_t(100 * step + 50)));
            steps.push_back(step);
        }
        ASSERT_EQ(stepsOf(log.collect(0, false)), steps);
        ASSERT_LE(log.launches(), std::size_t(3 * 2 * kSteps));
    }
    // One launch of two started nothing. All of these are forgotten and counted, but for those of the last collections.
    EXPECT_GE(log.forgottenIdle(), (kCollections - 3) * kSteps);
    EXPECT_LE(log.forgottenIdle(), kCollections * kSteps);
    EXPECT_EQ(log.late(), 0);
}

TEST(ActivityLog, KnowsTheStepOfAGraphWhoseKernelsFillSeveralBuffers) {
    ActivityLog log;
    takeStep(log, 1, 10);
    takeStep(log, 2, 20);
    take(log, kernel("first", 10, 0, 100, 150));
    EXPECT_THAT(stepsOf(log.collect(0, false)), ElementsAre(1));
    take(log, kernel("second", 10, 0, 150, 190));
    take(log, kernel("first", 20, 0, 200, 250));
    EXPECT_THAT(stepsOf(log.collect(0, false)), ElementsAre(1, 2));
    take(log, kernel("third", 10, 0, 190, 195));
    EXPECT_THAT(stepsOf(log.collect(0, false)), ElementsAre(1));
}

TEST(ActivityLog, RemembersLaunchesWhoseWorkComesManyCollectionsLater) {
    ActivityLog log; // a buffer with an unfinished kernel is not handed over, whatever else it holds
    constexpr int kSteps = 40;
    for (int step = 0; step < kSteps; ++step) {
        takeStep(log, step, std::uint32_t(2 * step + 1));
        EXPECT_TRUE(log.collect(0, false).empty());
    }
    std::vector<int> steps;
    for (int step = 0; step < kSteps; ++step) {
        take(log, kernel("gemm", std::uint32_t(2 * step + 1), 0, std::uint64_t(100 + step), std::uint64_t(101 + step)));
        steps.push_back(step);
    }
    EXPECT_EQ(stepsOf(log.collect(0, false)), steps);
    EXPECT_EQ(log.late(), 0);
}

TEST(ActivityLog, CountsWhatComesAfterItsLaunchWasForgotten) {
    ActivityLog log;
    takeStep(log, 1, 10);
    for (int step = 2; step < 6; ++step) {
        takeStep(log, step, std::uint32_t(10 * step));
        take(log,
             kernel("gemm", std::uint32_t(10 * step), 0, std::uint64_t(100 * step), std::uint64_t(100 * step + 9)));
        EXPECT_THAT(stepsOf(log.collect(0, false)), ElementsAre(step));
    }
    take(log, kernel("gemm", 10, 0, 600, 610));
    take(log, claim(10, idOf(1))); // the record that names its step comes too late as well
    EXPECT_EQ(log.late(), 1);
    EXPECT_THAT(stepsOf(log.collect(0, false)), ElementsAre(-1)) << "it would wait until the end of the run";
    EXPECT_LE(log.launches(), 6U);
}

TEST(ActivityLog, ForgetsByAgeWhereNoWorkComesAtAll) {
    ActivityLog log;
    for (int step = 0; step < 5000; ++step) {
        takeStep(log, step, std::uint32_t(2 * step + 1));
        log.collect(0, false);
        ASSERT_LE(log.launches(), 2U * 1100U);
    }
    EXPECT_GT(log.forgottenIdle(), 7000);
}

TEST(ActivityLog, GivesThreadsTracksAndUnknownCallsNames) {
    ActivityLog log(nameOfCall);
    take(log, call(kMemcpy, 1, 10, 20, 4'000));
    take(log, call(999, 2, 10, 20, 5'000));
    take(log, call(kMemcpy, 3, 30, 40, 4'000));
    EXPECT_THAT(said(log.collect(0, false)),
                ElementsAre("CUDA calls|cudaMemcpyAsync|10+10|step -1 layer -1|launch 1",
                            "CUDA calls of thread 2|CUDA call 999|10+10|step -1 layer -1|launch 2",
                            "CUDA calls|cudaMemcpyAsync|30+10|step -1 layer -1|launch 3"));
}

TEST(ActivityLog, NumbersThreadsOfEveryRunAnew) {
    ActivityLog log(nameOfCall);
    take(log, call(kMemcpy, 1, 10, 20, 4'000)); // a thread that prepares something before the first run
    (void)log.collect(0, true);
    take(log, call(kMemcpy, 2, 30, 40, 5'000));
    take(log, call(kMemcpy, 3, 50, 60, 4'000));
    EXPECT_THAT(said(log.collect(0, true)),
                ElementsAre("CUDA calls|cudaMemcpyAsync|30+10|step -1 layer -1|launch 2",
                            "CUDA calls of thread 2|cudaMemcpyAsync|50+10|step -1 layer -1|launch 3"));
}

TEST(ActivityLog, LeavesCallsOutWhenNobodyWantsThemAndCountsWhatHasNoTime) {
    ActivityLog log;
    take(log, call(kGraphLaunch, 9, 1'000, 1'040));
    take(log, kernel("gemm", 9, 0, 0, 10));
    take(log, kernel("gemm", 9, 0, 20, 10));
    EXPECT_TRUE(log.collect(0, true).empty());
    EXPECT_EQ(log.untimed(), 2);
}

TEST(ActivityLog, WaitOfADependentKernelIsNotItsWork) {
    ActivityLog log;
    take(log, kernel("first", 1, 0, 100, 200));
    take(log, kernel("second", 1, 0, 150, 260)); // started early and waited
    EXPECT_THAT(said(log.collect(0, true)), ElementsAre("stream 7|first|100+100|step -1 layer -1|launch 1",
                                                        "stream 7|second|200+60|step -1 layer -1|launch 1"));
}

TEST(RecordedCalls, LeadToWhatTheyStartedAlsoWhenThatComesLater) {
    test::Folder folder;
    const std::string file = (folder / "run.kvtrace").string();
    const auto span = [](SpanRecord::Kind kind, const char* track, const char* name, std::int64_t start,
                         std::uint32_t launch) {
        SpanRecord record;
        record.kind = kind;
        record.track = track;
        record.name = name;
        record.startNs = start;
        record.durationNs = 5;
        record.launch = launch;
        return record;
    };
    using Kind = SpanRecord::Kind;
    {
        Recorder recorder(file, {});
        recorder.beginRun(synthetic::infoOf({}));
        // The order within a batch does not matter, and numbers of calls nobody recorded lead nowhere.
        recorder.take(std::vector<SpanRecord>{
            span(Kind::Kernel, "stream 1", "k1", 20, 8), span(Kind::Range, "CUDA calls", "launch", 10, 8),
            span(Kind::Kernel, "stream 1", "orphan", 26, 99), span(Kind::Range, "host", "range", 0, 0)});
        recorder.flush();
        recorder.take(std::vector<SpanRecord>{span(Kind::Copy, "copies", "64 bytes", 40, 8),
                                              span(Kind::Kernel, "stream 1", "plain", 50, 0)});
        recorder.endRun(RunStatus::Finished, "");
    }
    EXPECT_EQ(test::sql(file, "SELECT from_name || ' -> ' || to_name FROM v_flow ORDER BY to_start_ns").rows,
              (std::vector<std::vector<std::string>>{{"launch -> k1"}, {"launch -> 64 bytes"}}));
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope

#endif
