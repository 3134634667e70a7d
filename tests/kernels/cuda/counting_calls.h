// Stands in for the CUDA runtime where only owning is tested: it needs no GPU, knows what lives, and refuses on demand.
#pragma once

#include "base/error.h"
#include "kernels/cuda/device/owners.h"

#include <cstdlib>
#include <gtest/gtest.h>
#include <map>
#include <string>

namespace kvscope::cuda::test {

class CountingCalls final : public DeviceCalls {
public:
    /// Refuses one of the calls from now on: the one after `calls` others. Negative: refuses none.
    void refuseAfter(int calls) { left_ = calls; }
    /// Calls asked so far that may be refused.
    int asked() const { return asked_; }
    int created() const { return created_; }
    int destroyed() const { return destroyed_; }
    /// What was made and not destroyed, e.g. "2 event, 1 stream"; empty: nothing.
    std::string living() const {
        std::map<std::string, int> kinds;
        for (const auto& [handle, kind] : living_) ++kinds[kind];
        std::string text;
        for (const auto& [kind, count] : kinds) text += (text.empty() ? "" : ", ") + std::to_string(count) + " " + kind;
        return text;
    }

    cudaError_t createStream(cudaStream_t* stream, StreamKind) override { return make(stream, "stream"); }
    void destroyStream(cudaStream_t stream) noexcept override { destroy(stream, "stream"); }
    cudaError_t createEvent(cudaEvent_t* event, unsigned) override { return make(event, "event"); }
    void destroyEvent(cudaEvent_t event) noexcept override { destroy(event, "event"); }
    cudaError_t beginCapture(cudaStream_t) override {
        if (refuses()) return cudaErrorIllegalState;
        EXPECT_FALSE(capturing_) << "a second recording began before the first one ended";
        capturing_ = true;
        return cudaSuccess;
    }
    cudaError_t endCapture(cudaStream_t, cudaGraph_t* graph) override {
        EXPECT_TRUE(capturing_) << "a recording ended that had not begun";
        capturing_ = false;
        return make(graph, "graph");
    }
    void destroyGraph(cudaGraph_t graph) noexcept override { destroy(graph, "graph"); }
    cudaError_t instantiate(cudaGraphExec_t* executable, cudaGraph_t) override {
        return make(executable, "executable");
    }
    void destroyExecutable(cudaGraphExec_t executable) noexcept override { destroy(executable, "executable"); }
    cudaError_t allocate(void** memory, std::size_t bytes) override { return make(memory, "device memory", bytes); }
    void release(void* memory) noexcept override { destroy(memory, "device memory"); }
    cudaError_t allocateHost(void** memory, std::size_t bytes) override { return make(memory, "host memory", bytes); }
    void releaseHost(void* memory) noexcept override { destroy(memory, "host memory"); }
    void* mapHost(std::size_t bytes) override {
        void* memory = nullptr;
        make(&memory, "mapped memory", bytes);
        return memory;
    }
    void unmapHost(void* memory, std::size_t) noexcept override {
        EXPECT_EQ(registered_.count(memory), 0U) << "memory was unmapped while the GPU could reach it";
        destroy(memory, "mapped memory");
    }
    cudaError_t registerHost(void* memory, std::size_t) override {
        if (refuses()) return cudaErrorMemoryAllocation;
        ++registered_[memory], ++created_;
        return cudaSuccess;
    }
    void unregisterHost(void* memory) noexcept override {
        EXPECT_EQ(registered_.erase(memory), 1U) << "memory was unregistered that was not registered";
        ++destroyed_;
    }
    std::size_t mappedFrom() const override { return std::size_t(1) << 20; }
    cudaError_t memoryInfo(std::size_t* free, std::size_t* total) override {
        if (refuses()) return cudaErrorIllegalState;
        *free = *total = std::size_t(8) << 30;
        return cudaSuccess;
    }
    cudaError_t clear(void*, std::size_t) override { return refuses() ? cudaErrorIllegalState : cudaSuccess; }

private:
    bool refuses() {
        ++asked_;
        return left_-- == 0;
    }
    template <class Handle> cudaError_t make(Handle* handle, const char* kind, std::size_t bytes = 1) {
        if (refuses()) return cudaErrorMemoryAllocation;
        void* const made = std::malloc(bytes);
        living_[made] = kind;
        ++created_;
        *handle = static_cast<Handle>(made);
        return cudaSuccess;
    }
    void destroy(void* handle, const std::string& kind) noexcept {
        const auto at = living_.find(handle);
        ASSERT_NE(at, living_.end()) << "destroyed a " << kind << " that does not live";
        EXPECT_EQ(at->second, kind);
        living_.erase(at);
        std::free(handle);
        ++destroyed_;
    }

    std::map<void*, std::string> living_;
    std::map<void*, int> registered_;
    int asked_ = 0, left_ = -1, created_ = 0, destroyed_ = 0;
    bool capturing_ = false;
};

/// Makes and destroys it on counting calls: once as it should be, then with each call refused in turn, over and over
/// until 1,000 were refused. Nothing may be left of any of them.
template <class Make> void expectNothingLost(Make make) {
    const Living before = living();
    CountingCalls calls;
    const ScopedDeviceCalls use(calls);
    make();
    const int each = calls.asked();
    ASSERT_GT(each, 0) << "nothing asks for anything here";
    EXPECT_EQ(calls.living(), "");
    for (int refusal = 0; refusal < 1000; ++refusal) {
        calls.refuseAfter(refusal % each);
        EXPECT_THROW(make(), Error) << "call " << refusal % each << " of " << each << " was refused";
        ASSERT_EQ(calls.living(), "") << "call " << refusal % each << " of " << each << " was refused";
    }
    calls.refuseAfter(-1);
    EXPECT_EQ(calls.created(), calls.destroyed());
    EXPECT_EQ(living(), before);
}

} // namespace kvscope::cuda::test
