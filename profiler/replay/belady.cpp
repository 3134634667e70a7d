// Belady's choice, which needs to know the future: the block whose next use is farthest away leaves. All blocks of a
// request must be resident at once. A block that stays between two of its uses takes one of the slots that the requests
// in between leave free. To let the farthest next use go keeps as many blocks as can be kept, so that no policy loads
// fewer blocks, even if it loads ahead.
#include "profiler/replay/ranked_policy.h"

namespace kvscope {
namespace {

class Belady final : public RankedPolicy {
public:
    Belady(const BlockVisits& visits, int slots) : RankedPolicy(visits, slots), next_(visits.nextVisits()) {}

private:
    std::int64_t rank(std::int32_t, std::size_t departure, std::size_t) override {
        return -std::int64_t(next_[departure]);
    }
    std::vector<std::int32_t> next_; // [departure]
};

} // namespace

ReplayPolicyEntry beladyReplay() {
    return {"belady", "The block whose next use is farthest leaves: the bound, no cache of this size loads less.",
            makeReplayPolicy<Belady>};
}

} // namespace kvscope
