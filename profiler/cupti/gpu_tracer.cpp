#include "profiler/cupti/gpu_tracer.h"

#include "base/clock.h"
#ifdef KVSCOPE_HAVE_CUPTI

#include "profiler/cupti/activity_log.h"
#include "profiler/cupti/cupti_library.h"

#include <atomic>
#include <cstdlib>
#include <cupti.h>
#include <fmt/format.h>
#include <mutex>
#include <vector>

namespace kvscope {
namespace {

constexpr std::size_t kBufferBytes = std::size_t(4) << 20;

/// The functions of libcupti that are used.
struct Cupti {
    decltype(&cuptiSubscribe) subscribe = nullptr;
    decltype(&cuptiUnsubscribe) unsubscribe = nullptr;
    decltype(&cuptiEnableCallback) enableCallback = nullptr;
    decltype(&cuptiActivityRegisterCallbacks) registerCallbacks = nullptr;
    decltype(&cuptiActivityRegisterTimestampCallback) registerTimestamp = nullptr;
    decltype(&cuptiActivityEnable) enable = nullptr;
    decltype(&cuptiActivityDisable) disable = nullptr;
    decltype(&cuptiActivityFlushAll) flushAll = nullptr;
    decltype(&cuptiActivityGetNextRecord) nextRecord = nullptr;
    decltype(&cuptiActivityGetNumDroppedRecords) droppedRecords = nullptr;
    decltype(&cuptiActivityPushExternalCorrelationId) pushCorrelation = nullptr;
    decltype(&cuptiActivityPopExternalCorrelationId) popCorrelation = nullptr;
    decltype(&cuptiGetGraphNodeId) graphNodeId = nullptr;
    decltype(&cuptiGetCallbackName) callbackName = nullptr;
    const CuptiLibrary* library = nullptr;

    bool load(std::string& refusal) {
        library = CuptiLibrary::find(refusal);
        if (library == nullptr) return false;
        bool complete = true;
        const auto find = [&](auto& function, const char* name) { complete &= library->find(function, name); };
        find(subscribe, "cuptiSubscribe");
        find(unsubscribe, "cuptiUnsubscribe");
        find(enableCallback, "cuptiEnableCallback");
        find(registerCallbacks, "cuptiActivityRegisterCallbacks");
        find(registerTimestamp, "cuptiActivityRegisterTimestampCallback");
        find(enable, "cuptiActivityEnable");
        find(disable, "cuptiActivityDisable");
        find(flushAll, "cuptiActivityFlushAll");
        find(nextRecord, "cuptiActivityGetNextRecord");
        find(droppedRecords, "cuptiActivityGetNumDroppedRecords");
        find(pushCorrelation, "cuptiActivityPushExternalCorrelationId");
        find(popCorrelation, "cuptiActivityPopExternalCorrelationId");
        find(graphNodeId, "cuptiGetGraphNodeId");
        find(callbackName, "cuptiGetCallbackName");
        if (!complete) refusal = "libcupti is of another version than this program was built for";
        return complete;
    }
};

class CuptiTracer final : public GpuTracer {
public:
    explicit CuptiTracer(bool calls)
        : log_(calls ? ActivityLog::CallName([this](std::uint32_t callback) { return callName(callback); })
                     : ActivityLog::CallName()) {}

    /// @return empty on success, else why not
    std::string start() {
        std::string refusal;
        if (!cupti_.load(refusal)) return refusal;
        const auto failed = [&](CUptiResult code, const char* what) {
            if (code == CUPTI_SUCCESS) return false;
            refusal = code == CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED
                          ? "another tool is already recording this process through CUPTI"
                          : fmt::format("CUPTI refused {} ({})", what, cupti_.library->nameOf(code));
            return true;
        };
        instance_ = this;
        if (failed(cupti_.subscribe(&subscriber_, onResource, this), "to attach")) return refusal;
        // One clock with the host's spans.
        if (failed(cupti_.registerTimestamp([]() -> std::uint64_t { return std::uint64_t(steadyNowNs()); }),
                   "the clock"))
            return refusal;
        if (failed(cupti_.registerCallbacks(onBufferRequested, onBufferCompleted), "its buffers")) return refusal;
        for (const CUpti_CallbackIdResource id :
             {CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED, CUPTI_CBID_RESOURCE_GRAPHNODE_CLONED})
            if (failed(cupti_.enableCallback(1, subscriber_, CUPTI_CB_DOMAIN_RESOURCE, id), "to watch graphs"))
                return refusal;
        for (const CUpti_ActivityKind kind : kKinds)
            if (failed(cupti_.enable(kind), "to record kernels")) return refusal;
        // What an earlier tracer of this thread left on its stack would claim the launches before the first stage.
        std::uint64_t left = 0;
        while (cupti_.popCorrelation(CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0, &left) == CUPTI_SUCCESS) {
        }
        started_ = true;
        return {};
    }

    ~CuptiTracer() override {
        if (started_) {
            for (const CUpti_ActivityKind kind : kKinds) cupti_.disable(kind);
            cupti_.flushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
        }
        if (subscriber_ != nullptr) cupti_.unsubscribe(subscriber_);
        instance_ = nullptr;
    }

    void atStage(int layer, std::string_view stage) override {
        const std::lock_guard lock(mutex_);
        correlate(log_.atStage(layer, stage));
    }

    void atStep(int step) override {
        const std::lock_guard lock(mutex_);
        correlate(log_.atStep(step));
    }

    std::vector<LaunchedSpan> collect(std::int64_t originNs, bool all) override {
        cupti_.flushAll(all ? CUPTI_ACTIVITY_FLAG_FLUSH_FORCED : 0);
        const std::lock_guard lock(mutex_);
        std::vector<LaunchedSpan> spans = log_.collect(originNs, all);
        if (all && lost() > 0) {
            LaunchedSpan note;
            note.span.track = "recorder";
            note.span.name = fmt::format("{} GPU records lost, {} without times, {} too late for their step", dropped_,
                                         log_.untimed(), log_.late());
            spans.push_back(note);
        }
        return spans;
    }

    std::int64_t lostRecords() const override {
        const std::lock_guard lock(mutex_);
        return lost();
    }

private:
    static constexpr CUpti_ActivityKind kKinds[] = {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
                                                    CUPTI_ACTIVITY_KIND_MEMCPY,
                                                    CUPTI_ACTIVITY_KIND_MEMSET,
                                                    CUPTI_ACTIVITY_KIND_OVERHEAD,
                                                    CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION,
                                                    CUPTI_ACTIVITY_KIND_RUNTIME};

    std::int64_t lost() const { return dropped_ + log_.untimed() + log_.late(); }

    /// Ties what this thread launches next to step, layer and stage.
    void correlate(std::uint64_t id) {
        std::uint64_t last = 0;
        if (pushed_) cupti_.popCorrelation(CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0, &last);
        cupti_.pushCorrelation(CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0, id);
        pushed_ = true;
    }

    std::string callName(std::uint32_t callback) const {
        const char* name = nullptr;
        const bool known =
            cupti_.callbackName(CUPTI_CB_DOMAIN_RUNTIME_API, callback, &name) == CUPTI_SUCCESS && name != nullptr;
        return known ? name : "";
    }

    static void CUPTIAPI onBufferRequested(std::uint8_t** buffer, std::size_t* size, std::size_t* maxRecords) {
        *buffer = static_cast<std::uint8_t*>(std::aligned_alloc(8, kBufferBytes));
        *size = *buffer != nullptr ? kBufferBytes : 0;
        *maxRecords = 0;
    }

    static void CUPTIAPI onBufferCompleted(CUcontext context, std::uint32_t stream, std::uint8_t* buffer, std::size_t,
                                           std::size_t validSize) {
        CuptiTracer* tracer = instance_;
        if (tracer != nullptr && validSize > 0) tracer->parse(context, stream, buffer, validSize);
        std::free(buffer);
    }

    static void CUPTIAPI onResource(void* self, CUpti_CallbackDomain domain, CUpti_CallbackId id, const void* data) {
        if (domain != CUPTI_CB_DOMAIN_RESOURCE) return;
        auto& tracer = *static_cast<CuptiTracer*>(self);
        const auto* resource = static_cast<const CUpti_ResourceData*>(data);
        const auto* graph = static_cast<const CUpti_GraphData*>(resource->resourceDescriptor);
        if (graph == nullptr) return;
        std::uint64_t node = 0, original = 0;
        tracer.cupti_.graphNodeId(graph->node, &node);
        const std::lock_guard lock(tracer.mutex_);
        if (id == CUPTI_CBID_RESOURCE_GRAPHNODE_CLONED) {
            tracer.cupti_.graphNodeId(graph->originalNode, &original);
            tracer.log_.nodeCloned(node, original);
        } else {
            tracer.log_.nodeMade(node);
        }
    }

    void parse(CUcontext context, std::uint32_t stream, std::uint8_t* buffer, std::size_t size) {
        const std::lock_guard lock(mutex_);
        CUpti_Activity* record = nullptr;
        while (cupti_.nextRecord(buffer, size, &record) == CUPTI_SUCCESS) log_.take(record);
        std::size_t lost = 0;
        cupti_.droppedRecords(context, stream, &lost);
        dropped_ += std::int64_t(lost);
    }

    static inline std::atomic<CuptiTracer*> instance_{nullptr}; // CUPTI's buffer callbacks carry no context
    Cupti cupti_;
    CUpti_SubscriberHandle subscriber_ = nullptr;
    bool started_ = false, pushed_ = false;
    mutable std::mutex mutex_;
    ActivityLog log_;
    std::int64_t dropped_ = 0;
};

} // namespace

GpuTracing startGpuTracing(bool calls) {
    auto tracer = std::make_unique<CuptiTracer>(calls);
    GpuTracing result;
    result.refusal = tracer->start();
    if (result.refusal.empty()) result.tracer = std::move(tracer);
    return result;
}

} // namespace kvscope

#else

namespace kvscope {

GpuTracing startGpuTracing(bool) { return {nullptr, "this KVScope was built without the CUPTI headers"}; }

} // namespace kvscope

#endif
