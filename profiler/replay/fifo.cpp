// First in, first out: use does not prolong a block's stay.
#include "profiler/replay/policy.h"

namespace kvscope {
namespace {

class Fifo final : public RankedPolicy {
public:
    void use(const BlockUse& use) override {
        if (use.entered) rank(use.slot).first = ++entered_;
    }

private:
    std::int64_t entered_ = 0;
};

} // namespace

ReplayPolicyEntry fifoReplay() {
    return {"fifo", "The block that entered first leaves.",
            [] { return std::unique_ptr<ReplayPolicy>(std::make_unique<Fifo>()); }};
}

} // namespace kvscope
