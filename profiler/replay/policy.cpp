#include "profiler/replay/policy.h"

namespace kvscope {

void RankedPolicy::begin(const HeadTrace&, int slots) { ranks_.assign(std::size_t(slots), {}); }

int RankedPolicy::place(std::int32_t, std::span<const std::int32_t> resident, std::span<const std::uint8_t> pinned) {
    int best = -1;
    for (int slot = 0; slot < int(resident.size()); ++slot) {
        if (resident[std::size_t(slot)] < 0) return slot;
        if (pinned[std::size_t(slot)] == 0 && (best < 0 || rank(slot) < rank(best))) best = slot;
    }
    return best;
}

} // namespace kvscope
