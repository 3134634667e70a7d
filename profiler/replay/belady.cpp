// Belady's choice, which needs the future: no policy that loads on demand can have fewer misses.
#include "profiler/replay/policy.h"

namespace kvscope {
namespace {

class Belady final : public RankedPolicy {
public:
    void begin(const HeadTrace& head, int slots) override {
        RankedPolicy::begin(head, slots);
        const auto never = std::int64_t(head.requests.size());
        std::vector<std::int64_t> next(std::size_t(head.blockLimit()), never);
        nextUse_.assign(head.blocks.size(), never);
        for (auto request = never - 1; request >= 0; --request) {
            const BlockRequest& wanted = head.requests[std::size_t(request)];
            for (std::size_t i = wanted.first; i < wanted.first + wanted.count; ++i) {
                std::int64_t& nextOfBlock = next[std::size_t(head.blocks[i])];
                nextUse_[i] = nextOfBlock;
                nextOfBlock = request;
            }
        }
    }
    void use(const BlockUse& use) override { rank(use.slot).first = -nextUse_[use.reference]; }

private:
    std::vector<std::int64_t> nextUse_; // [reference]: request in which the block is needed again
};

} // namespace

ReplayPolicyEntry beladyReplay() {
    return {"belady", "The block whose next use is farthest leaves: the bound for policies that load on demand.",
            [] { return std::unique_ptr<ReplayPolicy>(std::make_unique<Belady>()); }};
}

} // namespace kvscope
