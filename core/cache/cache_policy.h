// A cache policy decides which free slot a missing block takes. Each is a row of the table in cache_policy.cpp.
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
    /// The order depends on lastUse, which the slots' owner must then keep.
    bool byLastUse = false;
    /// After each step the method's selector sets lastUse, by what a block was worth (SelectionSpec::ranksBlocks).
    bool byWorth = false;
};

std::span<const CachePolicy> cachePolicies();
/// @throws Error(BadInput) listing the known names
const CachePolicy& findCachePolicy(std::string_view name);

} // namespace kvscope
