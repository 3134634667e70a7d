// NOSI's replacement, as the engine does it (setDifference): selected blocks keep their slots, and misses take the free
// slots in slot order. A block that is not selected stays until its slot is needed.
#include "profiler/replay/policy.h"

#include <bit>
#include <vector>

namespace kvscope {
namespace {

class KeepSelected final : public ReplayPolicy {
public:
    KeepSelected(const BlockVisits& visits, int slots)
        : visits_(visits), slotOf_(std::size_t(visits.blockLimit()), -1), blockIn_(std::size_t(slots), -1),
          free_(std::size_t(slots) / 64 + 1, ~std::uint64_t(0)) {}

    void next(std::size_t request, std::span<std::uint8_t> missed) override {
        for (const std::int32_t block : visits_.left(request)) setFree(slotOf_[std::size_t(block)], true);
        const auto entered = visits_.entered(request);
        for (std::size_t i = 0; i < entered.size(); ++i) {
            const std::int32_t slot = slotOf_[std::size_t(entered[i].block())];
            missed[i] = std::uint8_t(slot < 0);
            if (slot >= 0) setFree(slot, false);
        }
        std::size_t word = 0;
        for (std::size_t i = 0; i < entered.size(); ++i) {
            if (missed[i] == 0) continue;
            while (free_[word] == 0) ++word;
            const auto slot = std::int32_t(word * 64) + std::countr_zero(free_[word]);
            setFree(slot, false);
            std::int32_t& block = blockIn_[std::size_t(slot)];
            if (block >= 0) slotOf_[std::size_t(block)] = -1;
            block = entered[i].block();
            slotOf_[std::size_t(block)] = slot;
        }
    }

private:
    void setFree(std::int32_t slot, bool free) {
        const std::uint64_t bit = std::uint64_t(1) << (slot % 64);
        std::uint64_t& word = free_[std::size_t(slot) / 64];
        word = free ? word | bit : word & ~bit;
    }

    const BlockVisits& visits_;
    std::vector<std::int32_t> slotOf_;  // [block]; -1: not resident
    std::vector<std::int32_t> blockIn_; // [slot]; -1: empty
    std::vector<std::uint64_t> free_;   // a bit for each slot, set where the slot holds no block of the request
};

} // namespace

ReplayPolicyEntry keepSelectedReplay() {
    return {"keep-selected", "Selected blocks stay; a miss takes the next slot that holds none, as the engine does.",
            makeReplayPolicy<KeepSelected>};
}

} // namespace kvscope
