// Least frequently used: the block with the fewest selections since it was loaded leaves; of equal ones the oldest.
#include "base/indexed.h"
#include "profiler/replay/ranked_policy.h"

namespace kvscope {
namespace {

class Lfu final : public RankedPolicy {
public:
    Lfu(const BlockVisits& visits, int slots)
        : RankedPolicy(visits, slots), uses_(visits.blockLimit(), 0), since_(visits.blockLimit(), 0) {}

private:
    std::int64_t rank(std::int32_t block, std::size_t, std::size_t request) override {
        std::int64_t& uses = uses_[block];
        uses += std::int64_t(request) - since_[block];
        return uses << 32 | std::int64_t(request);
    }
    void enter(std::int32_t block, std::size_t request, bool loaded) override {
        if (loaded) uses_[block] = 0;
        since_[block] = std::int64_t(request);
    }
    Numbered<std::int64_t> uses_, since_; // [block] uses before its current visit; the visit's first request
};

} // namespace

ReplayPolicyEntry lfuReplay() {
    return {"lfu", "The block selected least often since it entered leaves; of equals the one selected longest ago.",
            makeReplayPolicy<Lfu>};
}

} // namespace kvscope
