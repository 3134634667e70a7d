// Policies that give a block a rank when it leaves a request. Resident blocks that are not in the request ("idle") are
// replaced in the order of their ranks, the lowest first.
#pragma once

#include "base/indexed.h"
#include "profiler/replay/policy.h"

#include <cstdint>
#include <vector>

namespace kvscope {

/// Empty slots are filled first. Of equal ranks, the lowest block leaves.
class RankedPolicy : public ReplayPolicy {
public:
    RankedPolicy(const BlockVisits& visits, int slots);
    void next(std::size_t request, std::span<std::uint8_t> missed) final;

protected:
    /// The rank of a block that the request before has and `request` has not. departure: its index in the list of all
    /// departures (BlockVisits::leftBegin).
    virtual std::int64_t rank(std::int32_t block, std::size_t departure, std::size_t request) = 0;
    /// Called for a block that `request` has and the request before has not. loaded: the block was not resident.
    virtual void enter(std::int32_t /*block*/, std::size_t /*request*/, bool /*loaded*/) {}

    const BlockVisits& visits_;

private:
    struct Idle {
        std::int64_t rank = 0;
        std::int32_t block = 0;
        bool operator<(const Idle& other) const { // for std::*_heap, whose front is the next to leave
            return rank != other.rank ? rank > other.rank : block > other.block;
        }
    };
    enum class State : std::uint8_t { Absent, Idle, Selected };

    bool current(const Idle& idle) const { return state_[idle.block] == State::Idle && rank_[idle.block] == idle.rank; }
    void forgetStale();

    int slots_, resident_ = 0, idle_ = 0;
    Numbered<State> state_;       // [block]
    Numbered<std::int64_t> rank_; // [block] while idle
    std::vector<Idle> heap_;      // may contain blocks that have been selected or replaced since they were added
};

} // namespace kvscope
