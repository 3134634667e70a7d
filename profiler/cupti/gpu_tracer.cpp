#include "profiler/cupti/gpu_tracer.h"

#ifdef KVSCOPE_HAVE_CUPTI

#include "base/clock.h"
#include "profiler/cupti/activity_log.h"
#include "profiler/cupti/cupti_calls.h"

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <fmt/format.h>
#include <mutex>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

namespace kvscope {
namespace {

/// Memory for activity records. CUPTI asks for a buffer, fills it and gives it back; sixteen empty ones are kept for
/// the next time. CUPTI's threads may outlive a tracer, so the pool lives as long as the process.
class BufferPool {
public:
    static constexpr std::size_t kBytes = std::size_t(4) << 20;
    struct GiveBack {
        void operator()(std::uint8_t* buffer) const { BufferPool::of().give(buffer); }
    };
    using Buffer = std::unique_ptr<std::uint8_t, GiveBack>;

    static BufferPool& of() {
        static auto* const pool = new BufferPool; // never destroyed
        return *pool;
    }
    /// @return an empty buffer; null if there is no memory, or if so many buffers are with CUPTI or still to be read
    /// that more would fill the memory. CUPTI then drops records and counts them.
    std::uint8_t* take() {
        {
            const std::lock_guard lock(mutex_);
            if (outside_ >= kMostOutside) return nullptr;
            ++outside_;
            if (!empty_.empty()) {
                std::uint8_t* const buffer = empty_.back();
                empty_.pop_back();
                return buffer;
            }
        }
        auto* const buffer = static_cast<std::uint8_t*>(std::aligned_alloc(kAlignment, kBytes));
        if (buffer == nullptr) {
            const std::lock_guard lock(mutex_);
            --outside_;
        }
        return buffer;
    }

private:
    static constexpr std::size_t kAlignment = 8, kKept = 16, kMostOutside = 128;

    BufferPool() { empty_.reserve(kKept); }
    void give(std::uint8_t* buffer) {
        {
            const std::lock_guard lock(mutex_);
            --outside_;
            if (empty_.size() < kKept) {
                empty_.push_back(buffer); // has room: allocates nothing
                return;
            }
        }
        std::free(buffer);
    }

    std::mutex mutex_;
    std::vector<std::uint8_t*> empty_;
    std::size_t outside_ = 0; // with CUPTI, or filled and not yet read
};

class CuptiTracer final : public GpuTracer {
public:
    CuptiTracer(bool calls, const CuptiCalls& cupti)
        : cupti_(cupti), log_(calls ? ActivityLog::CallName([this](std::uint32_t id) { return callName(id); })
                                    : ActivityLog::CallName()) {
        reader_ = std::jthread([this] { read(); });
    }

    /// @return empty on success, else why not
    std::string start() {
        std::string refusal;
        const auto failed = [&](CUptiResult code, const char* what) {
            if (code == CUPTI_SUCCESS) return false;
            const char* name = nullptr;
            cupti_.resultString(code, &name);
            refusal = code == CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED
                          ? "another tool is already recording this process through CUPTI"
                          : fmt::format("CUPTI refused {} ({})", what, name != nullptr ? name : "unknown error");
            return true;
        };
        if (failed(cupti_.subscribe(&subscriber_, onResource, this), "to attach")) return refusal;
        {
            const std::lock_guard lock(instanceMutex_);
            instance_ = this;
        }
        // CUPTI's time stamps count on the same clock as the host's spans.
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
        // Empties CUPTI's stack of this thread. An id that an earlier tracer left there would claim the launches before
        // the first stage.
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
        {
            const std::lock_guard lock(mutex_);
            closing_ = true;
        }
        arrived_.notify_one();
        reader_.join(); // it reads what is queued, while CUPTI is still attached
        if (subscriber_ != nullptr) cupti_.unsubscribe(subscriber_);
        // From here on no callback reaches the tracer. The buffers that came after the tracer's thread ended are freed
        // with the queue.
        const std::lock_guard lock(instanceMutex_);
        if (instance_ == this) instance_ = nullptr;
    }

    void sendTo(TraceSink* sink, std::int64_t originNs) override { put(SendTo{sink, originNs}); }

    void atStage(int layer, StageId stage) override {
        place_.layer = layer;
        place_.stage = stage;
        claimLaunches();
    }

    void atStep(int step) override {
        place_ = {step, -1, {}}; // a graph's nodes know their layers and stages
        claimLaunches();
    }

    void collect() override {
        cupti_.flushAll(0);
        put(Collect{false});
    }

    void drain() override {
        cupti_.flushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
        std::unique_lock lock(mutex_);
        queue_.emplace_back(Collect{true});
        const std::int64_t ticket = ++drainsAsked_;
        arrived_.notify_one();
        drained_.wait(lock, [&] { return drainsDone_ >= ticket; });
    }

    std::int64_t lostRecords() const override { return lost_; }

private:
    static constexpr CUpti_ActivityKind kKinds[] = {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
                                                    CUPTI_ACTIVITY_KIND_MEMCPY,
                                                    CUPTI_ACTIVITY_KIND_MEMSET,
                                                    CUPTI_ACTIVITY_KIND_OVERHEAD,
                                                    CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION,
                                                    CUPTI_ACTIVITY_KIND_RUNTIME};

    // What is queued, in the order in which it happened: a node's place comes before the first record of a kernel that
    // the node launches, and what a collection's flush delivers comes before the collection.
    struct Filled {
        BufferPool::Buffer buffer;
        std::size_t bytes = 0;
    };
    struct NodeMade {
        std::uint64_t node = 0, place = 0; // place: LaunchPlace::packed
    };
    struct NodeCloned {
        std::uint64_t node = 0, original = 0;
    };
    struct SendTo {
        TraceSink* sink = nullptr;
        std::int64_t originNs = 0;
    };
    struct Collect {
        bool all = false;
    };
    using Arrival = std::variant<Filled, NodeMade, NodeCloned, SendTo, Collect>;

    // ---- The engine's thread

    /// Ties what this thread launches next to step, layer and stage.
    void claimLaunches() {
        const std::uint64_t id = place_.packed();
        nodePlace_ = id;
        std::uint64_t last = 0;
        if (pushed_) cupti_.popCorrelation(CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0, &last);
        pushed_ = cupti_.pushCorrelation(CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0, id) == CUPTI_SUCCESS;
    }

    // ---- Any thread

    void put(Arrival arrival) {
        {
            const std::lock_guard lock(mutex_);
            queue_.push_back(std::move(arrival));
        }
        arrived_.notify_one();
    }

    static void CUPTIAPI onBufferRequested(std::uint8_t** buffer, std::size_t* size, std::size_t* maxRecords) {
        *buffer = BufferPool::of().take();
        *size = *buffer != nullptr ? BufferPool::kBytes : 0;
        *maxRecords = 0;
    }

    /// Buffers belong to no context and no stream: those parameters are always null.
    static void CUPTIAPI onBufferCompleted(CUcontext, std::uint32_t, std::uint8_t* buffer, std::size_t,
                                           std::size_t validSize) {
        BufferPool::Buffer owned(buffer);
        if (buffer == nullptr || validSize == 0) return;
        const std::lock_guard lock(instanceMutex_); // the tracer does not end meanwhile
        if (instance_ == nullptr) return;
        try {
            instance_->put(Filled{std::move(owned), validSize});
        } catch (const std::bad_alloc&) { // an exception must not reach CUPTI
            ++instance_->unread_;
        }
    }

    static void CUPTIAPI onResource(void* self, CUpti_CallbackDomain domain, CUpti_CallbackId id, const void* data) {
        if (domain != CUPTI_CB_DOMAIN_RESOURCE) return;
        auto& tracer = *static_cast<CuptiTracer*>(self);
        const auto* resource = static_cast<const CUpti_ResourceData*>(data);
        const auto* graph = static_cast<const CUpti_GraphData*>(resource->resourceDescriptor);
        if (graph == nullptr) return;
        const auto idOf = [&](CUgraphNode node, std::uint64_t& nodeId) {
            return tracer.cupti_.graphNodeId(node, &nodeId) == CUPTI_SUCCESS;
        };
        std::uint64_t node = 0, original = 0;
        if (!idOf(graph->node, node)) return;
        try {
            if (id != CUPTI_CBID_RESOURCE_GRAPHNODE_CLONED)
                tracer.put(NodeMade{node, tracer.nodePlace_});
            else if (idOf(graph->originalNode, original))
                tracer.put(NodeCloned{node, original});
        } catch (const std::bad_alloc&) { // the node's kernels will have a step, but neither layer nor stage
        }
    }

    // ---- The tracer's thread

    void read() {
        std::vector<Arrival> batch;
        for (bool last = false; !last;) {
            {
                std::unique_lock lock(mutex_);
                arrived_.wait(lock, [&] { return !queue_.empty() || closing_; });
                batch.swap(queue_);
                last = closing_ && batch.empty();
            }
            for (Arrival& arrival : batch) {
                try {
                    std::visit([this](auto& each) { handle(each); }, arrival);
                } catch (const std::exception&) { // no memory: the program goes on, and the loss is counted
                    ++unread_;
                }
                if (const auto* asked = std::get_if<Collect>(&arrival); asked != nullptr && asked->all) endDrain();
                arrival = NodeCloned{}; // gives a buffer back before the next one is read
            }
            batch.clear();
        }
    }

    void handle(Filled& filled) {
        CUpti_Activity* record = nullptr;
        while (cupti_.nextRecord(filled.buffer.get(), filled.bytes, &record) == CUPTI_SUCCESS) log_.take(record);
        std::size_t dropped = 0;
        if (cupti_.droppedRecords(nullptr, 0, &dropped) == CUPTI_SUCCESS) dropped_ += std::int64_t(dropped);
    }
    void handle(const NodeMade& made) { log_.nodeMade(made.node, LaunchPlace::unpacked(made.place)); }
    void handle(const NodeCloned& cloned) { log_.nodeCloned(cloned.node, cloned.original); }
    void handle(const SendTo& to) {
        to_ = to;
        lostBefore_ = lostSoFar();
        lost_ = 0;
    }
    void handle(const Collect& asked) {
        std::vector<SpanRecord> spans = log_.collect(to_.originNs, asked.all);
        const Losses now = lostSoFar(), before = lostBefore_;
        const Losses lost{now.dropped - before.dropped, now.untimed - before.untimed, now.late - before.late};
        lost_ = lost.dropped + lost.untimed + lost.late;
        if (to_.sink == nullptr) return;
        if (!spans.empty()) to_.sink->take(std::move(spans));
        if (asked.all && lost_ > 0)
            to_.sink->take(Remark{fmt::format("{} GPU records lost, {} without times, {} too late for their step",
                                              lost.dropped, lost.untimed, lost.late)});
    }

    struct Losses {
        std::int64_t dropped = 0, untimed = 0, late = 0;
    };
    /// Since the tracer began.
    Losses lostSoFar() const { return {dropped_ + unread_, log_.untimed(), log_.late()}; }

    void endDrain() {
        {
            const std::lock_guard lock(mutex_);
            ++drainsDone_;
        }
        drained_.notify_all();
    }

    /// The name of a runtime call, which ActivityLog asks for.
    std::string callName(std::uint32_t callback) const {
        const char* name = nullptr;
        const bool known =
            cupti_.callbackName(CUPTI_CB_DOMAIN_RUNTIME_API, callback, &name) == CUPTI_SUCCESS && name != nullptr;
        return known ? name : "";
    }

    static inline std::mutex instanceMutex_;
    static inline CuptiTracer* instance_ = nullptr; // CUPTI's buffer callbacks carry nothing of ours; under the mutex

    const CuptiCalls cupti_;
    CUpti_SubscriberHandle subscriber_ = nullptr;
    bool started_ = false;

    // The engine's thread.
    LaunchPlace place_;
    bool pushed_ = false;
    std::atomic<std::uint64_t> nodePlace_{
        LaunchPlace().packed()}; // place of the nodes made now; read in the thread that makes them

    std::mutex mutex_; // guards the queue and what follows, down to the blank line; never held during a call of CUPTI
    std::condition_variable arrived_, drained_;
    std::vector<Arrival> queue_;
    bool closing_ = false;
    std::int64_t drainsAsked_ = 0, drainsDone_ = 0;

    // The tracer's thread.
    ActivityLog log_;
    SendTo to_;
    std::int64_t dropped_ = 0;
    Losses lostBefore_; // lostSoFar() when the present sink was set

    std::atomic<std::int64_t> lost_{0}, unread_{0}; // unread_: buffers, for want of memory

    std::jthread reader_; // last: it uses all of the above
};

} // namespace

GpuTracing startGpuTracing(bool calls, const CuptiCalls& cupti) {
    auto tracer = std::make_unique<CuptiTracer>(calls, cupti);
    GpuTracing result;
    result.refusal = tracer->start();
    if (result.refusal.empty()) result.tracer = std::move(tracer);
    return result;
}

GpuTracing startGpuTracing(bool calls) {
    CuptiCalls cupti;
    GpuTracing result;
    return cupti.load(result.refusal) ? startGpuTracing(calls, cupti) : std::move(result);
}

} // namespace kvscope

#else

namespace kvscope {

GpuTracing startGpuTracing(bool) { return {nullptr, "this KVScope was built without the CUPTI headers"}; }

} // namespace kvscope

#endif
