// Makes spans of a run from CUPTI's records. Records come buffer by buffer and in any order; each belongs to the step,
// layer and stage that launched it. Calls no function of CUPTI, so that tests can pass records that they made.
#pragma once

#include "core/trace/trace_sink.h"
#include "profiler/cupti/launch_place.h"

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace kvscope {

/// The track of the calls that a process's first thread made; other threads have tracks of their own.
inline constexpr std::string_view kCallsTrack = "CUDA calls";

/// Not thread-safe.
class ActivityLog {
public:
    /// The name of a runtime API call by its callback id: "cudaLaunchKernel_v7000".
    using CallName = std::function<std::string(std::uint32_t callback)>;

    /// callName: null: calls are not kept.
    explicit ActivityLog(CallName callName = {}) : callName_(std::move(callName)) {}

    /// A node of a graph was made for a layer and stage, or copied from another one.
    void nodeMade(std::uint64_t node, const LaunchPlace& place) { nodes_[node] = place; }
    void nodeCloned(std::uint64_t node, std::uint64_t original);

    /// `activity`: a CUpti_Activity of any kind; kinds that are not drawn are ignored. The external correlation id of a
    /// record is a LaunchPlace.
    void take(const void* activity);
    /// Spans of what has come since the last time, relative to `originNs`. all: the run is over; also spans of launches
    /// that no step claimed, and threads are counted anew.
    std::vector<SpanRecord> collect(std::int64_t originNs, bool all);
    /// Records without times: never drawn, always counted.
    std::int64_t untimed() const { return untimed_; }
    /// Launches that are remembered: those of the last collections, however long the run is.
    std::size_t launches() const { return launches_.size(); }
    /// Launches that were forgotten before any of their work came. Most of them are calls that start no work.
    std::int64_t forgottenIdle() const { return forgottenIdle_; }
    /// Kernels, copies and memsets that came after their launch was forgotten: drawn without a step.
    std::int64_t late() const { return late_; }

private:
    struct Pending {
        SpanRecord span;
        std::uint64_t node = 0;
        bool waits = true; // for the record that names the launch's step, which may be in a later buffer
    };
    /// A call of the engine, which started kernels or copies, or nothing.
    struct Launch {
        LaunchPlace place;
        std::int64_t collection = 0;
        bool hasWork = false; // some of it has come
    };
    bool isForgotten(const Pending& record) const;
    void forgetLaunches(std::uint32_t newestWork);
    void add(Pending pending, std::uint64_t start, std::uint64_t end);
    void addCall(const void* activity);
    const std::string& nameOfCall(std::uint32_t callback);
    std::string trackOfThread(std::uint32_t thread);
    void trimWaits(std::vector<SpanRecord>& spans, std::int64_t originNs);

    CallName callName_;
    std::unordered_map<std::uint64_t, LaunchPlace> nodes_; // by graph node id
    std::map<std::uint32_t, Launch> launches_;             // by correlation id, which ascends with the calls
    std::int64_t collections_ = 0;
    std::uint32_t workBefore_ = 0;     // the newest launch of which work had come at the collection before the last
    std::uint32_t workLast_ = 0;       // the same at the last collection
    std::uint32_t forgottenBelow_ = 0; // older launches are forgotten
    std::int64_t forgottenIdle_ = 0, late_ = 0;
    std::unordered_map<const char*, std::string> names_;       // CUPTI keeps kernel names for the process's life
    std::unordered_map<std::uint32_t, std::string> callNames_; // empty: a call that is not drawn
    std::vector<std::uint32_t> threads_;                       // threads that made calls, the first one first
    std::vector<Pending> records_;
    std::unordered_map<std::string, std::int64_t> lastEnd_; // [track] when its last kernel ended
    std::int64_t untimed_ = 0;
};

} // namespace kvscope
