// NOSI's replacement as the engine does it (setDifference): selected blocks stay, a miss takes the next slot in slot
// order, so blocks that are not selected last until somebody needs their slot.
#include "profiler/replay/policy.h"

#include <algorithm>

namespace kvscope {
namespace {

class KeepSelected final : public ReplayPolicy {
public:
    void begin(const HeadTrace&, int) override {}
    int place(std::int32_t, std::span<const std::int32_t>, std::span<const std::uint8_t> pinned) override {
        return int(std::find(pinned.begin(), pinned.end(), 0) - pinned.begin());
    }
    void use(const BlockUse&) override {}
};

} // namespace

ReplayPolicyEntry keepSelectedReplay() {
    return {"keep-selected", "Selected blocks stay; a miss takes the next slot that holds none, as the engine does.",
            [] { return std::unique_ptr<ReplayPolicy>(std::make_unique<KeepSelected>()); }};
}

} // namespace kvscope
