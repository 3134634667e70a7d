// How kernels are recorded, against functions that stand in for CUPTI's: no GPU and no libcupti.
#include "profiler/cupti/gpu_tracer.h"

#ifdef KVSCOPE_HAVE_CUPTI

#include "profiler/cupti/cupti_calls.h"
#include "profiler/cupti/launch_place.h"
#include "tests/profiler/cupti_records.h"

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <future>
#include <gmock/gmock.h>
#include <mutex>
#include <set>
#include <span>
#include <thread>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using namespace cupti;
using testing::ElementsAre;
using testing::IsEmpty;
using namespace std::chrono_literals;

constexpr std::uint32_t kLaunch = 311; // the callback of a launch
constexpr auto kSoon = 10s;            // far longer than anything here takes, unless it waits for a lock

/// Keeps what a run's recorder would be given. Read it after GpuTracer::drain.
class Sink final : public TraceSink {
public:
    RecordLevel level() const override { return RecordLevel::Full; }
    void beginRun(const RunInfo&) override {}
    std::unique_ptr<StepRecord> acquire() override { return std::make_unique<StepRecord>(); }
    void take(RunEvent event) noexcept override {
        if (auto* more = std::get_if<std::vector<SpanRecord>>(&event))
            for (SpanRecord& span : *more) spans.push_back(std::move(span));
        if (auto* remark = std::get_if<Remark>(&event)) remarks.push_back(remark->sentence);
    }
    void endRun(RunStatus, const std::string&) noexcept override {}

    std::vector<SpanRecord> spans;
    std::vector<std::string> remarks;
};

/// What CUPTI does, as far as a tracer sees it. A buffer holds records one behind the other, each after its size.
struct FakeCupti {
    CUpti_CallbackFunc onResource = nullptr;
    void* userdata = nullptr;
    CUpti_BuffersCallbackRequestFunc request = nullptr;
    CUpti_BuffersCallbackCompleteFunc complete = nullptr;
    std::atomic<int> subscribers{0};
    std::atomic<std::size_t> dropped{0}; // not yet asked for
    std::vector<std::uint64_t> claims;   // external ids on the stack of the engine's thread
    std::set<CUpti_ActivityKind> enabled;

    // A reader that reaches the first record waits here while it is shut.
    std::mutex gateMutex;
    std::condition_variable gateOpens;
    bool shut = false;
    std::atomic<bool> waits{false};

    std::function<void(const char* function)> probe; // called in every function that a running tracer calls

    static inline FakeCupti* now = nullptr;
    FakeCupti() { now = this; }
    ~FakeCupti() { now = nullptr; }

    static void inside(const char* function) {
        if (now->probe) now->probe(function);
    }

    void shutGate() {
        const std::lock_guard lock(gateMutex);
        shut = true;
    }
    void openGate() {
        {
            const std::lock_guard lock(gateMutex);
            shut = false;
        }
        gateOpens.notify_all();
    }

    /// As CUPTI's own thread does. @return false: there was no buffer
    bool deliver(std::initializer_list<std::span<const std::byte>> records) const {
        std::uint8_t* buffer = nullptr;
        std::size_t size = 0, most = 1;
        request(&buffer, &size, &most);
        EXPECT_EQ(most, 0U) << "as many records as fit";
        if (buffer == nullptr) {
            EXPECT_EQ(size, 0U);
            return false;
        }
        EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer) % 8, 0U);
        std::size_t used = 0;
        const auto write = [&](const void* data, std::size_t bytes) {
            std::memcpy(buffer + used, data, bytes);
            used += bytes;
        };
        for (const auto& record : records) {
            const std::uint64_t bytes = record.size();
            write(&bytes, sizeof bytes);
            write(record.data(), record.size());
        }
        const std::uint64_t end = 0;
        write(&end, sizeof end);
        complete(nullptr, 0, buffer, size, used);
        return true;
    }

    void nodeMade(std::uint64_t id) const { node(CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED, id, 0); }
    void nodeCloned(std::uint64_t id, std::uint64_t original) const {
        node(CUPTI_CBID_RESOURCE_GRAPHNODE_CLONED, id, original);
    }

    static CuptiCalls calls() {
        CuptiCalls table;
        table.subscribe = [](CUpti_SubscriberHandle* handle, CUpti_CallbackFunc callback, void* userdata) {
            if (now->subscribers > 0) return CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED;
            ++now->subscribers;
            now->onResource = callback;
            now->userdata = userdata;
            *handle = reinterpret_cast<CUpti_SubscriberHandle>(now);
            return CUPTI_SUCCESS;
        };
        table.unsubscribe = [](CUpti_SubscriberHandle) {
            --now->subscribers;
            return CUPTI_SUCCESS;
        };
        table.enableCallback = [](std::uint32_t, CUpti_SubscriberHandle, CUpti_CallbackDomain, CUpti_CallbackId) {
            return CUPTI_SUCCESS;
        };
        table.registerCallbacks = [](CUpti_BuffersCallbackRequestFunc request,
                                     CUpti_BuffersCallbackCompleteFunc complete) {
            now->request = request;
            now->complete = complete;
            return CUPTI_SUCCESS;
        };
        table.registerTimestamp = [](CUpti_TimestampCallbackFunc) { return CUPTI_SUCCESS; };
        table.enable = [](CUpti_ActivityKind kind) {
            now->enabled.insert(kind);
            return CUPTI_SUCCESS;
        };
        table.disable = [](CUpti_ActivityKind kind) {
            now->enabled.erase(kind);
            return CUPTI_SUCCESS;
        };
        table.flushAll = [](std::uint32_t) {
            inside("cuptiActivityFlushAll");
            return CUPTI_SUCCESS;
        };
        table.nextRecord = [](std::uint8_t* buffer, std::size_t bytes, CUpti_Activity** record) {
            inside("cuptiActivityGetNextRecord");
            {
                std::unique_lock lock(now->gateMutex);
                now->waits = now->shut;
                now->gateOpens.wait(lock, [] { return !now->shut; });
                now->waits = false;
            }
            std::uint64_t size = 0;
            std::uint8_t* next = buffer;
            if (*record != nullptr) {
                next = reinterpret_cast<std::uint8_t*>(*record);
                std::memcpy(&size, next - sizeof size, sizeof size);
                next += size;
            }
            EXPECT_LE(next + sizeof size, buffer + bytes);
            std::memcpy(&size, next, sizeof size);
            if (size == 0) return CUPTI_ERROR_MAX_LIMIT_REACHED;
            *record = reinterpret_cast<CUpti_Activity*>(next + sizeof size);
            return CUPTI_SUCCESS;
        };
        table.droppedRecords = [](CUcontext, std::uint32_t, std::size_t* dropped) {
            inside("cuptiActivityGetNumDroppedRecords");
            *dropped = now->dropped.exchange(0);
            return CUPTI_SUCCESS;
        };
        table.pushCorrelation = [](CUpti_ExternalCorrelationKind, std::uint64_t id) {
            inside("cuptiActivityPushExternalCorrelationId");
            now->claims.push_back(id);
            return CUPTI_SUCCESS;
        };
        table.popCorrelation = [](CUpti_ExternalCorrelationKind, std::uint64_t* last) {
            inside("cuptiActivityPopExternalCorrelationId");
            if (now->claims.empty()) return CUPTI_ERROR_QUEUE_EMPTY;
            *last = now->claims.back();
            now->claims.pop_back();
            return CUPTI_SUCCESS;
        };
        table.graphNodeId = [](CUgraphNode node, std::uint64_t* id) {
            inside("cuptiGetGraphNodeId");
            *id = reinterpret_cast<std::uintptr_t>(node);
            return CUPTI_SUCCESS;
        };
        table.callbackName = [](CUpti_CallbackDomain, std::uint32_t, const char** name) {
            inside("cuptiGetCallbackName");
            *name = "cudaGraphLaunch_v10000";
            return CUPTI_SUCCESS;
        };
        table.resultString = [](CUptiResult, const char** name) {
            *name = "CUPTI_ERROR_FAKE";
            return CUPTI_SUCCESS;
        };
        return table;
    }

private:
    void node(CUpti_CallbackIdResource what, std::uint64_t id, std::uint64_t original) const {
        CUpti_GraphData graph{};
        graph.node = reinterpret_cast<CUgraphNode>(id);
        graph.originalNode = reinterpret_cast<CUgraphNode>(original);
        CUpti_ResourceData resource{};
        resource.resourceDescriptor = &graph;
        onResource(userdata, CUPTI_CB_DOMAIN_RESOURCE, what, &resource);
    }
};

template <class Record> std::span<const std::byte> bytesOf(const Record& record) {
    return std::as_bytes(std::span(&record, 1));
}

std::vector<std::string> said(const std::vector<SpanRecord>& spans) {
    std::vector<std::string> lines;
    for (const SpanRecord& span : spans)
        lines.push_back(span.track + "|" + std::string(span.stage.name()) + "|" + span.name + "|" +
                        std::to_string(span.startNs) + "|step " + std::to_string(span.step) + " layer " +
                        std::to_string(span.layer) + "|launch " + std::to_string(span.launch));
    return lines;
}

/// Whether `action` returns although something else may hold a lock. A thread that does not return is left behind.
bool returns(const std::function<void()>& action) {
    auto done = std::make_shared<std::promise<void>>();
    std::future<void> finished = done->get_future();
    std::thread([action, done] {
        action();
        done->set_value();
    }).detach();
    return finished.wait_for(kSoon) == std::future_status::ready;
}

class GpuTracerTest : public testing::Test {
protected:
    void start(bool calls = true) {
        GpuTracing tracing = startGpuTracing(calls, FakeCupti::calls());
        ASSERT_EQ(tracing.refusal, "");
        tracer_ = std::move(tracing.tracer);
        tracer_->sendTo(&sink_, 1'000);
    }
    std::uint64_t claimed() const { return cupti_.claims.empty() ? 0 : cupti_.claims.back(); }

    FakeCupti cupti_;
    Sink sink_; // outlives the tracer
    std::unique_ptr<GpuTracer> tracer_;
};

TEST_F(GpuTracerTest, TiesTheKernelsOfAGraphToStepLayerStageAndCall) {
    start();
    tracer_->atStage(2, Stage::Stage2);
    cupti_.nodeMade(100);
    cupti_.nodeCloned(200, 100);
    tracer_->atStage(-1, StepStage::Sample);
    cupti_.nodeMade(101);
    tracer_->atStep(5);
    EXPECT_EQ(cupti_.claims.size(), 1U) << "a stage ends where the next one begins";
    std::thread([&] {
        cupti_.deliver({bytesOf(claim(9, claimed())), bytesOf(call(kLaunch, 9, 1'500, 1'510)),
                        bytesOf(kernel("pick", 9, 200, 2'000, 2'100)), bytesOf(kernel("next", 9, 101, 2'200, 2'300))});
    }).join();
    tracer_->collect();
    tracer_->drain();
    EXPECT_THAT(said(sink_.spans), ElementsAre("CUDA calls||cudaGraphLaunch|500|step 5 layer -1|launch 9",
                                               "stream 7|stage2|pick|1000|step 5 layer 2|launch 9",
                                               "stream 7|sample|next|1200|step 5 layer -1|launch 9"));
    EXPECT_THAT(sink_.remarks, IsEmpty());
    EXPECT_EQ(tracer_->lostRecords(), 0);
}

TEST_F(GpuTracerTest, CallbacksAndTheEngineGoOnWhileABufferIsRead) {
    start();
    cupti_.shutGate();
    ASSERT_TRUE(cupti_.deliver({bytesOf(kernel("first", 1, 0, 2'000, 2'010))}));
    while (!cupti_.waits) std::this_thread::yield(); // the reader is inside CUPTI
    EXPECT_TRUE(returns([&] { cupti_.deliver({bytesOf(kernel("second", 1, 0, 2'020, 2'030))}); }));
    EXPECT_TRUE(returns([&] { cupti_.nodeMade(5); }));
    EXPECT_TRUE(returns([&] { tracer_->atStage(0, Stage::Ffn); }));
    EXPECT_TRUE(returns([&] { tracer_->atStep(1); }));
    EXPECT_TRUE(returns([&] { tracer_->collect(); }));
    EXPECT_TRUE(returns([&] { (void)tracer_->lostRecords(); }));
    cupti_.openGate();
    tracer_->drain();
    EXPECT_EQ(sink_.spans.size(), 2U);
}

TEST_F(GpuTracerTest, HoldsNoLockDuringAnyCallOfCupti) {
    start();
    std::mutex mutex;
    std::set<std::string> probed;
    std::atomic<int> stuck{0};
    cupti_.probe = [&](const char* function) {
        {
            const std::lock_guard lock(mutex);
            if (!probed.insert(function).second) return;
        }
        // A callback from another thread, in which CUPTI waits for us.
        if (!returns([&] { cupti_.deliver({}); })) ++stuck;
    };
    tracer_->atStage(0, Stage::Rope);
    tracer_->atStage(0, Stage::Ffn);
    cupti_.nodeMade(7);
    cupti_.deliver({bytesOf(call(kLaunch, 3, 2'000, 2'010))});
    tracer_->drain();
    tracer_.reset(); // its reader has called everything by then
    EXPECT_THAT(probed,
                ElementsAre("cuptiActivityFlushAll", "cuptiActivityGetNextRecord", "cuptiActivityGetNumDroppedRecords",
                            "cuptiActivityPopExternalCorrelationId", "cuptiActivityPushExternalCorrelationId",
                            "cuptiGetCallbackName", "cuptiGetGraphNodeId"));
    EXPECT_EQ(stuck, 0);
}

TEST_F(GpuTracerTest, CountsWhatIsLostRunByRun) {
    start(false);
    cupti_.dropped = 3;
    cupti_.deliver({bytesOf(kernel("no time", 1, 0, 0, 0))});
    tracer_->drain();
    EXPECT_EQ(tracer_->lostRecords(), 4);
    EXPECT_THAT(sink_.remarks, ElementsAre("3 GPU records lost, 1 without times, 0 too late for their step"));
    Sink next;
    tracer_->sendTo(&next, 0);
    tracer_->drain();
    EXPECT_EQ(tracer_->lostRecords(), 0) << "that was another run";
    EXPECT_THAT(next.remarks, IsEmpty());
    tracer_->sendTo(nullptr, 0);
    cupti_.deliver({bytesOf(kernel("between runs", 1, 0, 2'000, 2'010))});
    tracer_->drain();
    EXPECT_THAT(next.spans, IsEmpty());
}

TEST_F(GpuTracerTest, LetsCuptiDropRecordsRatherThanFillTheMemory) {
    start(false);
    cupti_.shutGate();
    int delivered = 0;
    while (delivered < 1'000 && cupti_.deliver({bytesOf(kernel("k", 1, 0, 2'000, 2'010))})) ++delivered;
    EXPECT_GE(delivered, 64);
    EXPECT_LT(delivered, 1'000) << "no end of it";
    cupti_.openGate();
    tracer_->drain();
    EXPECT_EQ(sink_.spans.size(), std::size_t(delivered));
    EXPECT_TRUE(cupti_.deliver({})) << "buffers that were read are there again";
}

TEST_F(GpuTracerTest, ASecondTracerIsRefusedAndDisturbsNothing) {
    start(false);
    EXPECT_EQ(startGpuTracing(false, FakeCupti::calls()).refusal,
              "another tool is already recording this process through CUPTI");
    cupti_.deliver({bytesOf(kernel("k", 1, 0, 2'000, 2'010))});
    tracer_->drain();
    EXPECT_EQ(sink_.spans.size(), 1U);
}

TEST_F(GpuTracerTest, EndsInOrderAndSurvivesABufferThatComesAfterIt) {
    start(false);
    cupti_.deliver({bytesOf(kernel("k", 1, 0, 2'000, 2'010))});
    tracer_.reset();
    EXPECT_EQ(cupti_.subscribers, 0);
    EXPECT_THAT(cupti_.enabled, IsEmpty());
    EXPECT_TRUE(cupti_.deliver({bytesOf(kernel("late", 1, 0, 2'000, 2'010))}));
    EXPECT_THAT(sink_.spans, IsEmpty()) << "nobody asked for them";
    start(false); // the next run of the process
    cupti_.deliver({bytesOf(kernel("k", 1, 0, 2'000, 2'010))});
    tracer_->drain();
    EXPECT_EQ(sink_.spans.size(), 1U);
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope

#endif
