#include "profiler/nvml/pcie_sampler.h"

#include "base/clock.h"
#include "profiler/nvml/pcie_counters.h"

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

namespace kvscope {
namespace {

constexpr std::chrono::milliseconds kCutInterval(5);

struct Reading {
    std::int64_t atNs = 0;
    PcieBytes total;
};

} // namespace

struct PcieSampler::Impl {
    std::unique_ptr<PcieCounters> counters;
    std::mutex mutex;
    Reading last;
    std::vector<std::pair<Reading, Reading>> intervals;
    std::condition_variable_any wake;
    std::jthread sampler; // the last member, so that it ends before the members above, which it uses, are destroyed

    Reading read() const {
        // The counters are read at some moment during the call; the middle of the call is the best guess.
        const std::int64_t before = steadyNowNs();
        Reading reading{0, counters->total()};
        reading.atNs = before + (steadyNowNs() - before) / 2;
        return reading;
    }
    void cut() { // with the mutex held
        const Reading now = read();
        intervals.emplace_back(last, now);
        last = now;
    }
};

PcieSampler::PcieSampler(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

PcieSampler::~PcieSampler() {
    impl_->sampler.request_stop();
    if (impl_->sampler.joinable()) impl_->sampler.join();
}

std::unique_ptr<PcieSampler> PcieSampler::start(const std::string& pciBusId, std::string& refusal) {
    auto impl = std::make_unique<Impl>();
    impl->counters = PcieCounters::open(pciBusId, refusal);
    if (impl->counters == nullptr) return nullptr;
    impl->last = impl->read();
    impl->sampler = std::jthread([self = impl.get()](const std::stop_token& stop) {
        std::unique_lock lock(self->mutex);
        while (!self->wake.wait_for(lock, stop, kCutInterval, [&] { return stop.stop_requested(); })) self->cut();
    });
    return std::unique_ptr<PcieSampler>(new PcieSampler(std::move(impl)));
}

void PcieSampler::atStep(int step) {
    if (step > 1) return;
    const std::lock_guard lock(impl_->mutex);
    impl_->cut();
}

std::vector<CounterSample> PcieSampler::take(std::int64_t originNs, bool all) {
    std::vector<std::pair<Reading, Reading>> intervals;
    {
        const std::lock_guard lock(impl_->mutex);
        if (all) impl_->cut();
        intervals.swap(impl_->intervals);
    }
    std::vector<CounterSample> samples;
    for (const auto& [from, to] : intervals) {
        const std::int64_t start = from.atNs - originNs, duration = to.atNs - from.atNs;
        samples.push_back({kPcieToDevice, start, duration, to.total.received - from.total.received});
        samples.push_back({kPcieToHost, start, duration, to.total.sent - from.total.sent});
    }
    return samples;
}

} // namespace kvscope
