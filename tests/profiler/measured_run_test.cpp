// A recorded run as a point of the roofline: its means are those of its rows, and runs measured on an H200 obey the
// floor.
#include "profiler/roofline/measured_run.h"

#include "base/error.h"
#include "core/select/method.h"
#include "profiler/read/step_kind.h"
#include "profiler/record/recorder.h"
#include "tests/profiler/synthetic_run.h"
#include "tests/profiler/temporary_folder.h"
#include "tests/support/places.h"

#include <cmath>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using ::testing::HasSubstr;

TraceReader sample(const char* name) { return TraceReader(test::source("resources/samples/") + name); }

TEST(MeasuredRun, HasTheMeansOfItsDecodeStepsWithoutTheFirst) {
    const test::Folder folder;
    synthetic::RunShape shape;
    shape.sequences = 3;
    synthetic::recordFile(folder / "run.kvtrace", shape, RecordLevel::Selections);
    const TraceReader reader((folder / "run.kvtrace").string());
    const MeasuredRun run = measuredRun(reader, 1);
    double tokens = 0, ns = 0, hits = 0, all = 0, bytes = 0, contexts = 0, count = 0, sequences = 0;
    for (const StepRow& step : reader.steps(1)) {
        if (step.phase == Phase::Prefill || step.step == 1) continue;
        ++count;
        tokens += step.tokens;
        ns += double(step.durationNs);
        hits += double(step.hits);
        all += double(step.hits + step.misses);
        bytes += double(step.h2dBytes);
        for (int s = 0; s < 3; ++s)
            if (const int fed = synthetic::fedPosition(shape, s, step.step); fed >= 0) contexts += fed + 1, ++sequences;
    }
    EXPECT_EQ(run.steps, 19);
    EXPECT_DOUBLE_EQ(run.batch, tokens / count);
    EXPECT_DOUBLE_EQ(run.stepNs, ns / count);
    EXPECT_DOUBLE_EQ(run.hitRate, hits / all);
    EXPECT_DOUBLE_EQ(run.linkBytes, bytes / count);
    EXPECT_DOUBLE_EQ(run.context, contexts / sequences);
    EXPECT_NEAR(run.tokensPerSecond, tokens / ns * 1e9, 1e-6);
    const StepParts& p = run.parts;
    EXPECT_NEAR(p.projectionsNs + p.selectionNs + p.attentionNs + p.otherNs, run.stepNs, 1e-3);
    EXPECT_EQ(p.exposedNs, 0) << "modelled link time is no part of measured time";
    EXPECT_GT(run.exposedNs, 0);
    EXPECT_TRUE(run.offloaded());
    EXPECT_EQ(run.method.budgetBlocks(), 9);
    EXPECT_EQ(run.method.blockSize, 16);
}

TEST(MeasuredRun, ReadInPiecesIsTheRunReadAtOnce) {
    for (const char* name : {"h200-nosa-8b.kvtrace", "h200-nosa-tiny.kvtrace"}) {
        const TraceReader reader = sample(name);
        const MeasuredRun whole = measuredRun(reader, 1);
        MeasuredRun run = measuredSteps(reader, 1);
        EXPECT_EQ(run.stepNs, whole.stepNs);
        EXPECT_EQ(run.context, whole.context);
        EXPECT_EQ(run.parts.projectionsNs, 0);
        int next = 0, readings = 1;
        while (!addParts(run, reader, next, 7)) ++readings;
        EXPECT_EQ(readings, (whole.row.steps - whole.firstStep + 6) / 7);
        const auto near = [&](double StepParts::*part) {
            EXPECT_NEAR(run.parts.*part, whole.parts.*part, 1e-6 * whole.stepNs) << name;
        };
        near(&StepParts::projectionsNs), near(&StepParts::selectionNs), near(&StepParts::attentionNs);
        near(&StepParts::exposedNs), near(&StepParts::otherNs);
        EXPECT_GT(whole.parts.projectionsNs, 0);
    }
}

TEST(MeasuredRun, OfALiveRunIsWhatItsRowKnows) {
    const test::Folder folder;
    const synthetic::RunShape shape{.decodeSteps = 40};
    const std::string path = (folder / "live.kvtrace").string();
    Recorder recorder(path, {});
    recorder.beginRun(synthetic::infoOf(shape));
    synthetic::RunGenerator generator(shape);
    const auto record = [&](int count) {
        generator.recordNext(recorder, count);
        recorder.flush();
    };
    record(21);
    const TraceReader reader(path);
    const RunRow row = *reader.run(1);
    const MeasuredRun before = measuredRun(reader, 1);
    record(20);
    MeasuredRun run = measuredSteps(reader, row);
    int next = 0;
    EXPECT_TRUE(addParts(run, reader, next));
    EXPECT_EQ(run.steps, 19);
    EXPECT_EQ(run.stepNs, before.stepNs);
    EXPECT_EQ(run.context, before.context);
    EXPECT_NE(run.context, measuredSteps(reader, 1).context) << "there are more steps by now";
    const StepParts& p = run.parts;
    EXPECT_NEAR(p.projectionsNs + p.selectionNs + p.attentionNs + p.otherNs, run.stepNs, 1e-3);
}

TEST(MeasuredRun, OfRunsOnTheH200StaysAboveTheFloor) {
    const GpuTable table;
    for (const char* name : {"h200-nosa-8b.kvtrace", "h200-nosa-tiny.kvtrace"}) {
        const TraceReader reader = sample(name);
        for (const RunRow& row : reader.runs()) {
            const MeasuredRun run = measuredRun(reader, row.runId);
            SCOPED_TRACE(row.name);
            const std::optional<ModelShape> shape = shapeOfRun(row);
            ASSERT_TRUE(shape);
            const GpuSpec* gpu = gpuOfRun(table, row);
            ASSERT_TRUE(gpu);
            EXPECT_EQ(gpu->name, "h200");
            const RunBesideFloor c = compare(run, *shape, *gpu);
            EXPECT_LE(c.shareOfFloor, 1.02);
            EXPECT_GT(c.shareOfFloor, 0.01);
            EXPECT_THAT(c.why, HasSubstr("% of the difference"));
            const StepParts& p = run.parts;
            EXPECT_NEAR(p.projectionsNs + p.selectionNs + p.attentionNs + p.exposedNs + p.otherNs, run.stepNs, 1);
            if (!run.offloaded()) continue;
            // Same hit rate and block size, so the bytes agree but for blocks that are new in their step.
            EXPECT_NEAR(c.predicted.linkBytes, run.linkBytes, 0.01 * run.linkBytes);
        }
    }
}

TEST(MeasuredRun, OfTheEightBShapeWaitsForTransfersAsPredicted) {
    const TraceReader reader = sample("h200-nosa-8b.kvtrace");
    const MeasuredRun run = measuredRun(reader, 1);
    EXPECT_NEAR(run.batch, 4, 1e-9);
    EXPECT_NEAR(run.context, 16397, 2);
    const RunBesideFloor c = compare(run, *shapeOfRun(run.row), GpuTable().get("h200"));
    EXPECT_NEAR(c.predicted.exposedNs, run.exposedNs, 0.02 * run.exposedNs);
    EXPECT_THAT(c.why, HasSubstr("the projections take")) << "four inputs keep them from the memory's rate";
}

TEST(MeasuredRun, OfEveryMethodAttendsToTheRecordedBlocks) {
    const test::Folder folder;
    synthetic::recordFile(folder / "run.kvtrace", {}, RecordLevel::Counters);
    const TraceReader reader((folder / "run.kvtrace").string());
    for (const MethodEntry& method : methods()) {
        if (!method.decodesTokens) continue;
        RunRow row = *reader.run(1);
        row.method = method.name;
        row.paramsJson = method.name == std::string("quest") ? R"({"group":"per_query_head"})" : "{}";
        for (const int kvHeads : {row.kvHeads, 0}) {
            row.kvHeads = kvHeads;
            const SelectionSpec spec = measuredSteps(reader, row).method;
            EXPECT_TRUE(spec.dense || spec.budgetBlocks() == row.budgetBlocks) << method.name;
        }
    }
}

TEST(MeasuredRun, WithoutADecodeStepIsRefused) {
    const test::Folder folder;
    synthetic::RunShape shape;
    shape.decodeSteps = 0;
    synthetic::recordFile(folder / "prefill.kvtrace", shape, RecordLevel::Counters);
    const auto refusal = [&](const char* file, int runId) -> std::string {
        try {
            measuredRun(TraceReader((folder / file).string()), runId);
        } catch (const Error& error) {
            return oneLine(error);
        }
        return {};
    };
    EXPECT_THAT(refusal("prefill.kvtrace", 1), HasSubstr("has no decode step"));
    EXPECT_THAT(refusal("prefill.kvtrace", 9), HasSubstr("has no run 9"));
}

TEST(MeasuredRun, TakesShapeAndMachineFromTheTrace) {
    const test::Folder folder;
    const std::string file = (folder / "run.kvtrace").string();
    const synthetic::RunShape shape;
    RunInfo info = synthetic::infoOf(shape);
    info.model = "nosa-8b"; // the name of a published shape, which is not this one
    const ModelShape own{"mine", info.layers, 320, info.queryHeads, info.kvHeads, info.headDim, 900, 1000,
                         true,   true,        2};
    info.meta = {{"model_shape", toJson(own)}, {"processor", "a processor"}};
    {
        Recorder recorder(file, {});
        recorder.beginRun(info);
        recorder.endRun(RunStatus::Finished, "");
    }
    RunRow row = *TraceReader(file).run(1);
    const auto read = shapeOfRun(row);
    ASSERT_TRUE(read);
    EXPECT_EQ(read->name, "mine");
    EXPECT_EQ(read->hidden, 320);
    EXPECT_EQ(read->streamedWeights(), own.streamedWeights());
    EXPECT_TRUE(read->tiedEmbeddings);
    // What is damaged, or of other dimensions than the run's, is not known.
    for (const std::string& bad :
         {std::string("{}"), std::string("not JSON"), toJson({"mine", 99, 320, 6, 2, 64, 1, 1}),
          std::string(R"({"layers":4,"hidden":-1})")}) {
        row.meta["model_shape"] = bad;
        EXPECT_FALSE(shapeOfRun(row)) << bad;
    }
    row.meta.clear();
    EXPECT_FALSE(shapeOfRun(row)) << "the name alone, with other dimensions";

    GpuTable table;
    row.meta["processor"] = "a processor";
    EXPECT_EQ(gpuOfRun(table, row), nullptr) << "a CPU run is not judged by a GPU";
    table.merge(R"({"gpus":[{"name":"local-cpu","processor":"another processor","read_gbps":1,"tflops":1,"memory_gib":1,
                "link_gbps":1,"latency_us":1}]})",
                "test");
    EXPECT_EQ(gpuOfRun(table, row), nullptr) << "measured on another processor";
    row.meta["processor"] = "another processor";
    EXPECT_EQ(gpuOfRun(table, row)->name, "local-cpu");
    row.meta.clear();
    EXPECT_EQ(gpuOfRun(table, row), nullptr) << "an older trace does not say which processor it was";
}

TEST(MeasuredRun, AboveItsRoofSaysSo) {
    const TraceReader reader = sample("h200-nosa-8b.kvtrace");
    MeasuredRun run = measuredRun(reader, 1);
    EXPECT_FALSE(compare(run, *shapeOfRun(run.row), GpuTable().get("h200")).aboveRoof);
    run.stepNs /= 14; // so short a step follows when a small model is compared with the shape of a large one
    run.tokensPerSecond *= 14;
    const RunBesideFloor c = compare(run, *shapeOfRun(run.row), GpuTable().get("h200"));
    EXPECT_TRUE(c.aboveRoof);
    EXPECT_THAT(c.why, HasSubstr("% of the time that NVIDIA H200 needs"));
    EXPECT_THAT(c.why, HasSubstr("is wrong"));
}

TEST(MeasuredRun, LeavesEveryColdStepOutOfItsMeansAndParts) {
    const test::Folder folder;
    synthetic::recordFile(folder / "run.kvtrace", {}, RecordLevel::Selections);
    const TraceReader reader((folder / "run.kvtrace").string());
    const MeasuredRun warm = measuredRun(reader, 1);
    EXPECT_EQ(warm.coldSteps, 1);
    EXPECT_EQ(warm.leftOut, std::vector<int>{1});
    setColdSteps(ColdSteps::Counted);
    const MeasuredRun all = measuredRun(reader, 1);
    setColdSteps(ColdSteps::LeftOut);
    EXPECT_EQ(all.steps, warm.steps + 1);
    EXPECT_TRUE(all.leftOut.empty());
    for (const MeasuredRun* run : {&warm, &all}) {
        const StepParts& p = run->parts;
        EXPECT_NEAR(p.projectionsNs + p.selectionNs + p.attentionNs + p.otherNs, run->stepNs, 1e-3);
    }
}

TEST(MeasuredRun, ShapesComeFromNamesThatFitTheTrace) {
    RunRow row;
    row.model = "nosa-8b (random weights)";
    row.layers = 32, row.kvHeads = 2, row.queryHeads = 32, row.headDim = 128;
    EXPECT_EQ(shapeOfRun(row)->name, "nosa-8b");
    row.model = "nosa-8b-instruct";
    EXPECT_FALSE(shapeOfRun(row)) << "another model";
    row.model = "nosa-8b";
    row.layers = 31;
    EXPECT_FALSE(shapeOfRun(row));
    row = {};
    row.model = "nosa-tiny";
    row.layers = 8, row.kvHeads = 2, row.queryHeads = 6, row.headDim = 64;
    const auto tiny = shapeOfRun(row);
    ASSERT_TRUE(tiny);
    EXPECT_EQ(tiny->layers, 8);
}

TEST(MeasuredRun, TheMachinesOwnMeasurementComesFirst) {
    GpuTable table;
    RunRow row;
    row.backend = RunBackend::Cuda;
    row.device = "NVIDIA H200, 132 multiprocessors, CUDA 13.0";
    EXPECT_EQ(gpuOfRun(table, row)->name, "h200");
    table.merge(R"({"gpus":[{"name":"local","title":"NVIDIA H200","read_gbps":1,"tflops":1,"memory_gib":1,"link_gbps":1,
                "latency_us":1},{"name":"local-cpu","title":"cpu: AVX2, 2 threads","read_gbps":1,"tflops":1,
                "memory_gib":1,"link_gbps":1,"latency_us":1}]})",
                "test");
    EXPECT_EQ(gpuOfRun(table, row)->name, "local");
    row.device = "NVIDIA H2000";
    EXPECT_EQ(gpuOfRun(table, row), nullptr);
    row.backend = RunBackend::Cpu;
    row.device = "cpu: AVX2, 2 threads";
    EXPECT_EQ(gpuOfRun(table, row)->name, "local-cpu");
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
