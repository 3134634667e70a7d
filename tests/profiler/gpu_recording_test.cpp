// Recording of kernels and PCIe counters on a real GPU; skipped where there is none.
#include "profiler/cupti/gpu_recording.h"

#include "base/error.h"
#include "core/session/decode_session.h"
#include "core/session/engine.h"
#include "profiler/read/counters.h"
#include "profiler/record/recorder.h"
#include "tests/profiler/sql_rows.h"
#include "tests/profiler/temporary_folder.h"

#include <cstdlib>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <random>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

class GpuRecordingTest : public testing::Test {
protected:
    void SetUp() override {
        try {
            requireGpu(); // a CUDA call before CUPTI is attached, as in the desktop
        } catch (const Error& error) {
            GTEST_SKIP() << error.what();
        }
    }

    static constexpr int kNewTokens = 40;
    static std::shared_ptr<const Model> model() {
        static const auto loaded = Model::load(kDefaultModel);
        return loaded;
    }
    static SessionOptions options() {
        SessionOptions options;
        options.backend = Backend::Cuda;
        options.maxNewTokens = kNewTokens;
        options.stopAtEos = false;
        return options;
    }
    static std::vector<std::int32_t> prompt() {
        std::mt19937 random(5);
        std::vector<std::int32_t> ids{0};
        while (ids.size() < 4000) ids.push_back(std::int32_t(2 + random() % 4094));
        return ids;
    }
    /// A recorded session like the desktop's and the command line's. @return its tokens
    std::vector<std::int32_t> record(const std::string& file, std::string& refusal, bool calls = true,
                                     PcieCounting pcie = PcieCounting::Auto) {
        GpuRecording gpu(calls, pcie);
        refusal = gpu.refusal();
        Recorder recorder(file, {});
        SessionOptions session = options();
        session.gpuTrace = &gpu;
        const std::vector<std::int32_t> tokens = decode(session, recorder);
        pcieRemark_ = gpu.pcieRemark();
        return tokens;
    }
    std::vector<std::int32_t> decode(const SessionOptions& session, TraceSink& sink) {
        DecodeSession run(model(), {prompt()}, session, sink);
        run.prefill();
        while (run.step()) {
        }
        run.end(RunStatus::Finished);
        return run.generated().front();
    }
    test::Folder folder_;
    std::string pcieRemark_;
};

TEST_F(GpuRecordingTest, AttachesAfterOtherGpuWorkAndAgainForTheNextRun) {
    NullSink nobody;
    const auto expected = decode(options(), nobody); // GPU work that nobody records
    for (int run = 1; run <= 3; ++run) {
        SCOPED_TRACE(run);
        const std::string file = (folder_ / ("run" + std::to_string(run))).string();
        std::string refusal;
        EXPECT_EQ(record(file, refusal), expected);
        if (!refusal.empty()) GTEST_SKIP() << refusal;
        // Every decode step has its kernels: of every layer, all inside the step's own time.
        EXPECT_EQ(test::value(file, "SELECT count(DISTINCT step) FROM v_kernel WHERE step > 0"),
                  std::to_string(kNewTokens - 1));
        EXPECT_EQ(test::value(file, "SELECT count(*) FROM (SELECT step, count(DISTINCT layer) n FROM v_kernel"
                                    " WHERE step > 0 AND layer >= 0 GROUP BY step HAVING n <> 8)"),
                  "0");
        EXPECT_EQ(test::value(file, "SELECT count(DISTINCT n) FROM (SELECT count(*) n FROM v_kernel WHERE step > 1"
                                    " AND layer >= 0 GROUP BY step)"),
                  "1")
            << "steps differ in their kernels";
        EXPECT_EQ(test::value(file, "SELECT count(*) FROM v_kernel k JOIN v_step s ON s.step = k.step WHERE k.step > 0"
                                    " AND (k.start_ns < s.start_ns - 50000"
                                    " OR k.start_ns + k.duration_ns > s.start_ns + s.duration_ns + 50000)"),
                  "0")
            << "kernels and steps are on one clock, within 50 us";
        EXPECT_EQ(lostGpuRecords(TraceReader(file), 1), 0);
        // A decode step is one launch, and all its kernels come from it, none before it.
        EXPECT_EQ(test::value(file, "SELECT count(*) || ' ' || count(DISTINCT step) FROM v_span"
                                    " WHERE name = 'cudaGraphLaunch' AND step > 0"),
                  fmt::format("{0} {0}", kNewTokens - 1));
        EXPECT_EQ(test::value(file, "SELECT count(*) FROM span s WHERE kind = 1 AND step > 0 AND layer >= 0"
                                    " AND NOT EXISTS (SELECT 1 FROM flow f JOIN span c ON c.id = f.from_span"
                                    " WHERE f.to_span = s.id AND c.step = s.step AND c.start_ns <= s.start_ns)"),
                  "0");
    }
}

TEST_F(GpuRecordingTest, LeavesCallsOutWhenNobodyWantsThem) {
    const std::string file = (folder_ / "run").string();
    std::string refusal;
    record(file, refusal, false);
    if (!refusal.empty()) GTEST_SKIP() << refusal;
    EXPECT_EQ(test::value(file, "SELECT count(*) FROM v_span WHERE track LIKE 'CUDA calls%'"), "0");
    EXPECT_EQ(test::value(file, "SELECT count(*) FROM flow"), "0");
    EXPECT_NE(test::value(file, "SELECT count(*) FROM v_kernel"), "0");
}

TEST_F(GpuRecordingTest, CountersSeeAtLeastTheBytesOfTheEngine) {
    const std::string file = (folder_ / "run").string();
    std::string refusal;
    record(file, refusal);
    const TraceReader reader(file);
    const auto traffic = pcieTraffic(reader, 1);
    if (!traffic) GTEST_SKIP() << "this GPU has no PCIe counters";
    EXPECT_GT(traffic->engineToDevice, 0);
    EXPECT_GE(traffic->countedToDevice, traffic->engineToDevice * 9 / 10); // the border is read within a millisecond
    std::int64_t end = std::numeric_limits<std::int64_t>::min();
    for (const CounterSample& sample : counterSamples(reader, 1)) {
        if (sample.track != kPcieToDevice) continue;
        EXPECT_GE(sample.value, 0);
        EXPECT_GE(sample.startNs, end) << "samples overlap";
        end = sample.startNs + sample.durationNs;
    }
}

/// The GPU's own count against the engine's, over every run that one process records.
TEST_F(GpuRecordingTest, PmSamplingCountsThePacketsOfTheEnginesBytes) {
    for (int run = 1; run <= 2; ++run) {
        SCOPED_TRACE(run);
        const std::string file = (folder_ / ("run" + std::to_string(run))).string();
        std::string refusal;
        record(file, refusal, true, PcieCounting::Pm);
        if (!pcieRemark_.empty()) GTEST_SKIP() << pcieRemark_;
        const TraceReader reader(file);
        const auto traffic = pcieTraffic(reader, 1);
        ASSERT_TRUE(traffic.has_value());
        EXPECT_TRUE(traffic->sampled);
        // Launches and records of kernels come on top, at most some 30 KB a step.
        EXPECT_GE(traffic->countedToDevice, traffic->expectedToDevice() * 97 / 100);
        EXPECT_LE(traffic->countedToDevice, traffic->expectedToDevice() * 103 / 100 + kNewTokens * 200'000);
        EXPECT_GE(traffic->countedToHost, traffic->expectedToHost() * 97 / 100);
        EXPECT_EQ(lostPmSamples(reader, 1), 0);
        EXPECT_EQ(lostGpuRecords(reader, 1), 0);
        EXPECT_FALSE(pcieOfSteps(reader, 1).empty()) << "samples are finer than a step";
        std::int64_t end = std::numeric_limits<std::int64_t>::min();
        for (const CounterSample& sample : counterSamples(reader, 1)) {
            if (sample.track != kPmToDevice) continue;
            EXPECT_GE(sample.startNs, end) << "samples overlap";
            end = sample.startNs + sample.durationNs;
        }
        EXPECT_NE(test::value(file, "SELECT count(*) FROM v_counter WHERE track = 'DRAM bytes read (PM)'"), "0");
    }
}

TEST_F(GpuRecordingTest, CountsThroughNvmlOrNotAtAllWhereThatIsWanted) {
    std::string refusal;
    const std::string file = (folder_ / "nvml").string();
    record(file, refusal, true, PcieCounting::Nvml);
    EXPECT_EQ(test::value(file, "SELECT count(*) FROM v_counter WHERE track LIKE '%(PM)'"), "0");
    const std::string none = (folder_ / "none").string();
    record(none, refusal, true, PcieCounting::Off);
    EXPECT_EQ(test::value(none, "SELECT count(*) FROM v_counter WHERE track LIKE 'PCIe%'"), "0");
    EXPECT_EQ(pcieRemark_, "");
}

TEST_F(GpuRecordingTest, KernelsOneByOneGiveTheGraphsTokens) {
    NullSink nobody;
    const auto expected = decode(options(), nobody);
    setenv("KVSCOPE_NO_GRAPH", "1", 1);
    const auto single = decode(options(), nobody);
    unsetenv("KVSCOPE_NO_GRAPH");
    EXPECT_EQ(single, expected);
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
