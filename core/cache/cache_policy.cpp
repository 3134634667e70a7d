#include "core/cache/cache_policy.h"

#include "base/error.h"

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <numeric>
#include <utility>

namespace kvscope {
namespace {

void slotOrder(std::span<const std::int32_t> blocks, std::span<const std::int32_t>, std::vector<std::int32_t>& order) {
    order.resize(blocks.size());
    std::iota(order.begin(), order.end(), 0);
}

/// Blocks used last in the same step leave in the order of their ids, not of their slots. A larger pool then always
/// holds every block that a smaller pool holds, so that one pass over a recording gives the misses of every size.
void leastRecentlyUsed(std::span<const std::int32_t> blocks, std::span<const std::int32_t> lastUse,
                       std::vector<std::int32_t>& order) {
    slotOrder(blocks, lastUse, order);
    const auto rank = [&](std::int32_t slot) {
        return std::pair(lastUse[std::size_t(slot)], blocks[std::size_t(slot)]);
    };
    std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) { return rank(a) < rank(b); });
}

} // namespace

std::span<const CachePolicy> cachePolicies() {
    static const std::array table{
        CachePolicy{"keep-selected", "Keep selected", "Selected blocks stay; a miss takes the next free slot (NOSI).",
                    slotOrder},
        CachePolicy{"lru", "Least recently used", "A miss takes the slot whose block was selected longest ago.",
                    leastRecentlyUsed, true},
        CachePolicy{"lru-s", "Least recently used, by score",
                    "A miss takes the slot whose block is worth least: the attention it received when it was selected "
                    "last, less with every step since. For methods that say what blocks are worth (InfLLM).",
                    leastRecentlyUsed, true, true},
    };
    return table;
}

const CachePolicy& findCachePolicy(std::string_view name) {
    std::string known;
    for (const CachePolicy& policy : cachePolicies()) {
        if (policy.name == name) return policy;
        known += (known.empty() ? "" : ", ") + policy.name;
    }
    throw Error(ErrorKind::BadInput, fmt::format("unknown cache policy '{}'", name), "known policies: " + known);
}

} // namespace kvscope
