#include "profiler/replay/ranked_policy.h"

#include <algorithm>

namespace kvscope {

RankedPolicy::RankedPolicy(const BlockVisits& visits, int slots)
    : visits_(visits), slots_(slots), state_(visits.blockLimit(), State::Absent), rank_(visits.blockLimit(), 0) {}

void RankedPolicy::next(std::size_t request, std::span<std::uint8_t> missed) {
    std::size_t departure = visits_.leftBegin(request);
    for (const std::int32_t block : visits_.left(request)) {
        state_[block] = State::Idle;
        const std::int64_t value = rank_[block] = rank(block, departure++, request);
        heap_.push_back({value, block});
        std::push_heap(heap_.begin(), heap_.end());
        ++idle_;
    }
    const auto entered = visits_.entered(request);
    int loads = 0;
    for (std::size_t i = 0; i < entered.size(); ++i) {
        State& state = state_[entered[i].block()];
        missed[i] = state == State::Absent ? 1 : 0;
        loads += missed[i];
        idle_ -= state == State::Idle;
        state = State::Selected;
        enter(entered[i].block(), request, missed[i] != 0);
    }
    resident_ += loads;
    while (resident_ > slots_) {
        std::pop_heap(heap_.begin(), heap_.end());
        const Idle next = heap_.back();
        heap_.pop_back();
        if (!current(next)) continue;
        state_[next.block] = State::Absent;
        --resident_;
        --idle_;
    }
    if (std::ssize(heap_) > 64 + 4 * std::ptrdiff_t(idle_)) forgetStale();
}

void RankedPolicy::forgetStale() {
    std::erase_if(heap_, [this](const Idle& idle) { return !current(idle); });
    std::make_heap(heap_.begin(), heap_.end());
}

} // namespace kvscope
