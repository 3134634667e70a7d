#include "core/cache/cache_policy.h"

#include "kernels/base/error.h"

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <numeric>

namespace kvscope {
namespace {

void slotOrder(std::span<const std::int32_t> lastUse, std::vector<std::int32_t>& order) {
    order.resize(lastUse.size());
    std::iota(order.begin(), order.end(), 0);
}

void leastRecentlyUsed(std::span<const std::int32_t> lastUse, std::vector<std::int32_t>& order) {
    slotOrder(lastUse, order);
    std::stable_sort(order.begin(), order.end(),
                     [&](std::int32_t a, std::int32_t b) { return lastUse[std::size_t(a)] < lastUse[std::size_t(b)]; });
}

} // namespace

std::span<const CachePolicy> cachePolicies() {
    static const std::array table{
        CachePolicy{"keep-selected", "Keep selected", "Selected blocks stay; a miss takes the next free slot (NOSI).",
                    slotOrder},
        CachePolicy{"lru", "Least recently used", "A miss takes the slot whose block was selected longest ago.",
                    leastRecentlyUsed},
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
