// First in, first out: use does not prolong a block's stay.
#include "base/indexed.h"
#include "profiler/replay/ranked_policy.h"

namespace kvscope {
namespace {

class Fifo final : public RankedPolicy {
public:
    Fifo(const BlockVisits& visits, int slots) : RankedPolicy(visits, slots), loadedAt_(visits.blockLimit(), 0) {}

private:
    std::int64_t rank(std::int32_t block, std::size_t, std::size_t) override { return loadedAt_[block]; }
    void enter(std::int32_t block, std::size_t request, bool loaded) override {
        if (loaded) loadedAt_[block] = std::int64_t(request);
    }
    Numbered<std::int64_t> loadedAt_; // [block] the request with which the block was loaded
};

} // namespace

ReplayPolicyEntry fifoReplay() { return {"fifo", "The block that entered first leaves.", makeReplayPolicy<Fifo>}; }

} // namespace kvscope
