#include "profiler/nvml/pcie_counters.h"

#include <chrono>
#include <condition_variable>
#include <dlfcn.h>
#include <fmt/format.h>
#include <mutex>
#include <thread>
#include <utility>

namespace kvscope {
namespace {

// The part of NVML's binary interface that is used here. NVIDIA keeps the interface stable; nvml.h is not part of every
// CUDA toolkit.
using Device = void*;
constexpr int kSuccess = 0;
constexpr unsigned kSentBytes = 197, kReceivedBytes = 198; // NVML_FI_DEV_PCIE_COUNT_{TX,RX}_BYTES

struct FieldValue {
    unsigned fieldId = 0, scopeId = 0;
    long long timestampUs = 0, latencyUs = 0;
    int valueType = 0;
    int status = 0;
    unsigned long long value = 0; // a union in nvml.h; the counters have 32 bits and begin again at 0
};
static_assert(sizeof(FieldValue) == 40, "nvmlFieldValue_t");

constexpr std::chrono::milliseconds kSampleInterval(10);

} // namespace

struct PcieCounters::Impl {
    void* library = nullptr;
    int (*shutdown)() = nullptr;
    int (*fieldValues)(Device, int, FieldValue*) = nullptr;
    Device device = nullptr;
    bool started = false;

    std::mutex mutex;
    std::uint32_t lastReceived = 0, lastSent = 0;
    PcieBytes total;
    std::condition_variable_any wake;
    std::jthread sampler; // the last member, so that it ends before the members above, which it uses, are destroyed

    Impl() = default;
    ~Impl() {
        if (sampler.joinable()) {
            sampler.request_stop();
            sampler.join();
        }
        if (started) shutdown();
        if (library != nullptr) dlclose(library);
    }
    Impl(const Impl&) = delete;
    Impl& operator=(const Impl&) = delete;

    /// Adds the bytes since the last call. Call it with the mutex held. @return false if the driver refuses
    bool sample() {
        FieldValue fields[2];
        fields[0].fieldId = kReceivedBytes;
        fields[1].fieldId = kSentBytes;
        if (fieldValues(device, 2, fields) != kSuccess || fields[0].status != kSuccess || fields[1].status != kSuccess)
            return false;
        const auto received = std::uint32_t(fields[0].value), sent = std::uint32_t(fields[1].value);
        total.received += received - lastReceived; // in 32 bits the difference is right if the counter began again once
        total.sent += sent - lastSent;
        lastReceived = received, lastSent = sent;
        return true;
    }
};

PcieCounters::PcieCounters(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
PcieCounters::~PcieCounters() = default;

std::unique_ptr<PcieCounters> PcieCounters::open(const std::string& pciBusId, std::string& refusal) {
    auto impl = std::make_unique<Impl>();
    impl->library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (impl->library == nullptr) {
        refusal = "libnvidia-ml.so.1 was not found";
        return nullptr;
    }
    const auto find = [&]<class Function>(const char* name, Function*& function) {
        function = reinterpret_cast<Function*>(dlsym(impl->library, name));
        return function != nullptr;
    };
    int (*start)() = nullptr;
    int (*handleOf)(const char*, Device*) = nullptr;
    if (!find("nvmlInit_v2", start) || !find("nvmlShutdown", impl->shutdown) ||
        !find("nvmlDeviceGetHandleByPciBusId_v2", handleOf) || !find("nvmlDeviceGetFieldValues", impl->fieldValues)) {
        refusal = "libnvidia-ml.so.1 is too old";
        return nullptr;
    }
    if (const int status = start(); status != kSuccess) {
        refusal = fmt::format("NVML could not start (status {})", status);
        return nullptr;
    }
    impl->started = true;
    if (const int status = handleOf(pciBusId.c_str(), &impl->device); status != kSuccess) {
        refusal = fmt::format("NVML does not know GPU {} (status {})", pciBusId, status);
        return nullptr;
    }
    if (!impl->sample()) {
        refusal = "this GPU or driver has no PCIe byte counters";
        return nullptr;
    }
    impl->total = {};
    impl->sampler = std::jthread([self = impl.get()](const std::stop_token& stop) {
        std::unique_lock lock(self->mutex);
        while (!self->wake.wait_for(lock, stop, kSampleInterval, [&] { return stop.stop_requested(); })) self->sample();
    });
    return std::unique_ptr<PcieCounters>(new PcieCounters(std::move(impl)));
}

PcieBytes PcieCounters::total() const {
    const std::lock_guard lock(impl_->mutex);
    impl_->sample();
    return impl_->total;
}

} // namespace kvscope
