#include "profiler/cupti/pm_sampling.h"

#include "base/clock.h"
#include "base/error.h"
#include "core/session/gpu_bus_id.h"
#include "profiler/cupti/pm_device.h"

#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

namespace kvscope {
namespace {

// Often enough that the hardware's buffer never fills, seldom enough to leave the driver to the engine.
constexpr std::chrono::milliseconds kPause(50);

} // namespace

struct PmSampling::Impl {
    Impl(std::unique_ptr<PmSource> from, std::vector<PmMetric> metrics, std::int64_t intervalNs,
         std::chrono::milliseconds between)
        : source(std::move(from)), interval(intervalNs), tracks(std::move(metrics), intervalNs), pause(between) {
        reader = std::jthread([this](const std::stop_token& stop) {
            std::unique_lock lock(reading);
            while (!wake.wait_for(lock, stop, pause, [&] { return stop.stop_requested(); })) read();
        });
    }

    // Call these with `reading` held.
    std::string begin() {
        beganNs = steadyNowNs();
        std::string refusal = source->start();
        sampling = refusal.empty();
        silentSinceNs = sampling ? 0 : beganNs;
        if (sampling) return refusal;
        const std::lock_guard lock(mutex);
        remark = "PM sampling counts PCIe bytes no more, because " + refusal;
        return refusal;
    }
    /// @return false if the hardware has to be started again
    bool fetch() {
        fresh.clear();
        const bool complete = source->read(fresh);
        std::erase_if(fresh, [this](const PmSample& sample) { return sample.startNs < beganNs; });
        {
            const std::lock_guard lock(mutex);
            tracks.add(fresh);
            if (!complete) tracks.overflowed();
        }
        return complete;
    }
    void read() {
        if (!sampling || fetch()) return;
        source->stop();
        begin();
    }
    void end() {
        if (silentSinceNs > 0) unsampled += (steadyNowNs() - std::exchange(silentSinceNs, 0)) / interval;
        if (!std::exchange(sampling, false)) return;
        source->stop();
        fetch();
    }

    std::mutex reading; // for as long as samples are fetched, a few milliseconds
    std::unique_ptr<PmSource> source;
    std::vector<PmSample> fresh;
    bool sampling = false;
    std::int64_t beganNs = 0;
    std::int64_t silentSinceNs = 0; // since the hardware refused; 0: it did not
    std::int64_t unsampled = 0;     // intervals in which it was to sample and refused
    const std::int64_t interval;

    std::mutex mutex; // held for moments only, because the engine waits for it
    PmTracks tracks;
    std::string remark; // not handed out yet

    bool asked = false; // the engine's thread only, as what follows
    std::int64_t runBeganNs = 0, lostBefore = 0;

    const std::chrono::milliseconds pause;
    std::condition_variable_any wake;
    std::jthread reader; // last: it uses all of the above
};

std::unique_ptr<GpuCounters> PmSampling::open(std::string& refusal) {
    int gpu = 0;
    try {
        gpu = gpuNumber();
    } catch (const Error& error) {
        refusal = oneLine(error);
        return nullptr;
    }
    PmDevice device = openPmDevice(gpu, kIntervalNs, refusal);
    if (device.source == nullptr) return nullptr;
    auto sampling =
        std::make_unique<PmSampling>(std::move(device.source), std::move(device.metrics), kIntervalNs, kPause);
    refusal = sampling->begin();
    return refusal.empty() ? std::move(sampling) : nullptr;
}

PmSampling::PmSampling(std::unique_ptr<PmSource> source, std::vector<PmMetric> metrics, std::int64_t intervalNs,
                       std::chrono::milliseconds pause)
    : impl_(std::make_unique<Impl>(std::move(source), std::move(metrics), intervalNs, pause)) {}

PmSampling::~PmSampling() = default;

std::string PmSampling::begin() {
    impl_->asked = true;
    impl_->runBeganNs = steadyNowNs();
    const std::lock_guard lock(impl_->reading);
    return impl_->begin();
}

void PmSampling::atStep(int) {
    if (!impl_->asked) begin();
}

std::string PmSampling::remark() {
    const std::lock_guard lock(impl_->mutex);
    return std::exchange(impl_->remark, {});
}

std::vector<CounterSample> PmSampling::take(std::int64_t originNs, bool all) {
    std::int64_t unsampled = 0;
    if (all) {
        const std::lock_guard lock(impl_->reading);
        impl_->end();
        unsampled = std::exchange(impl_->unsampled, 0);
    }
    const std::lock_guard lock(impl_->mutex);
    std::vector<CounterSample> samples = impl_->tracks.take(originNs);
    if (!all || !impl_->asked) return samples;
    impl_->asked = false;
    impl_->tracks.pause();
    const std::int64_t lost = impl_->tracks.lost(), before = std::exchange(impl_->lostBefore, lost);
    samples.push_back(
        {kLostPmSamples, impl_->runBeganNs - originNs, steadyNowNs() - impl_->runBeganNs, lost - before + unsampled});
    return samples;
}

} // namespace kvscope
