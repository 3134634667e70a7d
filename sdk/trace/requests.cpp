#include "sdk/trace/requests.h"

#include "profiler/format/trace_keys.h"
#include "sdk/trace/arguments.h"

#include <algorithm>
#include <utility>

namespace kvscope::sdk {
namespace {

ServedStatus servedStatusOf(std::int32_t outcome) {
    switch (outcome) {
    case KVTRACE_REQUEST_STOP:
        return ServedStatus::Stop;
    case KVTRACE_REQUEST_LENGTH:
        return ServedStatus::Length;
    case KVTRACE_REQUEST_CANCELLED:
        return ServedStatus::Cancelled;
    case KVTRACE_REQUEST_FAILED:
        return ServedStatus::Failed;
    case KVTRACE_REQUEST_REFUSED:
        return ServedStatus::Refused;
    default:
        refuse(KVTRACE_INVALID, "outcome ", std::to_string(outcome),
               " of a request is none; give a value of kvtrace_request_outcome");
    }
}

/// The spans that a request leaves behind when it goes from one state to the next at `ns`.
RequestSpan spanTo(const ServedRequest& request, std::int64_t ns) {
    RequestSpan span;
    span.request = request.number;
    span.state = ServedState(int(request.status));
    span.startNs = request.firstTokenNs >= 0       ? request.firstTokenNs
                   : request.firstScheduledNs >= 0 ? request.firstScheduledNs
                                                   : request.arrivalNs;
    span.endNs = ns;
    return span;
}

} // namespace

EngineRequest Requests::begin(const kvtrace_request& given, std::int64_t now, std::int32_t& row) {
    if (given.prompt_tokens < 0 || given.max_tokens < 0)
        refuse(KVTRACE_INVALID, "kvtrace_request: prompt_tokens and max_tokens are 0 (not known) or more");
    const std::int64_t arrival = given.arrival_ns == KVTRACE_NOW ? now : given.arrival_ns;
    requireTime("the arrival of a request", arrival);
    if (arrival < 0)
        refuse(KVTRACE_INVALID, "a request arrives at ", std::to_string(arrival),
               " ns, before the run began; give 0 where it waited already");
    if (next_ > trace::kMaxServed) refuse(KVTRACE_UNSUPPORTED, "a run holds 2^40 requests; begin another run");
    std::int32_t free = 0;
    while (open_.contains(free)) ++free;
    if (free >= rows_)
        refuse(KVTRACE_STATE, "all ", std::to_string(rows_),
               " rows of the run have requests; end one first, or give kvtrace_run_info.sequences more rows");
    EngineRequest begun;
    begun.request.number = next_++;
    begun.request.row = free;
    begun.request.kind = textOf(given.kind);
    begun.request.arrivalNs = arrival;
    begun.request.promptTokens = given.prompt_tokens;
    begun.request.maxTokens = given.max_tokens;
    begun.externalId = textOf(given.external_id);
    row = free;
    open_.emplace(free, begun);
    return begun;
}

EngineRequest Requests::end(std::int32_t row, std::int32_t outcome, std::string reason, std::int64_t endNs) {
    const auto found = open_.find(row);
    if (found == open_.end())
        refuse(KVTRACE_STATE, "row ", std::to_string(row), " has no request; kvtrace_request_begin gives it one");
    const ServedStatus status = servedStatusOf(outcome);
    EngineRequest ended = found->second;
    ServedRequest& request = ended.request;
    const std::string which = "the request in row " + std::to_string(row);
    if (status == ServedStatus::Refused && request.firstScheduledNs >= 0)
        refuse(KVTRACE_STATE, which, " cannot be refused: a step has worked for it");
    const std::int64_t last = std::max({request.arrivalNs, request.firstScheduledNs, request.firstTokenNs});
    if (endNs < last)
        refuse(KVTRACE_INVALID, which, " ends at ", std::to_string(endNs), " ns, before ", std::to_string(last),
               " ns, when it arrived, began or made its first token");
    ended.spans.push_back(spanTo(request, endNs));
    request.status = status;
    request.endNs = endNs;
    request.reason = std::move(reason);
    open_.erase(found);
    return ended;
}

std::map<std::int32_t, Requests::Worked> Requests::workedFor(const StepRecord& step) const {
    std::map<std::int32_t, Worked> rows;
    for (const SelectionRecord& selection : step.selections) {
        Worked& row = rows[selection.sequence];
        row.decodes = true;
        row.hits += selection.hits;
        row.misses += selection.misses;
    }
    for (const PieceRecord& piece : step.pieces) rows[piece.sequence];
    for (const TokenRecord& token : step.generated) ++rows[token.sequence].tokens;
    if (step.step == 0 && step.phase == Phase::Prefill && step.pieces.empty()) // it reads the prompts of all
        for (const auto& [row, request] : open_) rows[row];
    return rows;
}

std::vector<EngineRequest> Requests::take(const StepRecord& step, bool timed, std::int64_t now) {
    std::vector<EngineRequest> changed;
    if (open_.empty()) return changed;
    for (const auto& [row, worked] : workedFor(step)) {
        const auto found = open_.find(row);
        if (found == open_.end()) continue;
        EngineRequest& of = found->second;
        ServedRequest& request = of.request;
        std::vector<RequestSpan> spans;
        if (request.firstScheduledNs < 0) {
            const std::int64_t begins = std::max(timed ? step.startNs : now, request.arrivalNs);
            spans.push_back(spanTo(request, begins));
            request.firstScheduledNs = begins;
            request.status = ServedStatus::Prefill;
            of.firstStep = step.step;
        }
        of.lastStep = step.step;
        request.hits += worked.hits;
        request.misses += worked.misses;
        // a row that decodes makes a token, whether the caller says which or not
        const std::int32_t made = worked.tokens > 0 ? worked.tokens : worked.decodes ? 1 : 0;
        if (made > 0 && request.outputTokens == 0) {
            const std::int64_t there = std::max(timed ? step.startNs + step.durationNs : now, request.firstScheduledNs);
            spans.push_back(spanTo(request, there));
            request.firstTokenNs = there;
            request.status = ServedStatus::Decode;
        }
        request.outputTokens += made;
        if (spans.empty()) continue;
        changed.push_back(of);
        changed.back().spans = std::move(spans);
    }
    return changed;
}

std::vector<EngineRequest> Requests::open() const {
    std::vector<EngineRequest> all;
    for (const auto& [row, request] : open_) all.push_back(request);
    return all;
}

} // namespace kvscope::sdk
