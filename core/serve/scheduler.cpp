#include "core/serve/scheduler.h"

#include <algorithm>
#include <cmath>

namespace kvscope::serve {
namespace {

constexpr double kNsPerMs = 1e6;

/// One call of Scheduler::plan, with what the plan has promised so far.
class Planning {
public:
    Planning(const SchedulerOptions& options, const ServiceCosts& costs, const Snapshot& now, IterationPlan& plan)
        : options_(options), costs_(costs), now_(now), plan_(plan), used_(now.used) {}

    void make(const Scheduler& scheduler) {
        refuse(scheduler);
        chooseDecodes();
        predictDecodes();
        readRunningPrompts();
        admit();
        readAdmittedPrompts();
        summarize();
    }

private:
    std::int64_t available() const { return now_.budget.available(used_); }
    bool over() const { return now_.budget.workingSetControl && used_.workingSets > available(); }
    bool isShort(const ServeRequest& r) const { return r.promptTokens <= options_.shortTokens; }
    const ServeRequest& running(const Member& member) const { return now_.running[member.index]; }
    static Member memberOf(std::span<const ServeRequest> list, const ServeRequest& request) {
        return {request.id, int(&request - list.data())};
    }
    int& waitingFor(Limit limit) { return plan_.waitingFor[std::size_t(limit)]; }
    double msSince(std::int64_t ns) const { return double(now_.nowNs - ns) / kNsPerMs; }

    // Requests that can never run leave the queue, and so do those that arrived when the queue was full. Only requests
    // that no plan has tested are looked at; they are the last of the queue.
    void refuse(const Scheduler& scheduler) {
        const auto count = int(now_.waiting.size());
        firstUnchecked_ = count;
        while (firstUnchecked_ > 0 && !now_.waiting[firstUnchecked_ - 1].checked) --firstUnchecked_;
        int kept = firstUnchecked_;
        refused_.assign(count - firstUnchecked_, 0);
        for (int i = firstUnchecked_; i < count; ++i) {
            const ServeRequest& request = now_.waiting[i];
            Refusal refusal = scheduler.neverFits(now_.budget, request);
            if (refusal.limit == Limit::None && kept >= options_.maxWaiting)
                refusal = {{}, Limit::QueueFull, Limit::None, kept + 1, options_.maxWaiting};
            if (refusal.limit == Limit::None) {
                ++kept;
                continue;
            }
            refusal.request = {request.id, i};
            refused_[i - firstUnchecked_] = 1;
            plan_.refused.push_back(refusal);
        }
    }
    bool isRefused(int i) const { return i >= firstUnchecked_ && refused_[i - firstUnchecked_] != 0; }

    // Requests that decode go on, unless they are paused here. Paused requests return before others are admitted.
    void chooseDecodes() {
        for (const ServeRequest& request : now_.running) {
            if (request.state == RequestState::Decoding)
                plan_.decode.push_back(memberOf(now_.running, request));
            else
                ++reading_;
        }
        if (over() && now_.iterationsOver >= options_.pauseAfter) pauseSome();
        if (plan_.paused.empty()) resumeSome();
    }

    /// The request to pause: the one that frees most bytes for each token that it still has to make; of equal ones the
    /// newest. The end of the list: none may be paused.
    std::vector<Member>::const_iterator victim() const {
        auto best = plan_.decode.cend();
        double most = -1;
        for (auto member = plan_.decode.cbegin(); member != plan_.decode.cend(); ++member) {
            const ServeRequest& r = running(*member);
            if (r.pauses > 0 && r.tokensSinceResume < options_.resumeTokens) continue;
            const double freed = double(r.workingSetBytes) / std::max(1, r.maxTokens - r.generated);
            if (freed >= most) best = member, most = freed;
        }
        return best;
    }
    void pauseSome() {
        while (over() && int(plan_.decode.size()) + reading_ > 1) {
            const auto member = victim();
            if (member == plan_.decode.cend()) return;
            used_ -= running(*member).elastic();
            plan_.paused.push_back(*member);
            plan_.decode.erase(member);
        }
    }
    void resumeSome() {
        for (const ServeRequest& request : now_.paused) {
            const Limit limit = lacking(now_.budget, used_, request.elastic());
            const bool alone = plan_.decode.empty() && plan_.resumed.empty() && reading_ == 0;
            if (limit != Limit::None && !(alone && limit == Limit::WorkingSets)) {
                notResumed_ = limit;
                return;
            }
            used_ += request.elastic();
            plan_.resumed.push_back(memberOf(now_.paused, request));
        }
    }

    void predictDecodes() {
        std::int64_t context = 0, warm = 0, cold = 0;
        const auto count = [&](const ServeRequest& request, bool isCold) {
            context += request.promptTokens + request.generated;
            (isCold ? cold : warm) += request.needs.stepBytes;
        };
        for (const Member& member : plan_.decode) {
            const ServeRequest& request = running(member);
            count(request, request.cold);
        }
        for (const Member& member : plan_.resumed) count(now_.paused[member.index], true);
        const auto misses = cold + std::int64_t(std::ceil((1 - now_.hitRate) * double(warm)));
        plan_.decodeMs = costs_.decode(plan_.decodeRows(), context, misses, options_);
        plan_.predictedMs = plan_.decodeMs + costs_.overhead(plan_.decodeRows());
        left_ = options_.budgetMs() - plan_.predictedMs;
        tokens_ = plan_.decodeRows();
    }

    // The next segment of a prompt. `most`: the milliseconds that it may take; `force`: the prompt gets its smallest
    // part however long that takes. from == to: it gets none.
    PrefillSegment next(const ServeRequest& request, double most, bool force) const {
        PrefillSegment segment;
        segment.id = request.id;
        segment.from = segment.to = request.position;
        if (options_.prefill == PrefillPlan::Chunks)
            nextChunk(request, most, force, segment);
        else if (options_.tokenLayers > 0)
            nextTokenLayers(request, segment);
        else
            nextLayers(request, most, force, segment);
        return segment;
    }
    void nextChunk(const ServeRequest& request, double most, bool force, PrefillSegment& segment) const {
        const int end = std::min(segment.from.token + options_.chunkTokens, request.promptTokens);
        const double ms = costs_.shape.layers * costs_.prefillLayer(segment.from.token, end);
        if (ms > most && !force) return;
        segment.to.token = end, segment.ms = ms;
        segment.last = end == request.promptTokens;
    }
    void nextTokenLayers(const ServeRequest& request, PrefillSegment& segment) const {
        const auto layers = int(std::max<std::int64_t>(1, options_.tokenLayers / request.promptTokens));
        segment.to = {std::min(segment.from.layer + layers, costs_.shape.layers), 0};
        segment.ms = (segment.to.layer - segment.from.layer) * costs_.prefillLayer(0, request.promptTokens);
        segment.last = segment.to.layer == costs_.shape.layers;
    }
    // Takes whole layers as long as they fit. A layer that does not fit whole is cut at the end of a piece, if the
    // method can stop there. A layer that was cut once goes on.
    void nextLayers(const ServeRequest& request, double most, bool force, PrefillSegment& segment) const {
        PromptPosition& at = segment.to;
        const int layers = costs_.shape.layers, all = request.promptTokens;
        const double whole = costs_.prefillLayer(0, all);
        while (at.layer < layers) {
            const double rest = at.token == 0 ? whole : costs_.prefillLayer(at.token, all);
            if (segment.ms + rest <= most) {
                ++at.layer, at.token = 0, segment.ms += rest;
                continue;
            }
            const bool started = segment.from != at;
            if (started && at.token == 0) break; // a layer is cut into pieces only if the segment has no other layer
            if (!costs_.shape.pausesInLayer) {
                if (!started && force) ++at.layer, at.token = 0, segment.ms += rest;
                break;
            }
            const int end = std::min(at.token + costs_.shape.pieceTokens, all);
            const double piece = costs_.prefillLayer(at.token, end);
            if (segment.ms + piece > most && !(force && !started)) break;
            at.token = end, segment.ms += piece;
            if (at.token == all) ++at.layer, at.token = 0;
        }
        segment.last = at.layer == layers;
    }

    /// Bytes that a segment in chunks has on the device: the keys and values of its own chunk and of those before it.
    std::int64_t chunkBytes(const ServeRequest& request, const PrefillSegment& segment) const {
        return request.needs.chunkTokenBytes * segment.to.token; // 0 where prompts are read layer by layer
    }
    Limit lacksForChunks(const ServeRequest& request, const PrefillSegment& segment) const {
        const std::int64_t bytes = chunkBytes(request, segment);
        if (bytes == 0) return Limit::None;
        Amounts more;
        more.hard = std::max<std::int64_t>(0, bytes - request.needs.hardBytes);
        more.workingSets = std::max<std::int64_t>(0, bytes - request.workingSetBytes);
        return lacking(now_.budget, used_ + more, {});
    }

    /// Adds the next segment of the request. @return what kept the segment out; None: it is in, or the prompt is read
    Limit read(const ServeRequest& request, Member member, bool admitted, double most, bool force) {
        if (!plan_.segments.empty() && tokens_ + request.promptTokens > options_.iterationTokens)
            return Limit::TokenBudget;
        PrefillSegment segment = next(request, most, force);
        if (segment.from == segment.to) return Limit::TimeBudget;
        segment.index = member.index, segment.admitted = admitted;
        // Where nothing else runs, the places of the other requests on the device are free, and admission made sure
        // that this is enough.
        const Limit memory = lacksForChunks(request, segment);
        if (memory != Limit::None && !(plan_.decodeRows() == 0 && plan_.segments.empty())) return memory;
        const std::int64_t bytes = chunkBytes(request, segment);
        if (memory != Limit::None) { // and nothing may join it
            closed_ = true;
            used_.hard = used_.workingSets = bytes;
        } else {
            used_.hard += std::max<std::int64_t>(0, bytes - request.needs.hardBytes);
            used_.workingSets += std::max<std::int64_t>(0, bytes - request.workingSetBytes);
        }
        left_ -= segment.ms, plan_.predictedMs += segment.ms;
        tokens_ += request.promptTokens;
        (isShort(request) ? shortSegments_ : longSegments_) += 1;
        plan_.segments.push_back(segment);
        return Limit::None;
    }

    bool suspended(const ServeRequest& request) const {
        return msSince(request.lastSegmentNs) >= options_.maxSuspendMs;
    }
    /// Whether a part of the prompt must be read however long it takes: nothing else would run, or the prompt had no
    /// part for too long.
    bool mustRead(const ServeRequest& request) const {
        return (plan_.decodeRows() == 0 && plan_.segments.empty()) || suspended(request);
    }

    // Reads the oldest long prompt first, in the time that is not kept for short prompts. Short prompts keep what up to
    // short_turns of them take, at most half of the time, and nothing while a long one has waited long for a segment.
    void readRunningPrompts() {
        const ServeRequest* oldest = nullptr;
        double shortMs = 0;
        int shorts = 0;
        for (const ServeRequest& request : now_.running) {
            if (request.state != RequestState::Prefilling) continue;
            if (isShort(request)) {
                if (shorts++ < options_.shortTurns) shortMs += restOf(request);
                ++shortsReading_;
            } else {
                if (!oldest) oldest = &request;
                ++longsReading_;
            }
        }
        const bool aged = oldest && msSince(oldest->lastSegmentNs) >= options_.agingMs;
        kept_ = aged ? 0 : std::min(shortMs, std::max(0.0, left_) / 2);
        for (const bool shortLane : {false, true})
            for (const ServeRequest& request : now_.running) {
                if (request.state != RequestState::Prefilling || isShort(request) != shortLane || closed_) continue;
                if (shortLane ? shortSegments_ >= options_.shortTurns : longSegments_ > 0) continue;
                const double most = shortLane ? left_ : left_ - kept_;
                // Of the short prompts only the oldest is read however long it takes, so that the iteration's time
                // stays bounded.
                const bool force = mustRead(request) && (!shortLane || shortSegments_ == 0);
                const Limit limit = read(request, memberOf(now_.running, request), false, most, force);
                if (limit == Limit::None) continue;
                if (limit == Limit::WorkingSets || limit == Limit::HardNeed) holderWaits_ = limit;
                if (promptLimit_ == Limit::None) promptLimit_ = limit;
            }
    }
    double restOf(const ServeRequest& request) const {
        if (options_.prefill == PrefillPlan::Chunks)
            return costs_.shape.layers * costs_.prefillLayer(request.position.token, request.promptTokens);
        const double whole = costs_.prefillLayer(0, request.promptTokens);
        return (costs_.shape.layers - request.position.layer) * whole - costs_.prefillLayer(0, request.position.token);
    }

    // First come, first served. What admissions take is missing for the prompts of the admitted requests; it keeps
    // nobody out, and is no reason to read less of the prompts that are read already. A request that does not fit lets
    // later ones pass, until it has been passed too often or has waited too long.
    void admit() {
        const auto count = int(now_.waiting.size());
        const int waiting = count - int(plan_.refused.size());
        const auto allWaitFor = [&](Limit limit) {
            waitingFor(limit) += waiting;
            if (waiting > 0) queueLimit_ = limit;
        };
        if (!plan_.paused.empty() || plan_.resumed.size() < now_.paused.size()) return allWaitFor(Limit::PausedFirst);
        if (holderWaits_ != Limit::None || closed_) return allWaitFor(Limit::HoldersFirst);
        const bool partitioned = options_.cache == CachePlan::Partition;
        std::int64_t alone = 0; // the most memory that any admitted request needs to run alone
        for (const auto& list : {now_.running, now_.paused})
            for (const ServeRequest& request : list) alone = std::max(alone, request.aloneBytes(partitioned));
        bool laneOpen = true;
        int passed = 0;
        for (int i = 0; i < count; ++i) {
            const ServeRequest& request = now_.waiting[i];
            if (isRefused(i)) continue;
            const bool inShortLane = isShort(request);
            const Limit limit = inShortLane && !laneOpen ? Limit::Barrier : limitOf(request, alone, partitioned);
            if (limit == Limit::None) {
                used_ += request.atAdmission();
                alone = std::max(alone, request.aloneBytes(partitioned));
                ++(inShortLane ? shortsReading_ : longsReading_);
                plan_.admitted.push_back({request.id, i});
                const double ms = costs_.admission(request.promptTokens);
                left_ -= ms, plan_.admissionsMs += ms, plan_.predictedMs += ms;
                continue;
            }
            if (queueLimit_ == Limit::None) queueLimit_ = limit;
            ++waitingFor(limit);
            ++passed;
            const int rest = waiting - passed - int(plan_.admitted.size());
            const bool lanesFull = longsReading_ >= options_.longPrefills && shortsFull();
            if (limit == Limit::Rows || lanesFull) {
                waitingFor(limit == Limit::Rows ? limit : Limit::PrefillLane) += rest;
                break;
            }
            if (isBarrier(request)) {
                waitingFor(Limit::Barrier) += rest;
                break;
            }
            if (!inShortLane && limit != Limit::PrefillLane && msSince(request.queuedNs) >= options_.agingMs)
                laneOpen = false;
        }
    }
    bool shortsFull() const { return options_.shortTokens == 0 || shortsReading_ >= options_.shortTurns; }
    bool isBarrier(const ServeRequest& request) const {
        const double bound = request.ttftBoundNs > 0 ? double(request.ttftBoundNs) / kNsPerMs : options_.ttftBoundMs;
        return request.skips >= options_.maxSkips || msSince(request.queuedNs) > bound;
    }
    Limit limitOf(const ServeRequest& request, std::int64_t alone, bool partitioned) const {
        const Amounts need = request.atAdmission();
        Limit limit = lacking(now_.budget, used_, need);
        const bool first = now_.running.empty() && now_.paused.empty() && plan_.admitted.empty();
        if (limit == Limit::WorkingSets && first) limit = Limit::None; // a request that runs alone may exceed M_avl
        if (limit != Limit::None) return limit;
        if (isShort(request) ? shortsReading_ >= options_.shortTurns : longsReading_ >= options_.longPrefills)
            return Limit::PrefillLane;
        // Every admitted request can run alone beside what the others have reserved, so that none waits for memory for
        // ever.
        const std::int64_t largest = std::max(alone, request.aloneBytes(partitioned));
        return used_.device + need.device + largest > now_.budget.device ? Limit::DeviceMemory : Limit::None;
    }

    void readAdmittedPrompts() {
        for (const bool shortLane : {false, true})
            for (const Member& member : plan_.admitted) {
                const ServeRequest& request = now_.waiting[member.index];
                if (isShort(request) != shortLane) continue;
                if (shortLane ? shortSegments_ >= options_.shortTurns : longSegments_ > 0) continue;
                const bool force = plan_.decodeRows() == 0 && plan_.segments.empty();
                const Limit limit = read(request, member, true, left_, force);
                if (limit != Limit::None && promptLimit_ == Limit::None) promptLimit_ = limit;
            }
    }

    void summarize() {
        plan_.workingSetBytes = used_.workingSets;
        plan_.availableBytes = available();
        plan_.hardBytes = used_.hard;
        plan_.over = over();
        if (!plan_.paused.empty())
            plan_.limitedBy = Limit::WorkingSets;
        else if (notResumed_ != Limit::None)
            plan_.limitedBy = notResumed_;
        else if (holderWaits_ != Limit::None)
            plan_.limitedBy = holderWaits_;
        else if (queueLimit_ != Limit::None)
            plan_.limitedBy = queueLimit_;
        else if (promptLimit_ != Limit::None)
            plan_.limitedBy = promptLimit_;
        else if (std::any_of(plan_.segments.begin(), plan_.segments.end(), [](const auto& s) { return !s.last; }))
            plan_.limitedBy = Limit::TimeBudget;
    }

    const SchedulerOptions& options_;
    const ServiceCosts& costs_;
    const Snapshot& now_;
    IterationPlan& plan_;
    Amounts used_;
    Numbered<char> refused_; // [i - firstUnchecked_]
    int firstUnchecked_ = 0, reading_ = 0, longsReading_ = 0, shortsReading_ = 0, longSegments_ = 0, shortSegments_ = 0;
    double left_ = 0, kept_ = 0; // milliseconds: left of the iteration; kept of those for short prompts
    std::int64_t tokens_ = 0;
    bool closed_ = false; // a prompt in chunks was given the whole device
    Limit notResumed_ = Limit::None, holderWaits_ = Limit::None, queueLimit_ = Limit::None, promptLimit_ = Limit::None;
};

} // namespace

void IterationPlan::clear() {
    decode.clear(), paused.clear(), resumed.clear(), admitted.clear(), segments.clear(), refused.clear();
    limitedBy = Limit::None;
    waitingFor.fill(0);
    workingSetBytes = availableBytes = hardBytes = 0;
    over = false;
    decodeMs = admissionsMs = predictedMs = 0;
}

void Scheduler::plan(const Snapshot& snapshot, IterationPlan& plan) const {
    plan.clear();
    Planning(options_, costs_, snapshot, plan).make(*this);
}

Refusal Scheduler::neverFits(const Budget& budget, const ServeRequest& request) const {
    const bool partitioned = options_.cache == CachePlan::Partition && options_.offload;
    const Amounts need = request.atAdmission();
    Budget alone = budget;
    alone.workingSetControl = false; // the estimate of a working set keeps no request from running alone
    Limit limit = lacking(alone, {}, need);
    const std::int64_t device = need.device + request.aloneBytes(partitioned);
    if ((limit == Limit::None || limit == Limit::HardNeed) && device > budget.device) limit = Limit::DeviceMemory;
    switch (limit) {
    case Limit::None:
        return {{request.id, 0}, Limit::None, Limit::None, 0, 0};
    case Limit::HostMemory:
        return {{request.id, 0}, Limit::TooLarge, limit, need.host, budget.host};
    case Limit::PrefillScratch:
        return {{request.id, 0}, Limit::TooLarge, limit, need.scratch, budget.scratch};
    case Limit::Rows:
        return {{request.id, 0}, Limit::TooLarge, limit, need.rows, budget.rows};
    default:
        return {{request.id, 0},
                Limit::TooLarge,
                Limit::DeviceMemory,
                std::max(device, need.device + need.hard),
                budget.device};
    }
}

} // namespace kvscope::serve
