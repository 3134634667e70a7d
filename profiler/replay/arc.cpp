// ARC (Megiddo and Modha, FAST 2003): balances recency and frequency by the blocks it regrets having let go. A request
// is a set here, so REPLACE passes over blocks of the current one.
#include "profiler/replay/policy.h"

#include <algorithm>
#include <array>
#include <list>

namespace kvscope {
namespace {

class Arc final : public ReplayPolicy {
public:
    void begin(const HeadTrace& head, int slots) override {
        capacity_ = std::size_t(slots);
        target_ = 0;
        for (auto& list : lists_) list.clear();
        places_.assign(std::size_t(head.blockLimit()), {});
        entersAs_ = Recent;
        if (head.tail >= 0) moveTo(Recent, head.tail, 0);
    }

    int place(std::int32_t block, std::span<const std::int32_t> resident,
              std::span<const std::uint8_t> pinned) override {
        const List known = places_[std::size_t(block)].list;
        const std::size_t recentGhosts = lists_[RecentGhost].size(), frequentGhosts = lists_[FrequentGhost].size();
        entersAs_ = known == Nowhere ? Recent : Frequent;
        if (known == RecentGhost)
            target_ = std::min(capacity_, target_ + std::max<std::size_t>(1, frequentGhosts / recentGhosts));
        if (known == FrequentGhost)
            target_ -= std::min(target_, std::max<std::size_t>(1, recentGhosts / frequentGhosts));
        if (lists_[Recent].size() + lists_[Frequent].size() < capacity_)
            return int(std::find(resident.begin(), resident.end(), -1) - resident.begin());
        if (known != Nowhere) return replace(known == FrequentGhost, pinned);
        const std::size_t recentAndGhosts = lists_[Recent].size() + recentGhosts;
        if (recentAndGhosts >= capacity_) {
            if (lists_[Recent].size() == capacity_) return letGo(Recent, false, pinned);
            forgetOldest(RecentGhost);
        } else if (recentAndGhosts + lists_[Frequent].size() + frequentGhosts >= 2 * capacity_) {
            forgetOldest(FrequentGhost);
        }
        return replace(false, pinned);
    }

    void use(const BlockUse& use) override { moveTo(use.entered ? entersAs_ : Frequent, use.block, use.slot); }

private:
    enum List { Recent, Frequent, RecentGhost, FrequentGhost, Nowhere };
    struct Place {
        List list = Nowhere;
        int slot = -1;
        std::list<std::int32_t>::iterator at;
    };

    void leave(std::int32_t block) {
        Place& place = places_[std::size_t(block)];
        if (place.list != Nowhere) lists_[place.list].erase(place.at);
        place.list = Nowhere;
    }
    void moveTo(List list, std::int32_t block, int slot) {
        leave(block);
        lists_[list].push_back(block);
        places_[std::size_t(block)] = {list, slot, std::prev(lists_[list].end())};
    }
    void forgetOldest(List ghosts) {
        if (!lists_[ghosts].empty()) leave(lists_[ghosts].front());
    }
    bool canLetGo(List list, std::span<const std::uint8_t> pinned) const {
        return std::any_of(lists_[list].begin(), lists_[list].end(), [&](std::int32_t block) {
            return pinned[std::size_t(places_[std::size_t(block)].slot)] == 0;
        });
    }
    /// The oldest block of the list that is not pinned leaves its slot. @return the slot
    int letGo(List list, bool remember, std::span<const std::uint8_t> pinned) {
        const auto victim = std::find_if(lists_[list].begin(), lists_[list].end(), [&](std::int32_t block) {
            return pinned[std::size_t(places_[std::size_t(block)].slot)] == 0;
        });
        const std::int32_t block = *victim;
        const int slot = places_[std::size_t(block)].slot;
        if (remember)
            moveTo(list == Recent ? RecentGhost : FrequentGhost, block, -1);
        else
            leave(block);
        return slot;
    }
    int replace(bool wantedWasFrequent, std::span<const std::uint8_t> pinned) {
        const std::size_t recent = lists_[Recent].size();
        const bool fromRecent = recent > 0 && (recent > target_ || (wantedWasFrequent && recent == target_));
        List list = fromRecent ? Recent : Frequent;
        if (!canLetGo(list, pinned)) list = fromRecent ? Frequent : Recent;
        return letGo(list, true, pinned);
    }

    std::size_t capacity_ = 0, target_ = 0;        // target: slots meant for blocks selected once
    std::array<std::list<std::int32_t>, 4> lists_; // oldest first
    std::vector<Place> places_;                    // [block]
    List entersAs_ = Recent;
};

} // namespace

ReplayPolicyEntry arcReplay() {
    return {"arc", "Adaptive replacement: balances recency and frequency by the misses each would have avoided.",
            [] { return std::unique_ptr<ReplayPolicy>(std::make_unique<Arc>()); }};
}

} // namespace kvscope
