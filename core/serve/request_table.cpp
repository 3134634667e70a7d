#include "core/serve/request_table.h"

#include "base/error.h"

#include <algorithm>
#include <fmt/format.h>

namespace kvscope::serve {
namespace {

/// Takes the requests that a plan names out of a list, in the plan's order.
std::vector<ServeRequest> takeOut(std::vector<ServeRequest>& list, std::vector<int> indices) {
    std::vector<ServeRequest> taken;
    taken.reserve(indices.size());
    for (const int i : indices) taken.push_back(list[std::size_t(i)]);
    std::sort(indices.begin(), indices.end());
    auto next = indices.begin();
    std::size_t kept = 0;
    for (std::size_t i = 0; i < list.size(); ++i) {
        if (next != indices.end() && std::size_t(*next) == i) {
            ++next;
            continue;
        }
        if (kept != i) list[kept] = list[i];
        ++kept;
    }
    list.resize(kept);
    return taken;
}

std::vector<int> indicesOf(const std::vector<Member>& members) {
    std::vector<int> indices;
    indices.reserve(members.size());
    for (const Member& member : members) indices.push_back(member.index);
    return indices;
}

ServeRequest* findIn(std::vector<ServeRequest>& list, RequestId id) {
    const auto found = std::find_if(list.begin(), list.end(), [&](const ServeRequest& r) { return r.id == id; });
    return found == list.end() ? nullptr : &*found;
}

} // namespace

void RequestTable::arrive(ServeRequest request) {
    if (request.promptTokens < 1 || request.maxTokens < 1)
        throw Error(ErrorKind::BadInput,
                    fmt::format("request {} has {} prompt tokens and asks for {}", request.id, request.promptTokens,
                                request.maxTokens),
                    "both are at least 1");
    request.state = RequestState::Queued;
    waiting_.push_back(request);
}

Snapshot RequestTable::snapshot(std::int64_t nowNs, double hitRate) const {
    return {nowNs, waiting_, running_, paused_, ledger_.budget(), ledger_.used(), iterationsOver_, hitRate};
}

void RequestTable::begin(const IterationPlan& plan, std::int64_t nowNs) {
    // A request has been skipped when the plan admits a request behind it in the queue.
    const int lastAdmitted = plan.admitted.empty() ? -1 : plan.admitted.back().index;
    for (int i = 0; i < lastAdmitted; ++i) ++waiting_[i].skips;
    for (auto request = waiting_.rbegin(); request != waiting_.rend() && !request->checked; ++request)
        request->checked = true;

    std::vector<int> leaving = indicesOf(plan.admitted);
    const std::size_t admitted = leaving.size();
    for (const Refusal& refusal : plan.refused) leaving.push_back(refusal.request.index);
    std::vector<ServeRequest> left;
    if (!leaving.empty()) left = takeOut(waiting_, leaving);
    left.resize(admitted);

    std::vector<ServeRequest> pausing, resuming;
    if (!plan.paused.empty()) pausing = takeOut(running_, indicesOf(plan.paused));
    if (!plan.resumed.empty()) resuming = takeOut(paused_, indicesOf(plan.resumed));
    for (ServeRequest& request : pausing) {
        ledger_.giveBack(request.id, request.elastic());
        request.state = RequestState::Paused;
        ++request.pauses;
        paused_.push_back(request);
    }
    for (ServeRequest& request : resuming) {
        ledger_.reserve(request.id, request.elastic(), running_.empty());
        request.state = RequestState::Decoding;
        request.tokensSinceResume = 0;
        request.cold = true;
        running_.push_back(request);
    }
    for (ServeRequest& request : left) {
        ledger_.reserve(request.id, request.atAdmission(), running_.empty());
        request.state = RequestState::Prefilling;
        request.lastSegmentNs = nowNs;
        running_.push_back(request);
    }
    iterationsOver_ = plan.over ? iterationsOver_ + 1 : 0;
}

const std::vector<RequestTable::Token>& RequestTable::end(const IterationPlan& plan, std::int64_t nowNs) {
    tokens_.clear();
    for (ServeRequest& request : running_) {
        if (request.state != RequestState::Decoding) continue;
        ++request.generated;
        ++request.tokensSinceResume;
        request.cold = false;
        tokens_.push_back({request.id, request.generated, false});
    }
    for (const PrefillSegment& segment : plan.segments) {
        ServeRequest* request = findIn(running_, segment.id);
        if (!request) continue; // the request was cancelled during the iteration
        request->position = segment.to;
        request->lastSegmentNs = nowNs;
        if (!segment.last) continue;
        ledger_.giveBack(request->id, request->scratch());
        request->state = RequestState::Decoding;
        request->generated = 1;
        request->cold = true;
        tokens_.push_back({request->id, 1, true});
    }
    return tokens_;
}

bool RequestTable::finish(RequestId id) {
    ledger_.release(id);
    for (std::vector<ServeRequest>* list : {&running_, &paused_, &waiting_}) {
        const auto found = std::find_if(list->begin(), list->end(), [&](const ServeRequest& r) { return r.id == id; });
        if (found == list->end()) continue;
        list->erase(found);
        return true;
    }
    return false;
}

bool RequestTable::setWorkingSet(RequestId id, std::int64_t bytes) {
    if (ServeRequest* request = findIn(running_, id)) {
        ledger_.setWorkingSet(id, bytes);
        request->workingSetBytes = bytes;
        return true;
    }
    if (ServeRequest* request = findIn(paused_, id)) { // a paused request takes no place on the device
        request->workingSetBytes = bytes;
        return true;
    }
    return false;
}

const ServeRequest* RequestTable::find(RequestId id) const {
    for (const std::vector<ServeRequest>* list : {&running_, &paused_, &waiting_})
        for (const ServeRequest& request : *list)
            if (request.id == id) return &request;
    return nullptr;
}

} // namespace kvscope::serve
