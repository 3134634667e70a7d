// Least frequently used: selections since the block entered, equal counts by age.
#include "profiler/replay/policy.h"

namespace kvscope {
namespace {

class Lfu final : public RankedPolicy {
public:
    void use(const BlockUse& use) override {
        Rank& r = rank(use.slot);
        r = {use.entered ? 1 : r.first + 1, use.request};
    }
};

} // namespace

ReplayPolicyEntry lfuReplay() {
    return {"lfu", "The block selected least often since it entered leaves; of equals the one selected longest ago.",
            [] { return std::unique_ptr<ReplayPolicy>(std::make_unique<Lfu>()); }};
}

} // namespace kvscope
