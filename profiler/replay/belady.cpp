// Belady's choice, which needs the future. Requests are sets without bypass: every block of a request is resident, so a
// block kept between two uses takes one of the slots that the requests between them leave. Letting go the block whose
// next use is farthest keeps the most blocks (the earliest deadline first), so nothing loads fewer, not even ahead.
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
