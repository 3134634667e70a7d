#include "profiler/cupti/pm_device.h"

#include "profiler/cupti/cupti_library.h"
#include "profiler/cupti/pm_host.h"

#include <algorithm>
#include <utility>

#ifdef KVSCOPE_HAVE_PM_SAMPLING

#include "profiler/cupti/cupti_struct.h"

#include <cupti.h>
#include <cupti_pmsampling.h>
#include <cupti_profiler_target.h>
#include <cupti_target.h>

namespace kvscope {
namespace {

// Memory that the hardware writes until it is fetched. Setting it up takes longer the larger it is: 67 ms for 16 MiB,
// 180 for 256.
constexpr std::size_t kHardwareBuffer = std::size_t(16) << 20;
// Samples that one image can take, 0.2 s of them. When a fetch fills the image, another one follows, but at most
// kImagesAtOnce of them, so that fetching does not run after what the hardware writes meanwhile.
constexpr std::uint32_t kSamplesAtOnce = 4096;
constexpr int kImagesAtOnce = 16;

struct PmApi {
    decltype(&cuptiProfilerInitialize) initialize = nullptr;
    decltype(&cuptiDeviceGetChipName) chipName = nullptr;
    decltype(&cuptiPmSamplingEnable) enable = nullptr;
    decltype(&cuptiPmSamplingDisable) disable = nullptr;
    decltype(&cuptiPmSamplingSetConfig) configure = nullptr;
    decltype(&cuptiPmSamplingStart) start = nullptr;
    decltype(&cuptiPmSamplingStop) stop = nullptr;
    decltype(&cuptiPmSamplingDecodeData) decode = nullptr;
    decltype(&cuptiPmSamplingGetCounterDataSize) imageSize = nullptr;
    decltype(&cuptiPmSamplingCounterDataImageInitialize) imageInitialize = nullptr;
    decltype(&cuptiPmSamplingGetCounterDataInfo) imageInfo = nullptr;
    decltype(&cuptiPmSamplingCounterDataGetSampleInfo) sampleInfo = nullptr;

    bool load(const CuptiLibrary& library) {
        return library.find(initialize, "cuptiProfilerInitialize") &&
               library.find(chipName, "cuptiDeviceGetChipName") && library.find(enable, "cuptiPmSamplingEnable") &&
               library.find(disable, "cuptiPmSamplingDisable") && library.find(configure, "cuptiPmSamplingSetConfig") &&
               library.find(start, "cuptiPmSamplingStart") && library.find(stop, "cuptiPmSamplingStop") &&
               library.find(decode, "cuptiPmSamplingDecodeData") &&
               library.find(imageSize, "cuptiPmSamplingGetCounterDataSize") &&
               library.find(imageInitialize, "cuptiPmSamplingCounterDataImageInitialize") &&
               library.find(imageInfo, "cuptiPmSamplingGetCounterDataInfo") &&
               library.find(sampleInfo, "cuptiPmSamplingCounterDataGetSampleInfo");
    }
};

class CuptiPmSource final : public PmSource {
public:
    CuptiPmSource() = default;
    ~CuptiPmSource() override {
        if (object_ == nullptr) return;
        stop();
        auto disable = KVSCOPE_CUPTI_STRUCT(CUpti_PmSampling_Disable_Params);
        disable.pPmSamplingObject = object_;
        api_.disable(&disable); // before the configuration, which it uses, goes
    }
    CuptiPmSource(const CuptiPmSource&) = delete;
    CuptiPmSource& operator=(const CuptiPmSource&) = delete;

    /// @return empty on success, else why not
    std::string open(int gpu, std::int64_t intervalNs) {
        std::string refusal;
        library_ = CuptiLibrary::find(refusal);
        if (library_ == nullptr) return refusal;
        if (!api_.load(*library_)) return "libcupti has no PM sampling: it is older than CUDA 13";
        auto initialize = KVSCOPE_CUPTI_STRUCT(CUpti_Profiler_Initialize_Params);
        // What CUPTI does when it is asked more after a refusal is undefined: beside another tool it crashes.
        if (const CUptiResult result = api_.initialize(&initialize); result != CUPTI_SUCCESS)
            return refusalOf(result, "to profile");
        auto chip = KVSCOPE_CUPTI_STRUCT(CUpti_Device_GetChipName_Params);
        chip.deviceIndex = std::size_t(gpu);
        if (const CUptiResult result = api_.chipName(&chip); result != CUPTI_SUCCESS)
            return refusalOf(result, "to name the GPU's chip");
        host_ = PmHost::make(*library_, chip.pChipName, refusal);
        if (host_ == nullptr) return refusal;
        return configure(gpu, intervalNs);
    }

    const std::vector<PmMetric>& metrics() const { return host_->metrics(); }

    std::string start() override {
        auto start = KVSCOPE_CUPTI_STRUCT(CUpti_PmSampling_Start_Params);
        start.pPmSamplingObject = object_;
        const CUptiResult result = api_.start(&start);
        running_ = result == CUPTI_SUCCESS;
        return running_ ? std::string() : refusalOf(result, "to start sampling");
    }

    void stop() override {
        if (!std::exchange(running_, false)) return;
        auto stop = KVSCOPE_CUPTI_STRUCT(CUpti_PmSampling_Stop_Params);
        stop.pPmSamplingObject = object_;
        api_.stop(&stop);
    }

    bool read(std::vector<PmSample>& samples) override {
        for (int image = 0; image < kImagesAtOnce; ++image) {
            auto decode = KVSCOPE_CUPTI_STRUCT(CUpti_PmSampling_DecodeData_Params);
            decode.pPmSamplingObject = object_;
            decode.pCounterDataImage = image_.data();
            decode.counterDataImageSize = image_.size();
            const bool fits = api_.decode(&decode) == CUPTI_SUCCESS && decode.overflow == 0;
            append(samples);
            std::copy(emptyImage_.begin(), emptyImage_.end(), image_.begin());
            if (!fits) return false;
            if (decode.decodeStopReason != CUPTI_PM_SAMPLING_DECODE_STOP_REASON_COUNTER_DATA_FULL) return true;
        }
        return false;
    }

private:
    std::string refusalOf(CUptiResult code, std::string_view doing) const {
        return pmRefusal(code, doing, library_->nameOf(code));
    }

    std::string configure(int gpu, std::int64_t intervalNs) {
        auto enable = KVSCOPE_CUPTI_STRUCT(CUpti_PmSampling_Enable_Params);
        enable.deviceIndex = std::size_t(gpu);
        if (const CUptiResult result = api_.enable(&enable); result != CUPTI_SUCCESS)
            return refusalOf(result, "to sample counters");
        object_ = enable.pPmSamplingObject;
        auto config = KVSCOPE_CUPTI_STRUCT(CUpti_PmSampling_SetConfig_Params);
        config.pPmSamplingObject = object_;
        config.configSize = host_->config().size();
        config.pConfig = host_->config().data();
        config.hardwareBufferSize = kHardwareBuffer;
        config.samplingInterval = std::uint64_t(intervalNs);
        config.triggerMode = CUPTI_PM_SAMPLING_TRIGGER_MODE_GPU_TIME_INTERVAL;
        config.hwBufferAppendMode = CUPTI_PM_SAMPLING_HARDWARE_BUFFER_APPEND_MODE_KEEP_OLDEST;
        if (const CUptiResult result = api_.configure(&config); result != CUPTI_SUCCESS)
            return refusalOf(result, "to sample every so often");
        auto size = KVSCOPE_CUPTI_STRUCT(CUpti_PmSampling_GetCounterDataSize_Params);
        size.pPmSamplingObject = object_;
        size.pMetricNames = host_->names().data();
        size.numMetrics = host_->names().size();
        size.maxSamples = kSamplesAtOnce;
        if (const CUptiResult result = api_.imageSize(&size); result != CUPTI_SUCCESS)
            return refusalOf(result, "room for samples");
        image_.assign(size.counterDataSize, 0);
        auto initialize = KVSCOPE_CUPTI_STRUCT(CUpti_PmSampling_CounterDataImage_Initialize_Params);
        initialize.pPmSamplingObject = object_;
        initialize.counterDataSize = image_.size();
        initialize.pCounterData = image_.data();
        if (const CUptiResult result = api_.imageInitialize(&initialize); result != CUPTI_SUCCESS)
            return refusalOf(result, "room for samples");
        emptyImage_ = image_;
        return {};
    }

    /// Appends the samples that the image holds.
    void append(std::vector<PmSample>& samples) const {
        auto info = KVSCOPE_CUPTI_STRUCT(CUpti_PmSampling_GetCounterDataInfo_Params);
        info.pCounterDataImage = image_.data();
        info.counterDataImageSize = image_.size();
        if (api_.imageInfo(&info) != CUPTI_SUCCESS) return;
        for (std::size_t i = 0; i < info.numCompletedSamples; ++i) {
            auto times = KVSCOPE_CUPTI_STRUCT(CUpti_PmSampling_CounterData_GetSampleInfo_Params);
            times.pPmSamplingObject = object_;
            times.pCounterDataImage = image_.data();
            times.counterDataImageSize = image_.size();
            times.sampleIndex = i;
            PmSample sample;
            if (api_.sampleInfo(&times) != CUPTI_SUCCESS || !host_->evaluate(image_, i, sample)) continue;
            sample.startNs = std::int64_t(times.startTimestamp);
            sample.endNs = std::int64_t(times.endTimestamp);
            samples.push_back(sample);
        }
    }

    const CuptiLibrary* library_ = nullptr;
    PmApi api_;
    std::unique_ptr<PmHost> host_;
    CUpti_PmSampling_Object* object_ = nullptr;
    std::vector<std::uint8_t> image_, emptyImage_;
    bool running_ = false;
};

} // namespace

PmDevice openPmDevice(int gpu, std::int64_t intervalNs, std::string& refusal) {
    auto source = std::make_unique<CuptiPmSource>();
    refusal = source->open(gpu, intervalNs);
    if (!refusal.empty()) return {};
    std::vector<PmMetric> metrics = source->metrics();
    return {std::move(source), std::move(metrics)};
}

} // namespace kvscope

#else

namespace kvscope {

PmDevice openPmDevice(int, std::int64_t, std::string& refusal) {
    refusal = "this KVScope was built without the headers of CUPTI's PM sampling";
    return {};
}

} // namespace kvscope

#endif
