#include "core/serve/serving_trace.h"

#include "base/error.h"

#include <algorithm>
#include <utility>

namespace kvscope::serve {

ServingTrace::ServingTrace(TraceSink& sink, const SchedulerOptions& options, std::int64_t originNs)
    : sink_(sink), options_(options), originNs_(originNs), record_(std::make_unique<ServingRecord>()) {}

void ServingTrace::submitted(RequestId id, std::int64_t arrivalNs, int promptTokens, int maxTokens,
                             const std::string& kind) {
    Known& known = known_[id];
    ServedRequest& request = known.request;
    request.number = arrivals_++;
    request.kind = kind;
    request.arrivalNs = at(arrivalNs);
    request.promptTokens = promptTokens, request.maxTokens = maxTokens;
    request.ttftBoundMs = options_.ttftBoundMs, request.tbtBoundMs = options_.tbtBoundMs;
    known.span = {request.number, "queued", request.arrivalNs, request.arrivalNs, -1, -1};
    changed(known);
}

/// The span that is open ends, and one of the new state begins.
void ServingTrace::enter(Known& known, const char* state, std::int64_t ns) {
    RequestSpan& span = known.span;
    span.endNs = std::max(span.startNs, at(ns)); // a request may be taken in before its intended arrival
    if (span.state == "paused") known.request.pausedNs += span.endNs - span.startNs;
    record_->spans.push_back(span);
    span = {known.request.number, state, span.endNs, span.endNs, -1, -1};
    known.request.status = state;
    changed(known);
}

void ServingTrace::scheduled(RequestId id, std::int64_t ns) {
    const auto found = known_.find(id);
    if (found == known_.end()) return;
    Known& known = found->second;
    known.request.firstScheduledNs = std::max(known.request.arrivalNs, at(ns));
    enter(known, "prefill", ns);
    if (const ServeRequest* request = engine_->table().find(id)) {
        known.request.hostBytes = request->needs.hostBytes;
        known.request.deviceBytes = request->needs.deviceBytes;
    }
}

void ServingTrace::token(RequestId id, std::int32_t, int generated, std::int64_t ns, const StepRecord&) {
    const auto found = known_.find(id);
    if (found == known_.end()) return;
    Known& known = found->second;
    known.request.outputTokens = generated;
    if (generated == 1) {
        known.request.firstTokenNs = at(ns);
        known.span.lastIteration = iterations_;
        if (known.span.firstIteration < 0) known.span.firstIteration = iterations_;
        enter(known, "decode", ns);
    }
    changed(known);
}

void ServingTrace::paused(RequestId id, std::int64_t ns) {
    const auto found = known_.find(id);
    if (found == known_.end()) return;
    ++found->second.request.pauses;
    enter(found->second, "paused", ns);
}

void ServingTrace::resumed(RequestId id, std::int64_t ns) {
    const auto found = known_.find(id);
    if (found != known_.end()) enter(found->second, "decode", ns);
}

void ServingTrace::ended(RequestId id, Ending ending, std::int64_t ns, const Error* error) {
    const auto found = known_.find(id);
    if (found == known_.end()) return;
    Known& known = found->second;
    enter(known, "", ns);
    known.request.endNs = record_->spans.back().endNs;
    known.request.status = nameOf(ending);
    if (error != nullptr) known.request.reason = oneLine(*error);
    if (ending == Ending::Refused) { // a plan refuses between two iterations
        record_->requests.push_back(known.request);
        changed_.erase(known.request.number);
        known_.erase(found);
    }
}

void ServingTrace::iteration(const IterationReport& report) {
    const IterationPlan& plan = report.plan;
    ServingIteration& row = record_->iterations.emplace_back();
    row.iteration = iterations_;
    row.startNs = at(report.beginNs), row.durationNs = report.endNs - report.beginNs;
    row.decodeNs = report.decodeNs;
    for (const std::int64_t ns : report.segmentNs) row.prefillNs += ns;
    row.predictedNs = std::int64_t(plan.predictedMs * 1e6);
    row.waiting = int(engine_->table().waiting().size()), row.paused = int(engine_->table().paused().size());
    row.admitted = int(plan.admitted.size()), row.refused = int(plan.refused.size());
    row.workingSetBytes = plan.workingSetBytes, row.availableBytes = plan.availableBytes;
    row.hardBytes = plan.hardBytes;
    row.deviceBytes = report.reserved.device, row.scratchBytes = report.reserved.scratch;
    row.hostBytes = report.reserved.host;
    row.surprises = report.surprises;
    row.limitedBy = nameOf(plan.limitedBy);
    for (const MemberReport& member : report.members) {
        const auto found = known_.find(member.id);
        if (found == known_.end()) continue;
        Known& known = found->second;
        ServedRequest& request = known.request;
        request.row = member.row;
        request.hits += member.hits, request.misses += member.misses, request.missedBytes += member.missedBytes;
        const bool ended = request.endNs >= 0;
        if (!ended) {
            if (known.span.firstIteration < 0 && (known.span.state == "prefill") == member.prefill)
                known.span.firstIteration = iterations_;
            if (known.span.firstIteration >= 0) known.span.lastIteration = iterations_;
        }
        IterationMember& entry = row.members.emplace_back();
        entry.request = request.number, entry.row = member.row;
        entry.prefill = member.prefill;
        entry.tokens = member.tokens, entry.layerFrom = member.layerFrom, entry.layerTo = member.layerTo;
        entry.hits = member.hits, entry.misses = member.misses, entry.missedBytes = member.missedBytes;
        entry.workingSetBytes = member.workingSetBytes;
        if (member.madeToken) entry.tokenNs = at(report.endNs);
        changed(known);
    }
    ++iterations_;
    handOver();
}

/// Requests that have ended are told for the last time.
void ServingTrace::handOver() {
    for (auto it = known_.begin(); it != known_.end();) {
        const bool ended = it->second.request.endNs >= 0;
        if (ended || changed_.count(it->second.request.number) > 0) record_->requests.push_back(it->second.request);
        it = ended ? known_.erase(it) : std::next(it);
    }
    changed_.clear();
    sink_.take(std::move(record_));
    record_ = std::make_unique<ServingRecord>();
}

void ServingTrace::finish() { handOver(); }

} // namespace kvscope::serve
