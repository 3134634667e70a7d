// Policies that give a block a rank when it leaves a request: idle blocks are replaced from the lowest rank up.
#pragma once

#include "profiler/replay/policy.h"

#include <cstdint>
#include <vector>

namespace kvscope {

/// Fills empty slots first; of equal ranks, the lowest block leaves.
class RankedPolicy : public ReplayPolicy {
public:
    RankedPolicy(const BlockVisits& visits, int slots);
    void next(std::size_t request, std::span<std::uint8_t> missed) final;

protected:
    /// Rank of a block that `request` does not have and the one before it had. departure: its index among all.
    virtual std::int64_t rank(std::int32_t block, std::size_t departure, std::size_t request) = 0;
    /// The block is in `request` and was not in the one before; loaded: nor was it resident.
    virtual void enter(std::int32_t /*block*/, std::size_t /*request*/, bool /*loaded*/) {}

    const BlockVisits& visits_;

private:
    struct Idle {
        std::int64_t rank = 0;
        std::int32_t block = 0;
        bool operator<(const Idle& other) const { // std::*_heap: the next to leave in front
            return rank != other.rank ? rank > other.rank : block > other.block;
        }
    };
    enum class State : std::uint8_t { Absent, Idle, Selected };

    bool current(const Idle& idle) const {
        return state_[std::size_t(idle.block)] == State::Idle && rank_[std::size_t(idle.block)] == idle.rank;
    }
    void forgetStale();

    int slots_, resident_ = 0, idle_ = 0;
    std::vector<State> state_;       // [block]
    std::vector<std::int64_t> rank_; // [block] while idle
    std::vector<Idle> heap_;         // may hold blocks that were selected or replaced since
};

} // namespace kvscope
