// Least recently used, in the engine's order: of blocks used last in the same request, the lowest leaves first.
#include "profiler/replay/ranked_policy.h"

namespace kvscope {
namespace {

class Lru final : public RankedPolicy {
public:
    using RankedPolicy::RankedPolicy;

private:
    std::int64_t rank(std::int32_t, std::size_t, std::size_t request) override { return std::int64_t(request); }
};

} // namespace

ReplayPolicyEntry lruReplay() {
    return {"lru", "The block selected longest ago leaves, as the engine does.", makeReplayPolicy<Lru>};
}

} // namespace kvscope
