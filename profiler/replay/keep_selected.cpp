// NOSI's replacement, as the engine does it (setDifference): selected blocks keep their slots, and misses take the free
// slots in slot order. A block that is not selected stays until its slot is needed.
#include "base/indexed.h"
#include "profiler/replay/policy.h"

#include <bit>
#include <vector>

namespace kvscope {
namespace {

class KeepSelected final : public ReplayPolicy {
public:
    KeepSelected(const BlockVisits& visits, int slots)
        : visits_(visits), slotOf_(visits.blockLimit(), -1), blockIn_(slots, -1),
          free_(blockIn_.size() / 64 + 1, ~std::uint64_t(0)) {}

    void next(std::size_t request, std::span<std::uint8_t> missed) override {
        for (const std::int32_t block : visits_.left(request)) setFree(slotOf_[block], true);
        const auto entered = visits_.entered(request);
        for (std::size_t i = 0; i < entered.size(); ++i) {
            const std::int32_t slot = slotOf_[entered[i].block()];
            missed[i] = std::uint8_t(slot < 0);
            if (slot >= 0) setFree(slot, false);
        }
        std::size_t word = 0;
        for (std::size_t i = 0; i < entered.size(); ++i) {
            if (missed[i] == 0) continue;
            while (free_[word] == 0) ++word;
            const auto slot = std::int32_t(word * 64) + std::countr_zero(free_[word]);
            setFree(slot, false);
            std::int32_t& block = blockIn_[slot];
            if (block >= 0) slotOf_[block] = -1;
            block = entered[i].block();
            slotOf_[block] = slot;
        }
    }

private:
    void setFree(std::int32_t slot, bool free) {
        const std::uint64_t bit = std::uint64_t(1) << (slot % 64);
        std::uint64_t& word = free_[std::size_t(slot) / 64];
        word = free ? word | bit : word & ~bit;
    }

    const BlockVisits& visits_;
    Numbered<std::int32_t> slotOf_;   // [block]; -1: not resident
    Numbered<std::int32_t> blockIn_;  // [slot]; -1: empty
    std::vector<std::uint64_t> free_; // a bit for each slot, set where the slot holds no block of the request
};

} // namespace

ReplayPolicyEntry keepSelectedReplay() {
    return {"keep-selected", "Selected blocks stay; a miss takes the next slot that holds none, as the engine does.",
            makeReplayPolicy<KeepSelected>};
}

} // namespace kvscope
