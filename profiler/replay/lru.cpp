// Least recently used: the engine's order, equal ages by slot.
#include "profiler/replay/policy.h"

namespace kvscope {
namespace {

class Lru final : public RankedPolicy {
public:
    void use(const BlockUse& use) override { rank(use.slot).first = use.request + 1; }
};

} // namespace

ReplayPolicyEntry lruReplay() {
    return {"lru", "The block selected longest ago leaves, as the engine does.",
            [] { return std::unique_ptr<ReplayPolicy>(std::make_unique<Lru>()); }};
}

} // namespace kvscope
