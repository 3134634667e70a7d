#include "core/serve/serving_trace.h"

#include "base/error.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace kvscope::serve {
namespace {

ServedStatus statusAfter(Ending ending) {
    switch (ending) {
    case Ending::Length:
        return ServedStatus::Length;
    case Ending::Stop:
        return ServedStatus::Stop;
    case Ending::Cancelled:
        return ServedStatus::Cancelled;
    case Ending::Refused:
        return ServedStatus::Refused;
    case Ending::Failed:
        break;
    }
    return ServedStatus::Failed;
}

} // namespace

ServingTrace::ServingTrace(TraceSink& sink, const SchedulerOptions& options, std::int64_t originNs, bool steps)
    : sink_(sink), options_(options), originNs_(originNs), steps_(steps), record_(std::make_unique<ServingRecord>()) {}

void ServingTrace::submitted(RequestId id, std::int64_t arrivalNs, int promptTokens, int maxTokens,
                             const std::string& kind) {
    Known& known = known_[id];
    ServedRequest& request = known.request;
    request.number = arrivals_++;
    request.kind = kind;
    request.arrivalNs = at(arrivalNs);
    request.promptTokens = promptTokens, request.maxTokens = maxTokens;
    request.ttftBoundMs = options_.ttftBoundMs, request.tbtBoundMs = options_.tbtBoundMs;
    known.span = {request.number, ServedState::Queued, request.arrivalNs, request.arrivalNs, -1, -1};
    changed(known);
}

void ServingTrace::turnedAway(std::int64_t arrivalNs, std::int64_t ns, const std::string& kind,
                              const std::string& why) {
    ServedRequest& request = record_->requests.emplace_back();
    request.number = arrivals_++;
    request.kind = kind;
    request.arrivalNs = at(arrivalNs), request.endNs = std::max(request.arrivalNs, at(ns));
    request.ttftBoundMs = options_.ttftBoundMs, request.tbtBoundMs = options_.tbtBoundMs;
    request.status = ServedStatus::Refused, request.reason = why;
    record_->spans.push_back({request.number, ServedState::Queued, request.arrivalNs, request.endNs, -1, -1});
}

void ServingTrace::cancelling(RequestId id, const std::string& by) {
    const auto found = known_.find(id);
    if (found != known_.end()) found->second.cancelledBy = by;
}

void ServingTrace::endSpan(Known& known, std::int64_t ns) {
    RequestSpan& span = known.span;
    span.endNs = std::max(span.startNs, at(ns)); // a request may be taken in before its intended arrival
    if (span.state == ServedState::Paused) known.request.pausedNs += span.endNs - span.startNs;
    record_->spans.push_back(span);
    changed(known);
}

void ServingTrace::enter(Known& known, ServedState state, std::int64_t ns) {
    endSpan(known, ns);
    const std::int64_t begin = known.span.endNs;
    known.span = {known.request.number, state, begin, begin, -1, -1};
    known.request.status = statusOf(state);
}

void ServingTrace::addEvent(const Known& known, RowEventKind kind, std::int32_t iteration, std::int64_t ns) {
    record_->events.push_back({iteration, known.row, known.request.number, kind, std::max<std::int64_t>(0, at(ns))});
}

void ServingTrace::admitted(RequestId id, int row, std::int64_t ns) {
    const auto found = known_.find(id);
    if (found == known_.end()) return;
    Known& known = found->second;
    known.row = row;
    addEvent(known, RowEventKind::Admitted, iterations_, ns);
    if (const ServeRequest* request = engine_->table().find(id)) {
        known.request.hostBytes = request->needs.hostBytes;
        known.request.deviceBytes = request->needs.deviceBytes;
    }
    changed(known);
}

void ServingTrace::released(RequestId id, int, bool atEnd, std::int64_t ns) {
    const auto found = known_.find(id);
    if (found != known_.end()) addEvent(found->second, RowEventKind::Released, iterations_ + (atEnd ? 1 : 0), ns);
}

void ServingTrace::scheduled(RequestId id, std::int64_t ns) {
    const auto found = known_.find(id);
    if (found == known_.end()) return;
    Known& known = found->second;
    known.request.firstScheduledNs = std::max(known.request.arrivalNs, at(ns));
    enter(known, ServedState::Prefill, ns);
}

void ServingTrace::token(RequestId id, std::int32_t, int generated, std::int64_t ns, const StepRecord& record) {
    const auto found = known_.find(id);
    if (found == known_.end()) return;
    Known& known = found->second;
    known.request.outputTokens = generated;
    if (steps_ && generated > 1) addToStep(known, generated, record); // the first token is made of the prompt
    if (generated == 1) {
        known.request.firstTokenNs = at(ns);
        known.span.lastIteration = iterations_;
        if (known.span.firstIteration < 0) known.span.firstIteration = iterations_;
        enter(known, ServedState::Decode, ns);
    }
    changed(known);
}

/// Adds what one row selected and moved in its step. The record of the row calls it sequence 0.
void ServingTrace::addToStep(const Known& known, int generated, const StepRecord& record) {
    if (!step_) {
        step_ = sink_.acquire();
        step_->step = iterations_;
        step_->layers.resize(record.layers.size());
    }
    StepRecord& step = *step_;
    ++step.tokens;
    step.opensBlock |= record.opensBlock;
    step.fed.push_back({known.row, known.request.promptTokens + generated - 2});
    const auto first = std::uint32_t(step.blocks.size());
    for (SelectionRecord selection : record.selections) {
        selection.sequence = known.row;
        selection.first += first;
        step.selections.push_back(selection);
    }
    step.blocks.insert(step.blocks.end(), record.blocks.begin(), record.blocks.end());
    step.scores.insert(step.scores.end(), record.scores.begin(), record.scores.end());
    for (std::size_t i = 0; i < std::min(step.layers.size(), record.layers.size()); ++i) {
        LayerRecord& sum = step.layers[i];
        const LayerRecord& row = record.layers[i];
        if (row.selected > 0) sum.kept = sum.kept < 0 || row.kept < 0 ? -1 : sum.kept + row.kept;
        sum.selected += row.selected, sum.hits += row.hits, sum.misses += row.misses;
        sum.h2dBlocks += row.h2dBlocks, sum.d2hBlocks += row.d2hBlocks;
        sum.h2dBytes += row.h2dBytes, sum.d2hBytes += row.d2hBytes;
    }
}

/// Rows that share a pool attend to their blocks where they lie, so that their records call all of them hits.
void ServingTrace::takePoolMisses(std::span<const PooledBlock> misses) {
    StepRecord& step = *step_;
    const std::int64_t blockBytes = engine_->costs().shape.blockBytes;
    std::map<std::tuple<int, int, int>, SelectionRecord*> selections;
    for (SelectionRecord& selection : step.selections)
        selections[{selection.sequence, selection.layer, selection.kvHead}] = &selection;
    for (const PooledBlock& missed : misses) {
        const auto found = selections.find({missed.row, missed.layer, missed.kvHead});
        if (found == selections.end()) continue; // of a row that failed
        SelectionRecord& selection = *found->second;
        const PackedBlock* block = findBlock(step.blocksOf(selection), missed.block);
        if (block == nullptr) continue;
        step.blocks[std::size_t(block - step.blocks.data())] = block->withHit(false);
        --selection.hits, ++selection.misses;
        LayerRecord& layer = step.layers[missed.layer];
        --layer.hits, ++layer.misses, ++layer.h2dBlocks, layer.h2dBytes += blockBytes;
    }
}

void ServingTrace::handOverStep(const IterationReport& report) {
    if (!step_) return;
    takePoolMisses(report.poolMisses);
    step_->startNs = at(report.decodeBeginNs), step_->durationNs = report.decodeNs;
    for (LayerRecord& layer : step_->layers) layer.startNs = step_->startNs;
    if (sink_.level() == RecordLevel::Counters) step_->blocks.clear();
    if (sink_.level() != RecordLevel::Full) step_->scores.clear();
    sink_.take(std::move(step_));
    step_.reset();
}

void ServingTrace::paused(RequestId id, std::int64_t ns) {
    const auto found = known_.find(id);
    if (found == known_.end()) return;
    ++found->second.request.pauses;
    addEvent(found->second, RowEventKind::Paused, iterations_, ns);
    enter(found->second, ServedState::Paused, ns);
}

void ServingTrace::resumed(RequestId id, std::int64_t ns) {
    const auto found = known_.find(id);
    if (found == known_.end()) return;
    addEvent(found->second, RowEventKind::Resumed, iterations_, ns);
    enter(found->second, ServedState::Decode, ns);
}

void ServingTrace::ended(RequestId id, Ending ending, std::int64_t ns, const Error* error) {
    const auto found = known_.find(id);
    if (found == known_.end()) return;
    Known& known = found->second;
    endSpan(known, ns);
    known.request.endNs = record_->spans.back().endNs;
    known.request.status = statusAfter(ending);
    if (ending == Ending::Cancelled) known.request.reason = known.cancelledBy;
    if (error != nullptr) known.request.reason = oneLine(*error);
    if (ending == Ending::Refused) { // a plan refuses requests between two iterations
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
            if (known.span.firstIteration < 0 && (known.span.state == ServedState::Prefill) == member.prefill)
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
    handOverStep(report);
    ++iterations_;
    handOver();
}

/// Hands over what has changed; requests that have ended are handed over for the last time.
void ServingTrace::handOver() {
    for (auto it = known_.begin(); it != known_.end();) {
        const bool ended = it->second.request.endNs >= 0;
        if (ended || changed_.count(it->second.request.number) > 0) record_->requests.push_back(it->second.request);
        it = ended ? known_.erase(it) : std::next(it);
    }
    changed_.clear();
    if (record_->requests.empty() && record_->spans.empty() && record_->iterations.empty() && record_->events.empty())
        return;
    sink_.take(std::move(record_));
    record_ = std::make_unique<ServingRecord>();
}

void ServingTrace::finish() { handOver(); }

} // namespace kvscope::serve
