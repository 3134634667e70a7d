#include "profiler/cupti/gpu_tracer.h"

#if __has_include(<cupti.h>)

#include "core/session/stage_clock.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cupti.h>
#include <cxxabi.h>
#include <deque>
#include <dlfcn.h>
#include <fmt/format.h>
#include <map>
#include <mutex>
#include <unordered_map>

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
    decltype(&cuptiGetResultString) resultString = nullptr;

    bool load(std::string& refusal) {
        void* library = nullptr;
        std::vector<std::string> names;
        if (const char* path = std::getenv("KVSCOPE_CUPTI_PATH")) names.emplace_back(path);
        names.emplace_back("libcupti.so.13");
        if (const char* home = std::getenv("CUDA_HOME")) names.push_back(std::string(home) + "/lib64/libcupti.so.13");
        for (const char* folder : {"/usr/local/cuda/lib64", "/usr/local/cuda/extras/CUPTI/lib64",
                                   "/usr/local/cuda/targets/x86_64-linux/lib"})
            names.push_back(std::string(folder) + "/libcupti.so.13");
        for (const std::string& name : names)
            if (library == nullptr) library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
        if (library == nullptr) {
            refusal = "libcupti was not found";
            return false;
        }
        bool complete = true;
        const auto find = [&](auto& function, const char* name) {
            function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
            complete &= function != nullptr;
        };
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
        find(resultString, "cuptiGetResultString");
        if (!complete) refusal = "libcupti is of another version than this program was built for";
        return complete;
    }
};

/// Layer and stage of a kernel, and the step for those that are launched one by one.
struct Place {
    std::int32_t layer = -1;
    std::int32_t stage = -1; // index into the tracer's stage names
};

/// "void kvscope::cuda::(anonymous namespace)::selectKernel<128, 2>(SelectArgs)" -> "selectKernel<128, 2>"
std::string shortName(const char* mangled) {
    int status = 0;
    char* demangled = abi::__cxa_demangle(mangled, nullptr, nullptr, &status);
    std::string name = status == 0 && demangled != nullptr ? demangled : mangled;
    std::free(demangled);
    for (const char* noise : {"(anonymous namespace)::", "<unnamed>::", "(int)", "(bool)"})
        for (std::size_t at = name.find(noise); at != std::string::npos; at = name.find(noise))
            name.erase(at, std::string(noise).size());
    int depth = 0;
    std::size_t end = name.size();
    for (std::size_t i = 0; i < name.size(); ++i) {
        if (name[i] == '<') ++depth;
        if (name[i] == '>') --depth;
        if (name[i] == '(' && depth == 0) {
            end = i;
            break;
        }
    }
    name.resize(end);
    if (name.rfind("void ", 0) == 0) name.erase(0, 5);
    const std::size_t angle = name.find('<'),
                      colons = name.rfind("::", angle == std::string::npos ? std::string::npos : angle);
    return colons == std::string::npos ? name : name.substr(colons + 2);
}

const char* copyName(std::uint8_t kind) {
    switch (kind) {
    case CUPTI_ACTIVITY_MEMCPY_KIND_HTOD:
        return "host to device";
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOH:
        return "device to host";
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOD:
        return "device to device";
    default:
        return "copy";
    }
}

class CuptiTracer final : public GpuTracer {
public:
    /// @return empty on success, else why not
    std::string start() {
        std::string refusal;
        if (!cupti_.load(refusal)) return refusal;
        const auto failed = [&](CUptiResult code, const char* what) {
            if (code == CUPTI_SUCCESS) return false;
            const char* text = nullptr;
            cupti_.resultString(code, &text);
            refusal = code == CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED
                          ? "another tool is already recording this process through CUPTI"
                          : fmt::format("CUPTI refused {} ({})", what, text != nullptr ? text : "unknown error");
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
        const auto found = std::find(stages_.begin(), stages_.end(), stage);
        place_ = {layer, std::int32_t(found - stages_.begin())};
        if (found == stages_.end()) stages_.emplace_back(stage);
        correlate();
    }

    void atStep(int step) override {
        const std::lock_guard lock(mutex_);
        step_ = step;
        place_ = {}; // a graph's nodes know theirs
        correlate();
    }

    std::vector<SpanRecord> collect(std::int64_t originNs, bool all) override {
        cupti_.flushAll(all ? CUPTI_ACTIVITY_FLAG_FLUSH_FORCED : 0);
        const std::lock_guard lock(mutex_);
        std::vector<SpanRecord> spans;
        std::vector<Pending> waiting;
        for (Pending& record : records_) {
            // The record that names a launch's step may be in a later buffer.
            const auto launch = launches_.find(record.correlation);
            if (launch == launches_.end() && !all) {
                waiting.push_back(std::move(record));
                continue;
            }
            SpanRecord& span = spans.emplace_back(std::move(record.span));
            Place place;
            if (launch != launches_.end()) {
                span.step = std::int32_t(launch->second >> 32) - 1;
                place = {std::int32_t(launch->second >> 16 & 0xffff) - 1, std::int32_t(launch->second & 0xffff) - 1};
            }
            if (const auto node = nodes_.find(record.node); record.node != 0 && node != nodes_.end())
                place = node->second;
            span.layer = place.layer;
            if (place.stage >= 0 && std::size_t(place.stage) < stages_.size() && span.kind == SpanRecord::Kind::Kernel)
                span.name = stages_[std::size_t(place.stage)] + ": " + span.name;
            span.startNs -= originNs;
        }
        records_ = std::move(waiting);
        trimWaits(spans, originNs);
        if (all && (dropped_ > 0 || invalid_ > 0)) {
            SpanRecord note;
            note.track = "recorder";
            note.name = fmt::format("{} GPU records lost, {} without times", dropped_, invalid_);
            spans.push_back(note);
        }
        return spans;
    }

    std::int64_t lostRecords() const override {
        const std::lock_guard lock(mutex_);
        return dropped_ + invalid_;
    }

private:
    static constexpr CUpti_ActivityKind kKinds[] = {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
                                                    CUPTI_ACTIVITY_KIND_MEMCPY,
                                                    CUPTI_ACTIVITY_KIND_MEMSET,
                                                    CUPTI_ACTIVITY_KIND_OVERHEAD,
                                                    CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION,
                                                    CUPTI_ACTIVITY_KIND_RUNTIME};
    struct Pending {
        SpanRecord span;
        std::uint32_t correlation = 0;
        std::uint64_t node = 0;
    };

    /// Kernels of a step start before their predecessor ends and wait for it (programmatic dependent launch): CUPTI
    /// counts the wait as theirs. A stream's kernels work one after another, so each one's time begins where the one
    /// before ended.
    void trimWaits(std::vector<SpanRecord>& spans, std::int64_t originNs) {
        std::vector<SpanRecord*> kernels;
        for (SpanRecord& span : spans)
            if (span.kind == SpanRecord::Kind::Kernel) kernels.push_back(&span);
        std::stable_sort(kernels.begin(), kernels.end(), [](const SpanRecord* a, const SpanRecord* b) {
            return a->startNs + a->durationNs < b->startNs + b->durationNs;
        });
        for (SpanRecord* span : kernels) {
            std::int64_t& lastEnd = lastEnd_[span->track];
            const std::int64_t end = span->startNs + span->durationNs;
            const std::int64_t start = std::clamp(lastEnd - originNs, span->startNs, end);
            span->startNs = start;
            span->durationNs = end - start;
            lastEnd = std::max(lastEnd, end + originNs);
        }
    }

    /// Ties what this thread launches next to step, layer and stage.
    void correlate() {
        std::uint64_t last = 0;
        if (pushed_) cupti_.popCorrelation(CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0, &last);
        const std::uint64_t id = std::uint64_t(std::uint32_t(step_ + 1)) << 32 |
                                 std::uint64_t((place_.layer + 1) & 0xffff) << 16 |
                                 std::uint64_t((place_.stage + 1) & 0xffff);
        cupti_.pushCorrelation(CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0, id);
        pushed_ = true;
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
            if (const auto known = tracer.nodes_.find(original); known != tracer.nodes_.end())
                tracer.nodes_[node] = known->second;
        } else {
            tracer.nodes_[node] = tracer.place_;
        }
    }

    void parse(CUcontext context, std::uint32_t stream, std::uint8_t* buffer, std::size_t size) {
        const std::lock_guard lock(mutex_);
        CUpti_Activity* record = nullptr;
        while (cupti_.nextRecord(buffer, size, &record) == CUPTI_SUCCESS) {
            switch (record->kind) {
            case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: {
                const auto* kernel = reinterpret_cast<const CUpti_ActivityKernel10*>(record);
                auto& name = names_[kernel->name];
                if (name.empty()) name = shortName(kernel->name);
                add(SpanRecord::Kind::Kernel, fmt::format("stream {}", kernel->streamId), name, kernel->start,
                    kernel->end, kernel->correlationId, kernel->graphNodeId);
                break;
            }
            case CUPTI_ACTIVITY_KIND_MEMCPY: {
                const auto* copy = reinterpret_cast<const CUpti_ActivityMemcpy6*>(record);
                add(SpanRecord::Kind::Copy, fmt::format("copies {}", copyName(copy->copyKind)),
                    fmt::format("{} bytes {}", copy->bytes, copyName(copy->copyKind)), copy->start, copy->end,
                    copy->correlationId, copy->graphNodeId);
                break;
            }
            case CUPTI_ACTIVITY_KIND_MEMSET: {
                const auto* set = reinterpret_cast<const CUpti_ActivityMemset4*>(record);
                add(SpanRecord::Kind::Copy, fmt::format("stream {}", set->streamId),
                    fmt::format("{} bytes set", set->bytes), set->start, set->end, set->correlationId,
                    set->graphNodeId);
                break;
            }
            case CUPTI_ACTIVITY_KIND_OVERHEAD: {
                const auto* overhead = reinterpret_cast<const CUpti_ActivityOverhead3*>(record);
                Pending pending;
                pending.span.kind = SpanRecord::Kind::Range;
                pending.span.track = "CUPTI overhead";
                pending.span.name =
                    overhead->overheadKind == CUPTI_ACTIVITY_OVERHEAD_CUPTI_BUFFER_FLUSH      ? "buffer flush"
                    : overhead->overheadKind == CUPTI_ACTIVITY_OVERHEAD_CUPTI_RESOURCE        ? "resources"
                    : overhead->overheadKind == CUPTI_ACTIVITY_OVERHEAD_CUPTI_INSTRUMENTATION ? "instrumentation"
                                                                                              : "other";
                pending.span.startNs = std::int64_t(overhead->start);
                pending.span.durationNs = std::int64_t(overhead->end - overhead->start);
                launches_.try_emplace(0, 0);
                records_.push_back(std::move(pending));
                break;
            }
            case CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION: {
                const auto* external = reinterpret_cast<const CUpti_ActivityExternalCorrelation*>(record);
                launches_[external->correlationId] = external->externalId;
                break;
            }
            default:
                break;
            }
        }
        std::size_t lost = 0;
        cupti_.droppedRecords(context, stream, &lost);
        dropped_ += std::int64_t(lost);
    }

    void add(SpanRecord::Kind kind, std::string track, std::string name, std::uint64_t start, std::uint64_t end,
             std::uint32_t correlation, std::uint64_t node) {
        if (start == 0 || end < start) { // "no time available": never drawn, always counted
            ++invalid_;
            return;
        }
        Pending pending;
        pending.span.kind = kind;
        pending.span.track = std::move(track);
        pending.span.name = std::move(name);
        pending.span.startNs = std::int64_t(start);
        pending.span.durationNs = std::int64_t(end - start);
        pending.correlation = correlation;
        pending.node = node;
        records_.push_back(std::move(pending));
    }

    static inline std::atomic<CuptiTracer*> instance_{nullptr}; // CUPTI's buffer callbacks carry no context
    Cupti cupti_;
    CUpti_SubscriberHandle subscriber_ = nullptr;
    bool started_ = false, pushed_ = false;
    mutable std::mutex mutex_;
    Place place_;
    int step_ = -1;
    std::vector<std::string> stages_;
    std::unordered_map<std::uint64_t, Place> nodes_;            // by graph node id
    std::unordered_map<std::uint32_t, std::uint64_t> launches_; // correlation id -> step, layer, stage
    std::unordered_map<const char*, std::string> names_;        // CUPTI keeps kernel names for the process's life
    std::vector<Pending> records_;
    std::unordered_map<std::string, std::int64_t> lastEnd_; // [track] when its last kernel ended
    std::int64_t dropped_ = 0, invalid_ = 0;
};

} // namespace

GpuTracing startGpuTracing() {
    auto tracer = std::make_unique<CuptiTracer>();
    GpuTracing result;
    result.refusal = tracer->start();
    if (result.refusal.empty()) result.tracer = std::move(tracer);
    return result;
}

} // namespace kvscope

#else

namespace kvscope {

GpuTracing startGpuTracing() { return {nullptr, "this KVScope was built without the CUPTI headers"}; }

} // namespace kvscope

#endif
