#include "profiler/cupti/pm_host.h"

#include <array>
#include <fmt/format.h>
#include <utility>

#ifdef KVSCOPE_HAVE_PM_SAMPLING
#include "profiler/cupti/cupti_struct.h"

#include <cupti_profiler_host.h>
#include <cupti_result.h>
#include <dlfcn.h>
#endif

namespace kvscope {

std::span<const PmMetric> pmMetrics() {
    static constexpr std::array<PmMetric, 4> kMetrics{{
        {"pcie__read_bytes.sum", kPmToDevice, true},
        {"pcie__write_bytes.sum", kPmToHost, true},
        {"dram__bytes_read.sum", kPmMemoryRead},
        {"dram__bytes_write.sum", kPmMemoryWritten},
    }};
    static_assert(kMetrics.size() <= kMostPmMetrics);
    return kMetrics;
}

std::string pmRefusal(int code, std::string_view doing, std::string_view text) {
    switch (code) { // cupti_result.h
    case 7:         // INVALID_OPERATION: it is enabled on this GPU already
    case 26:        // HARDWARE_BUSY
        return "another profiler (ncu, nsys, DCGM) holds the GPU's counters: close it";
    case 15: // NOT_INITIALIZED
        return "libnvperf_host.so was not found beside libcupti";
    case 14: // NOT_COMPATIBLE
    case 27: // NOT_SUPPORTED
    case 46: // INVALID_CHIP_NAME
        return "CUPTI cannot sample this GPU's counters";
    case 33: // VIRTUALIZED_DEVICE_NOT_SUPPORTED
    case 40: // VIRTUALIZED_DEVICE_INSUFFICIENT_PRIVILEGES
        return "this is a virtual GPU, and its host does not let it be profiled";
    case 35: // INSUFFICIENT_PRIVILEGES
        return "this user may not read the GPU's counters: load the nvidia module with "
               "NVreg_RestrictProfilingToAdminUsers=0, or run with CAP_PERFMON (in a container: --cap-add=PERFMON; "
               "CAP_SYS_ADMIN with drivers before 565)";
    case 39: // MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED
        return "another tool is already recording this process through CUPTI";
    case 41: // CONFIDENTIAL_COMPUTING_NOT_SUPPORTED
        return "confidential computing hides the GPU's counters";
    case 43: // MIG_DEVICE_NOT_SUPPORTED
        return "a MIG slice of a GPU has no counters of the whole link";
    case 45: // WSL_DEVICE_NOT_SUPPORTED
        return "CUPTI cannot sample counters under WSL";
    default:
        return fmt::format("CUPTI refused {} ({})", doing, text);
    }
}

#ifdef KVSCOPE_HAVE_PM_SAMPLING

namespace {

struct HostApi {
    decltype(&cuptiProfilerHostInitialize) make = nullptr;
    decltype(&cuptiProfilerHostDeinitialize) destroy = nullptr;
    decltype(&cuptiProfilerHostConfigAddMetrics) addMetrics = nullptr;
    decltype(&cuptiProfilerHostGetConfigImageSize) configSize = nullptr;
    decltype(&cuptiProfilerHostGetConfigImage) config = nullptr;
    decltype(&cuptiProfilerHostGetNumOfPasses) passes = nullptr;
    decltype(&cuptiProfilerHostEvaluateToGpuValues) evaluate = nullptr;

    explicit HostApi(const CuptiLibrary& library) {
        complete = library.find(make, "cuptiProfilerHostInitialize") &&
                   library.find(destroy, "cuptiProfilerHostDeinitialize") &&
                   library.find(addMetrics, "cuptiProfilerHostConfigAddMetrics") &&
                   library.find(configSize, "cuptiProfilerHostGetConfigImageSize") &&
                   library.find(config, "cuptiProfilerHostGetConfigImage") &&
                   library.find(passes, "cuptiProfilerHostGetNumOfPasses") &&
                   library.find(evaluate, "cuptiProfilerHostEvaluateToGpuValues");
    }
    bool complete = false;
};

} // namespace

struct PmHost::Impl {
    HostApi api;
    std::string chip;
    std::vector<std::uint8_t> config;
    std::vector<PmMetric> metrics;
    std::vector<const char*> names;
    CUpti_Profiler_Host_Object* host = nullptr;

    explicit Impl(const CuptiLibrary& library) : api(library) {}
    Impl(const Impl&) = delete;
    Impl& operator=(const Impl&) = delete;
    ~Impl() { release(); }

    void release() {
        if (host == nullptr) return;
        auto params = KVSCOPE_CUPTI_STRUCT(CUpti_Profiler_Host_Deinitialize_Params);
        params.pHostObject = std::exchange(host, nullptr);
        api.destroy(&params);
    }

    CUptiResult begin() {
        auto params = KVSCOPE_CUPTI_STRUCT(CUpti_Profiler_Host_Initialize_Params);
        params.profilerType = CUPTI_PROFILER_TYPE_PM_SAMPLING;
        params.pChipName = chip.c_str();
        const CUptiResult result = api.make(&params);
        host = result == CUPTI_SUCCESS ? params.pHostObject : nullptr;
        return result;
    }

    /// Asks for these metrics and no others. @return whether the chip has them all and counts them in one pass
    bool choose(const std::vector<PmMetric>& wanted) {
        release(); // after an unknown name the host object cannot be used
        if (begin() != CUPTI_SUCCESS) return false;
        metrics = wanted;
        names.clear();
        for (const PmMetric& metric : metrics) names.push_back(metric.name);
        auto add = KVSCOPE_CUPTI_STRUCT(CUpti_Profiler_Host_ConfigAddMetrics_Params);
        add.pHostObject = host;
        add.ppMetricNames = names.data();
        add.numMetrics = names.size();
        if (api.addMetrics(&add) != CUPTI_SUCCESS) return false;
        auto size = KVSCOPE_CUPTI_STRUCT(CUpti_Profiler_Host_GetConfigImageSize_Params);
        size.pHostObject = host;
        if (api.configSize(&size) != CUPTI_SUCCESS) return false;
        config.assign(size.configImageSize, 0);
        auto image = KVSCOPE_CUPTI_STRUCT(CUpti_Profiler_Host_GetConfigImage_Params);
        image.pHostObject = host;
        image.configImageSize = config.size();
        image.pConfigImage = config.data();
        if (api.config(&image) != CUPTI_SUCCESS) return false;
        auto passes = KVSCOPE_CUPTI_STRUCT(CUpti_Profiler_Host_GetNumOfPasses_Params);
        passes.configImageSize = config.size();
        passes.pConfigImage = config.data();
        return api.passes(&passes) == CUPTI_SUCCESS && passes.numOfPasses == 1;
    }
};

std::unique_ptr<PmHost> PmHost::make(const CuptiLibrary& library, const std::string& chip, std::string& refusal) {
    // libcupti opens this one by its bare name, which finds it anywhere once it is loaded.
    const std::string folder = library.folder().empty() ? std::string() : library.folder() + '/';
    dlopen((folder + "libnvperf_host.so").c_str(), RTLD_NOW | RTLD_LOCAL);
    auto impl = std::make_unique<Impl>(library);
    if (!impl->api.complete) {
        refusal = "libcupti has no PM sampling: it is of another version than this program was built for";
        return nullptr;
    }
    impl->chip = chip;
    if (const CUptiResult result = impl->begin(); result != CUPTI_SUCCESS) {
        refusal = pmRefusal(result, "to look up the counters of " + chip, library.nameOf(result));
        return nullptr;
    }
    std::vector<PmMetric> chosen;
    for (const PmMetric& metric : pmMetrics())
        if (metric.required) chosen.push_back(metric);
    const auto all = pmMetrics();
    if (!impl->choose({all.begin(), all.end()})) {
        if (!impl->choose(chosen)) {
            refusal = fmt::format("{} has no PCIe byte counters that can be sampled", chip);
            return nullptr;
        }
        for (const PmMetric& metric : pmMetrics()) {
            if (metric.required) continue;
            chosen.push_back(metric);
            if (!impl->choose(chosen)) chosen.pop_back();
        }
        impl->choose(chosen);
    }
    return std::unique_ptr<PmHost>(new PmHost(std::move(impl)));
}

PmHost::PmHost(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
PmHost::~PmHost() = default;

const std::vector<PmMetric>& PmHost::metrics() const { return impl_->metrics; }
std::span<const char*> PmHost::names() const { return impl_->names; }
const std::vector<std::uint8_t>& PmHost::config() const { return impl_->config; }

bool PmHost::evaluate(const std::vector<std::uint8_t>& image, std::size_t sample, PmSample& values) const {
    auto params = KVSCOPE_CUPTI_STRUCT(CUpti_Profiler_Host_EvaluateToGpuValues_Params);
    params.pHostObject = impl_->host;
    params.pCounterDataImage = image.data();
    params.counterDataImageSize = image.size();
    params.rangeIndex = sample;
    params.ppMetricNames = impl_->names.data();
    params.numMetrics = impl_->names.size();
    params.pMetricValues = values.values.data();
    return impl_->api.evaluate(&params) == CUPTI_SUCCESS;
}

#else

// Without the headers make() refuses, so no PmHost exists. Its members are there for the linker.
struct PmHost::Impl {
    std::vector<PmMetric> metrics;
    std::vector<const char*> names;
    std::vector<std::uint8_t> config;
};

std::unique_ptr<PmHost> PmHost::make(const CuptiLibrary&, const std::string&, std::string& refusal) {
    refusal = "this KVScope was built without the headers of CUPTI's PM sampling";
    return nullptr;
}
PmHost::PmHost(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
PmHost::~PmHost() = default;
const std::vector<PmMetric>& PmHost::metrics() const { return impl_->metrics; }
std::span<const char*> PmHost::names() const { return impl_->names; }
const std::vector<std::uint8_t>& PmHost::config() const { return impl_->config; }
bool PmHost::evaluate(const std::vector<std::uint8_t>&, std::size_t, PmSample&) const { return false; }

#endif

} // namespace kvscope
