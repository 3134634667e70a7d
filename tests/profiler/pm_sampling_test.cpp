// PM sampling without a GPU: what becomes of its samples, which counters chips offer, and what is said where it is
// refused.
#include "base/clock.h"
#include "profiler/cupti/pm_sampling.h"

#include "base/error.h"
#include "profiler/cupti/cupti_library.h"
#include "profiler/cupti/pcie_counting.h"
#include "profiler/cupti/pm_host.h"
#include "profiler/cupti/pm_tracks.h"

#include <atomic>
#include <condition_variable>
#include <deque>
#include <gmock/gmock.h>
#include <mutex>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<PmMetric> twoMetrics() { return {{"a.sum", kPmToDevice, true}, {"b.sum", kPmMemoryRead}}; }
PmSample sample(std::int64_t startNs, std::int64_t endNs, double link, double memory) {
    return {startNs, endNs, {link, memory}};
}
std::vector<CounterSample> ofTrack(const std::vector<CounterSample>& all, const char* track) {
    std::vector<CounterSample> some;
    for (const CounterSample& each : all)
        if (each.track == track) some.push_back(each);
    return some;
}
auto is(std::int64_t startNs, std::int64_t durationNs, std::int64_t value) {
    return testing::AllOf(testing::Field("start", &CounterSample::startNs, startNs),
                          testing::Field("duration", &CounterSample::durationNs, durationNs),
                          testing::Field("value", &CounterSample::value, value));
}

TEST(PmTracks, GiveBytesOnTheRunsClock) {
    PmTracks tracks(twoMetrics(), 100);
    tracks.add(std::vector{sample(1000, 1100, 512, 50), sample(1100, 1200, 1024, 0), sample(1200, 1301, 2048, 100)});
    const auto taken = tracks.take(900);
    EXPECT_THAT(ofTrack(taken, kPmToDevice), ElementsAre(is(100, 100, 512), is(200, 100, 1024), is(300, 101, 2048)));
    EXPECT_THAT(ofTrack(taken, kPmMemoryRead), ElementsAre(is(100, 100, 50), is(200, 100, 0), is(300, 101, 100)));
    EXPECT_EQ(tracks.lost(), 0);
    EXPECT_TRUE(tracks.take(900).empty()) << "each sample once";
}

TEST(PmTracks, JoinWhatCountedNothingButNotAcrossAHole) {
    PmTracks tracks(twoMetrics(), 100);
    for (std::int64_t start = 0; start < 1000; start += 100) tracks.add(std::vector{sample(start, start + 100, 0, 10)});
    tracks.add(std::vector{sample(1000, 1100, 7, 10), sample(1100, 1200, 0, 10)});
    tracks.add(std::vector{sample(1500, 1600, 0, 10)}); // three are missing
    const auto taken = tracks.take(0);
    EXPECT_THAT(ofTrack(taken, kPmToDevice),
                ElementsAre(is(0, 1000, 0), is(1000, 100, 7), is(1100, 100, 0), is(1500, 100, 0)));
    EXPECT_EQ(ofTrack(taken, kPmMemoryRead).size(), 13u) << "what is not idle keeps its resolution";
    EXPECT_EQ(tracks.lost(), 3);
}

TEST(PmTracks, CountWhatIsLostOnceAndForgetWhatMakesNoSense) {
    PmTracks tracks(twoMetrics(), 100);
    tracks.add(
        std::vector{sample(0, 100, 1, 0), sample(50, 150, 9, 0), sample(200, 200, 9, 0), sample(100, 200, 2, 0)});
    EXPECT_EQ(tracks.lost(), 2) << "one goes back in time, one has no length";
    // The hardware reports an overflow, and the next sample shows the hole: the lost samples count once.
    tracks.overflowed();
    tracks.add(std::vector{sample(400, 500, 4, 0)});
    EXPECT_EQ(tracks.lost(), 2 + 2);
    tracks.pause(); // between two runs nothing is missing
    tracks.add(std::vector{sample(900'000, 900'100, 8, 0)});
    EXPECT_EQ(tracks.lost(), 2 + 2);
    std::int64_t sum = 0;
    for (const CounterSample& each : ofTrack(tracks.take(0), kPmToDevice)) sum += each.value;
    EXPECT_EQ(sum, 1 + 2 + 4 + 8);
    tracks.overflowed();
    EXPECT_EQ(tracks.lost(), 2 + 2) << "what is seen to be missing covers two reports of the hardware";
}

TEST(PmTracks, ValuesThatAreNoNumbersCountNothing) {
    PmTracks tracks(twoMetrics(), 100);
    tracks.add(
        std::vector{sample(0, 100, std::nan(""), -5), sample(100, 200, -3, std::nan("")), sample(200, 300, 6, 1)});
    EXPECT_THAT(ofTrack(tracks.take(0), kPmToDevice), ElementsAre(is(0, 200, 0), is(200, 100, 6)));
}

/// Hardware that samples what a test wants, whenever it is asked.
class ScriptedSource final : public PmSource {
public:
    struct Script {
        std::mutex mutex;
        std::condition_variable changed;
        std::deque<PmSample> waiting; // one is sampled with every reading
        int starts = 0, reads = 0;
        bool running = false;
        std::string refusal;
        bool overflow = false;
    };
    explicit ScriptedSource(Script& script) : script_(script) {}
    std::string start() override {
        const std::lock_guard lock(script_.mutex);
        ++script_.starts;
        script_.running = script_.refusal.empty();
        script_.changed.notify_all();
        return script_.refusal;
    }
    void stop() override {
        const std::lock_guard lock(script_.mutex);
        script_.running = false;
    }
    bool read(std::vector<PmSample>& samples) override {
        const std::lock_guard lock(script_.mutex);
        ++script_.reads;
        const bool all = !script_.running; // after the stop everything comes out
        while (!script_.waiting.empty()) {
            samples.push_back(script_.waiting.front());
            script_.waiting.pop_front();
            if (!all) break;
        }
        script_.changed.notify_all();
        return !std::exchange(script_.overflow, false);
    }

private:
    Script& script_;
};

TEST(PmSampling, ReadsBesideTheRunAndTheRestAtItsEnd) {
    ScriptedSource::Script script;
    const std::int64_t soon = steadyNowNs() + 1'000'000'000; // after sampling began
    script.waiting.push_back(sample(1000, soon, 77, 0));     // the first sample began before sampling did
    for (int i = 0; i < 50; ++i) script.waiting.push_back(sample(soon + 100 * i, soon + 100 * i + 100, 10 + i, 0));
    PmSampling sampling(std::make_unique<ScriptedSource>(script), twoMetrics(), 100, std::chrono::milliseconds(1));
    ASSERT_EQ(sampling.begin(), "");
    sampling.atStep(1);
    EXPECT_EQ(script.starts, 1) << "it samples already";
    {
        std::unique_lock lock(script.mutex);
        script.changed.wait(lock, [&] { return script.reads >= 5; });
    }
    std::vector<CounterSample> all = sampling.take(soon, false);
    EXPECT_TRUE(ofTrack(all, kLostPmSamples).empty()) << "known at the end";
    const auto rest = sampling.take(soon, true);
    all.insert(all.end(), rest.begin(), rest.end());
    const auto bytes = ofTrack(all, kPmToDevice);
    ASSERT_EQ(bytes.size(), 50u);
    for (int i = 0; i < 50; ++i) EXPECT_THAT(bytes[std::size_t(i)], is(100 * i, 100, 10 + i));
    ASSERT_EQ(ofTrack(all, kLostPmSamples).size(), 1u);
    EXPECT_EQ(ofTrack(all, kLostPmSamples).front().value, 0);
    EXPECT_FALSE(script.running) << "the run is over";

    sampling.atStep(0); // the next run, with a hole before it and one inside
    EXPECT_EQ(script.starts, 2);
    {
        const std::lock_guard lock(script.mutex);
        script.waiting = {sample(2 * soon, 2 * soon + 100, 1, 0), sample(2 * soon + 400, 2 * soon + 500, 1, 0)};
    }
    EXPECT_EQ(ofTrack(sampling.take(0, true), kLostPmSamples).front().value, 3);
}

TEST(PmSampling, StartsHardwareAgainThatRanOutOfRoom) {
    ScriptedSource::Script script;
    script.overflow = true;
    PmSampling sampling(std::make_unique<ScriptedSource>(script), twoMetrics(), 100, std::chrono::milliseconds(1));
    ASSERT_EQ(sampling.begin(), "");
    {
        std::unique_lock lock(script.mutex);
        script.changed.wait(lock, [&] { return script.starts == 2 && script.reads >= 3; });
        EXPECT_TRUE(script.running);
    }
    EXPECT_EQ(ofTrack(sampling.take(0, true), kLostPmSamples).front().value, 1);
    EXPECT_FALSE(script.running);
    sampling.atStep(1);
    {
        const std::lock_guard lock(script.mutex);
        script.overflow = true; // and now in the last samples
    }
    EXPECT_EQ(ofTrack(sampling.take(0, true), kLostPmSamples).front().value, 1);
    EXPECT_FALSE(script.running) << "the run is over";
}

TEST(PmSampling, AsksHardwareThatRefusesOnlyOnce) {
    ScriptedSource::Script script;
    script.refusal = "it is busy";
    PmSampling sampling(std::make_unique<ScriptedSource>(script), twoMetrics(), 100, std::chrono::milliseconds(1));
    EXPECT_EQ(sampling.begin(), "it is busy");
    for (int step = 1; step < 9; ++step) sampling.atStep(step);
    EXPECT_EQ(script.starts, 1);
}

TEST(PmSampling, SaysThatHardwareSamplesNoMoreAndCountsWhatIsMissing) {
    ScriptedSource::Script script;
    PmSampling sampling(std::make_unique<ScriptedSource>(script), twoMetrics(), 100, std::chrono::milliseconds(1));
    ASSERT_EQ(sampling.begin(), "");
    EXPECT_EQ(sampling.remark(), "");
    const auto lostAfterSilence = [&] {
        const std::int64_t from = steadyNowNs();
        while (steadyNowNs() < from + 200'000) {
        }
        return ofTrack(sampling.take(0, true), kLostPmSamples).front().value;
    };
    {
        std::unique_lock lock(script.mutex);
        script.refusal = "it is busy";
        script.overflow = true; // so that it has to be started again
        script.changed.wait(lock, [&] { return script.starts == 2; });
    }
    EXPECT_GE(lostAfterSilence(), 2'000) << "200 us of 100 ns";
    EXPECT_EQ(sampling.remark(), "PM sampling counts PCIe bytes no more, because it is busy");
    EXPECT_EQ(sampling.remark(), "") << "once";
    sampling.atStep(0); // the next run
    EXPECT_EQ(script.starts, 3);
    EXPECT_GE(lostAfterSilence(), 2'000);
    EXPECT_EQ(sampling.remark(), "PM sampling counts PCIe bytes no more, because it is busy");
    script.refusal.clear();
    sampling.atStep(0);
    EXPECT_EQ(ofTrack(sampling.take(0, true), kLostPmSamples).front().value, 0) << "it samples again";
    EXPECT_EQ(sampling.remark(), "");
}

/// CUPTI's catalogue needs no GPU.
TEST(PmHost, EveryChipSamplesItsLinkInOnePassAndWhatFitsBesideIt) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "libcupti loads its counters' library in a way that sanitizers refuse";
#elif !defined(KVSCOPE_HAVE_PM_SAMPLING)
    GTEST_SKIP() << "built without the headers of CUPTI's PM sampling";
#endif
    std::string refusal;
    const CuptiLibrary* library = CuptiLibrary::find(refusal);
    if (library == nullptr) GTEST_SKIP() << refusal;
    const auto metricsOf = [&](const char* chip) {
        const auto host = PmHost::make(*library, chip, refusal);
        EXPECT_NE(host, nullptr) << chip << ": " << refusal;
        std::vector<std::string> names;
        if (host == nullptr) return names;
        EXPECT_FALSE(host->config().empty());
        EXPECT_EQ(host->names().size(), host->metrics().size());
        for (const PmMetric& metric : host->metrics()) names.emplace_back(metric.name);
        return names;
    };
    if (PmHost::make(*library, "GH100", refusal) == nullptr && refusal.find("libnvperf_host") != std::string::npos)
        GTEST_SKIP() << refusal;
    std::vector<std::string> all, link;
    for (const PmMetric& metric : pmMetrics()) {
        all.emplace_back(metric.name);
        if (metric.required) link.emplace_back(metric.name);
    }
    ASSERT_EQ(link.size(), 2u) << "both directions";
    for (const char* chip : {"GH100", "GA100", "GA102", "AD102", "GB202"}) {
        const std::vector<std::string> names =
            metricsOf(chip); // which of the others there are depends on CUPTI's version
        EXPECT_THAT(names, testing::IsSupersetOf(link)) << chip;
        EXPECT_THAT(names, testing::IsSubsetOf(all)) << chip;
    }
    EXPECT_EQ(PmHost::make(*library, "GB100", refusal), nullptr);
    EXPECT_THAT(refusal, HasSubstr("GB100 has no PCIe byte counters"));
    EXPECT_EQ(PmHost::make(*library, "nochip", refusal), nullptr);
    EXPECT_FALSE(refusal.empty());
}

TEST(PmRefusal, NamesTheDriversSettingAndTheContainersFlag) {
    EXPECT_THAT(pmRefusal(35, "to sample counters", "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES"),
                testing::AllOf(HasSubstr("NVreg_RestrictProfilingToAdminUsers=0"), HasSubstr("--cap-add=PERFMON")));
    EXPECT_THAT(pmRefusal(26, "to sample counters", ""), HasSubstr("another profiler"));
    EXPECT_THAT(pmRefusal(15, "to sample counters", ""), HasSubstr("libnvperf_host.so"));
    EXPECT_EQ(pmRefusal(999, "to sample counters", "CUPTI_ERROR_UNKNOWN"),
              "CUPTI refused to sample counters (CUPTI_ERROR_UNKNOWN)");
}

class NoCounters final : public GpuCounters {
public:
    void atStep(int) override {}
    std::vector<CounterSample> take(std::int64_t, bool) override { return {}; }
};
OpenCounters opens(GpuCounters*& where) {
    return [&where](std::string&) {
        auto made = std::make_unique<NoCounters>();
        where = made.get();
        return made;
    };
}
OpenCounters refuses(const char* why) {
    return [why](std::string& refusal) {
        refusal = why;
        return nullptr;
    };
}

TEST(PcieCounting, TakesPmSamplingAndFallsBackToNvmlWithTheReason) {
    GpuCounters *pm = nullptr, *nvml = nullptr;
    const ChosenCounters best = chooseCounters(PcieCounting::Auto, opens(pm), opens(nvml));
    EXPECT_EQ(best.counters.get(), pm);
    EXPECT_EQ(nvml, nullptr) << "one of the two is enough";
    EXPECT_EQ(best.remark, "");

    const ChosenCounters second = chooseCounters(PcieCounting::Auto, refuses("libcupti was not found"), opens(nvml));
    EXPECT_EQ(second.counters.get(), nvml);
    EXPECT_EQ(second.remark, "PCIe bytes are counted by NVML and not by PM sampling, because libcupti was not found");

    const ChosenCounters asked = chooseCounters(PcieCounting::Nvml, refuses("nobody asks"), opens(nvml));
    EXPECT_EQ(asked.counters.get(), nvml);
    EXPECT_EQ(asked.remark, "");

    const ChosenCounters none = chooseCounters(PcieCounting::Auto, refuses("no right"), refuses("no driver"));
    EXPECT_EQ(none.counters, nullptr);
    EXPECT_EQ(none.remark, "PCIe bytes are not counted: no driver; not by PM sampling either, because no right");
    nvml = nullptr;
    const ChosenCounters strict = chooseCounters(PcieCounting::Pm, refuses("no right"), opens(nvml));
    EXPECT_EQ(strict.counters, nullptr);
    EXPECT_EQ(nvml, nullptr) << "PM sampling or nothing";
    EXPECT_EQ(strict.remark, "PCIe bytes are not counted by PM sampling, because no right");
    const ChosenCounters off = chooseCounters(PcieCounting::Off, opens(pm), opens(nvml));
    EXPECT_EQ(off.counters, nullptr);
    EXPECT_EQ(off.remark, "");
}

TEST(PcieCounting, NamesAreReadBackAndOthersRefused) {
    for (const PcieCounting counting : kPcieCountings) EXPECT_EQ(parsePcieCounting(nameOf(counting)), counting);
    try {
        parsePcieCounting("both");
        FAIL();
    } catch (const Error& error) {
        EXPECT_THAT(oneLine(error), HasSubstr("auto, pm, nvml or off"));
    }
}

/// Without a driver CUPTI is there and the GPU is not: a sentence, not a crash.
TEST(PmSampling, SaysWhyItCannotSampleHere) {
    std::string refusal;
    const auto sampling = PmSampling::open(refusal);
    if (sampling != nullptr) GTEST_SKIP() << "this GPU can";
    EXPECT_FALSE(refusal.empty());
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
