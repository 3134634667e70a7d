// ARC (Megiddo and Modha, FAST 2003) divides the slots between blocks used once lately and blocks used more often. It
// remembers which blocks left ("ghosts"), and shifts the division towards the kind of ghost that is asked for again.
// Requests are sets here: only blocks outside the request may leave, and a block of two requests in a row counts as
// used twice.
#include "base/indexed.h"
#include "profiler/replay/policy.h"

#include <algorithm>
#include <array>
#include <vector>

namespace kvscope {
namespace {

class Arc final : public ReplayPolicy {
public:
    Arc(const BlockVisits& visits, int slots) : visits_(visits), capacity_(slots), blocks_(visits.blockLimit()) {}

    void next(std::size_t request, std::span<std::uint8_t> missed) override {
        for (const std::int32_t block : visits_.left(request)) {
            Block& entry = blocks_[block];
            entry.selected = false;
            append(entry.list, block);
        }
        if (request > 0) // blocks that entered with the request before and are still selected were used a second time
            for (const BlockVisits::Entry& e : visits_.entered(request - 1))
                if (blocks_[e.block()].selected) becomeFrequent(blocks_[e.block()]);
        const auto entered = visits_.entered(request);
        for (std::size_t i = 0; i < entered.size(); ++i) {
            Block& entry = blocks_[entered[i].block()];
            missed[i] = entry.list == Recent || entry.list == Frequent ? 0 : 1;
            if (missed[i] != 0) continue;
            unlink(entered[i].block());
            entry.selected = true;
            becomeFrequent(entry);
        }
        for (std::size_t i = 0; i < entered.size(); ++i)
            if (missed[i] != 0) load(entered[i].block());
    }

private:
    enum List : std::uint8_t { Recent, Frequent, RecentGhost, FrequentGhost, Nowhere };
    struct Block {
        List list = Nowhere;
        bool selected = false; // the block is in the request: it is in no chain and cannot leave
        std::int32_t older = -1, newer = -1;
    };
    struct Chain {
        std::int32_t oldest = -1, newest = -1;
    };

    void append(List list, std::int32_t block) {
        Chain& chain = chains_[list];
        blocks_[block].older = chain.newest;
        blocks_[block].newer = -1;
        (chain.newest >= 0 ? blocks_[chain.newest].newer : chain.oldest) = block;
        chain.newest = block;
    }
    void unlink(std::int32_t block) {
        const Block& entry = blocks_[block];
        Chain& chain = chains_[entry.list];
        (entry.older >= 0 ? blocks_[entry.older].newer : chain.oldest) = entry.newer;
        (entry.newer >= 0 ? blocks_[entry.newer].older : chain.newest) = entry.older;
    }
    void becomeFrequent(Block& entry) {
        if (entry.list != Recent) return;
        entry.list = Frequent;
        --count_[Recent], ++count_[Frequent];
    }
    /// Moves the oldest block of the list that may leave to the list `to`. @return false if none may leave
    bool moveOldest(List from, List to) {
        const std::int32_t block = chains_[from].oldest;
        if (block < 0) return false;
        unlink(block);
        --count_[from];
        blocks_[block].list = to;
        if (to == Nowhere) return true;
        ++count_[to];
        append(to, block);
        return true;
    }
    void replace(bool wasFrequent) {
        const bool recent =
            count_[Recent] > 0 && (count_[Recent] > target_ || (wasFrequent && count_[Recent] == target_));
        const auto let = [this](bool fromRecent) {
            return fromRecent ? moveOldest(Recent, RecentGhost) : moveOldest(Frequent, FrequentGhost);
        };
        if (!let(recent)) let(!recent);
    }
    void load(std::int32_t block) {
        Block& entry = blocks_[block];
        const List known = entry.list;
        if (known == RecentGhost)
            target_ = std::min(capacity_, target_ + std::max(1, count_[FrequentGhost] / count_[RecentGhost]));
        if (known == FrequentGhost)
            target_ -= std::min(target_, std::max(1, count_[RecentGhost] / count_[FrequentGhost]));
        const bool full = count_[Recent] + count_[Frequent] == capacity_;
        if (known != Nowhere) {
            unlink(block); // before replace(), so that a full list of ghosts has room for the next ghost
            --count_[known];
            if (full) replace(known == FrequentGhost);
        } else if (full) {
            const int recent = count_[Recent] + count_[RecentGhost];
            if (count_[Recent] == capacity_) {
                moveOldest(Recent, Nowhere);
            } else {
                if (recent >= capacity_)
                    moveOldest(RecentGhost, Nowhere);
                else if (recent + count_[Frequent] + count_[FrequentGhost] >= 2 * capacity_)
                    moveOldest(FrequentGhost, Nowhere);
                replace(false);
            }
        }
        entry = {known == Nowhere ? Recent : Frequent, true, -1, -1};
        ++count_[entry.list];
    }

    const BlockVisits& visits_;
    int capacity_, target_ = 0; // target_: slots intended for blocks used once
    std::array<int, 4> count_{};
    std::array<Chain, 4> chains_{}; // [list] resident blocks that may leave, or ghosts
    Numbered<Block> blocks_;
};

} // namespace

ReplayPolicyEntry arcReplay() {
    return {"arc", "Adaptive replacement: balances recency and frequency by the misses each would have avoided.",
            makeReplayPolicy<Arc>};
}

} // namespace kvscope
