#include "profiler/cupti/activity_log.h"

#ifdef KVSCOPE_HAVE_CUPTI

#include "profiler/format/span_name.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cupti.h>
#include <cxxabi.h>
#include <fmt/format.h>

namespace kvscope {
namespace {

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

/// "cudaGraphLaunch_v10000" -> "cudaGraphLaunch"
std::string withoutVersion(std::string name) {
    const std::size_t at = name.rfind("_v");
    if (at != std::string::npos && at + 2 < name.size() &&
        name.find_first_not_of("0123456789", at + 2) == std::string::npos)
        name.resize(at);
    for (const std::string_view suffix : {"_ptsz", "_ptds"})
        if (name.ends_with(suffix)) name.resize(name.size() - suffix.size());
    return name;
}

/// Questions that are answered at once. They start nothing and wait for nothing, and an engine asks them all the time.
bool isChatter(std::string_view call) {
    constexpr std::array<std::string_view, 12> kQuestions{
        "cudaGetDevice",    "cudaSetDevice",        "cudaGetLastError",      "cudaPeekAtLastError",
        "cudaEventQuery",   "cudaStreamQuery",      "cudaGetErrorString",    "cudaStreamIsCapturing",
        "cudaGetErrorName", "cudaDriverGetVersion", "cudaRuntimeGetVersion", "cudaFuncSetAttribute"};
    return call.starts_with("cudaOccupancy") || call.starts_with("cudaDeviceGet") || call.starts_with("cudaFuncGet") ||
           call.starts_with("cudaStreamGet") || call.starts_with("cudaPointerGet") ||
           std::find(kQuestions.begin(), kQuestions.end(), call) != kQuestions.end();
}

} // namespace

void ActivityLog::nodeCloned(std::uint64_t node, std::uint64_t original) {
    const auto known = nodes_.find(original);
    if (known == nodes_.end()) return;
    const LaunchPlace place = known->second; // inserting may move it
    nodes_[node] = place;
}

void ActivityLog::take(const void* activity) {
    const auto of = [](SpanRecord::Kind kind, std::string track, std::string name, std::uint32_t correlation,
                       std::uint64_t node, std::int64_t bytes = -1) {
        Pending pending;
        pending.span.kind = kind;
        pending.span.track = std::move(track);
        pending.span.name = std::move(name);
        pending.span.launch = correlation;
        pending.span.bytes = bytes;
        pending.node = node;
        return pending;
    };
    switch (static_cast<const CUpti_Activity*>(activity)->kind) {
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: {
        const auto* kernel = static_cast<const CUpti_ActivityKernel10*>(activity);
        auto& name = names_[kernel->name];
        if (name.empty()) name = shortName(kernel->name);
        add(of(SpanRecord::Kind::Kernel, fmt::format("stream {}", kernel->streamId), name, kernel->correlationId,
               kernel->graphNodeId),
            kernel->start, kernel->end);
        break;
    }
    case CUPTI_ACTIVITY_KIND_MEMCPY: {
        const auto* copy = static_cast<const CUpti_ActivityMemcpy6*>(activity);
        const char* direction = copyName(copy->copyKind);
        add(of(SpanRecord::Kind::Copy, fmt::format("copies {}", direction), direction, copy->correlationId,
               copy->graphNodeId, std::int64_t(copy->bytes)),
            copy->start, copy->end);
        break;
    }
    case CUPTI_ACTIVITY_KIND_MEMSET: {
        const auto* set = static_cast<const CUpti_ActivityMemset4*>(activity);
        add(of(SpanRecord::Kind::Copy, fmt::format("stream {}", set->streamId), std::string(kSetName),
               set->correlationId, set->graphNodeId, std::int64_t(set->bytes)),
            set->start, set->end);
        break;
    }
    case CUPTI_ACTIVITY_KIND_OVERHEAD: {
        const auto* overhead = static_cast<const CUpti_ActivityOverhead3*>(activity);
        const char* what = overhead->overheadKind == CUPTI_ACTIVITY_OVERHEAD_CUPTI_BUFFER_FLUSH      ? "buffer flush"
                           : overhead->overheadKind == CUPTI_ACTIVITY_OVERHEAD_CUPTI_RESOURCE        ? "resources"
                           : overhead->overheadKind == CUPTI_ACTIVITY_OVERHEAD_CUPTI_INSTRUMENTATION ? "instrumentation"
                                                                                                     : "other";
        Pending pending = of(SpanRecord::Kind::Range, "CUPTI overhead", what, 0, 0);
        pending.waits = false;
        add(std::move(pending), overhead->start, overhead->end);
        break;
    }
    case CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION: {
        const auto* external = static_cast<const CUpti_ActivityExternalCorrelation*>(activity);
        if (external->correlationId >= forgottenBelow_)
            launches_[external->correlationId] = {LaunchPlace::unpacked(external->externalId), collections_, false};
        break;
    }
    case CUPTI_ACTIVITY_KIND_RUNTIME: // enabled in any case: external correlation needs it
        if (callName_) addCall(activity);
        break;
    default:
        break;
    }
}

void ActivityLog::addCall(const void* activity) {
    const auto* call = static_cast<const CUpti_ActivityAPI*>(activity);
    const std::string& name = nameOfCall(call->cbid);
    if (name.empty()) return;
    Pending pending;
    pending.span.track = trackOfThread(call->threadId);
    pending.span.name = name;
    pending.span.launch = call->correlationId;
    pending.waits = false; // the record that names its step comes before its own
    add(std::move(pending), call->start, call->end);
}

const std::string& ActivityLog::nameOfCall(std::uint32_t callback) {
    const auto [at, isNew] = callNames_.try_emplace(callback);
    if (isNew) {
        at->second = withoutVersion(callName_(callback));
        if (at->second.empty())
            at->second = fmt::format("CUDA call {}", callback);
        else if (isChatter(at->second))
            at->second.clear();
    }
    return at->second;
}

std::string ActivityLog::trackOfThread(std::uint32_t thread) {
    const auto found = std::find(threads_.begin(), threads_.end(), thread);
    const auto number = found - threads_.begin() + 1;
    if (found == threads_.end()) threads_.push_back(thread);
    return number == 1 ? std::string(kCallsTrack) : fmt::format("{} of thread {}", kCallsTrack, number);
}

void ActivityLog::add(Pending pending, std::uint64_t start, std::uint64_t end) {
    if (start == 0 || end < start) { // "no time available"
        ++untimed_;
        return;
    }
    pending.span.startNs = std::int64_t(start);
    pending.span.durationNs = std::int64_t(end - start);
    if (isForgotten(pending)) ++late_;
    records_.push_back(std::move(pending));
}

/// Whether the record waits to learn the place of a launch that forgetLaunches() has forgotten, so that it waits in
/// vain.
bool ActivityLog::isForgotten(const Pending& record) const {
    return record.waits && record.span.launch != 0 && record.span.launch < forgottenBelow_;
}

std::vector<SpanRecord> ActivityLog::collect(std::int64_t originNs, bool all) {
    std::vector<SpanRecord> spans;
    std::vector<Pending> waiting;
    std::uint32_t newestWork = 0;
    for (Pending& record : records_) {
        const auto launch = launches_.find(record.span.launch);
        const bool known = record.span.launch != 0 && launch != launches_.end();
        if (record.waits && !known && !all && !isForgotten(record)) {
            waiting.push_back(std::move(record));
            continue;
        }
        if (known && record.waits) {
            launch->second.hasWork = true;
            newestWork = std::max(newestWork, launch->first);
        }
        SpanRecord& span = spans.emplace_back(std::move(record.span));
        LaunchPlace place;
        if (known) place = launch->second.place;
        span.step = place.step;
        if (const auto node = nodes_.find(record.node); record.node != 0 && node != nodes_.end()) place = node->second;
        span.layer = place.layer;
        if (span.kind == SpanRecord::Kind::Kernel) span.stage = place.stage;
        span.startNs -= originNs;
    }
    records_ = std::move(waiting);
    forgetLaunches(newestWork);
    trimWaits(spans, originNs);
    if (all) threads_.clear(); // the next run begins with the thread that its engine runs on
    return spans;
}

/// The GPU works launches off in the order in which they were made, and CUPTI hands their records over in buffers: what
/// has not come two collections after the work of a later launch does not come. A launch is therefore forgotten then,
/// and not at its first record: the records of a graph's kernels may fill several buffers. Where no work comes at all,
/// launches are forgotten by age.
void ActivityLog::forgetLaunches(std::uint32_t newestWork) {
    constexpr std::int64_t kMostCollections = 1024;
    const auto old = [&](const std::pair<const std::uint32_t, Launch>& each) {
        return each.first < workBefore_ || each.second.collection + kMostCollections <= collections_;
    };
    while (!launches_.empty() && old(*launches_.begin())) {
        const auto oldest = launches_.begin();
        forgottenIdle_ += oldest->second.hasWork ? 0 : 1;
        forgottenBelow_ = std::max(forgottenBelow_, oldest->first + 1);
        launches_.erase(oldest);
    }
    forgottenBelow_ = std::max(forgottenBelow_, workBefore_);
    workBefore_ = workLast_;
    workLast_ = std::max(workLast_, newestWork);
    ++collections_;
}

/// Kernels of a step start before their predecessor ends and wait for it (programmatic dependent launch): CUPTI
/// counts the wait as theirs. A stream's kernels work one after another, so each one's time begins where the one
/// before ended.
void ActivityLog::trimWaits(std::vector<SpanRecord>& spans, std::int64_t originNs) {
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

} // namespace kvscope

#endif
