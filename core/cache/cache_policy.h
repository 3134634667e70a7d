// Which free device slot a missing block takes. A cache policy = one row in the table of cache_policy.cpp.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvscope {

struct CachePolicy {
    std::string name, title, help;
    /// Fills `order`, a permutation of the slots: the first ones are replaced first. blocks[slot] = block it holds,
    /// lastUse[slot] = step of the last selection; both -1 while empty.
    void (*order)(std::span<const std::int32_t> blocks, std::span<const std::int32_t> lastUse,
                  std::vector<std::int32_t>& order) = nullptr;
    /// The order goes by lastUse: whoever keeps the slots must keep that too.
    bool byLastUse = false;
    /// After each step the method says how recent a block counts as, by what it was worth (SelectionSpec::ranksBlocks).
    bool byWorth = false;
};

std::span<const CachePolicy> cachePolicies();
/// @throws Error(BadInput) listing the known names
const CachePolicy& findCachePolicy(std::string_view name);

} // namespace kvscope
