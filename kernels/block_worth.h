// How a cache policy that goes by worth (CachePolicy::byWorth) ranks blocks: the score-weighted LRU of InfLLM's code.
// A block's worth is the attention that it received when it was selected last, times `decay` for every step since.
// All worths shrink alike, so the order of the blocks does not change with time. A worth is therefore kept as a time:
// a block counts as used log(worth) / log(1/decay) steps later than it was.
#pragma once

#include <cstdint>

namespace kvscope {

constexpr int kUsesPerStep = 64; // ranks in one step's length: fine enough to tell blocks apart
/// The rank of blocks that leave before all ranked ones. -1 is not a rank: it says that a slot is empty.
constexpr std::int32_t kLeavesFirst = 0;
/// kFirstUse is added to every rank, because a block of little worth may count as used long before the first step when
/// `decay` is near 1. kLastUse is the largest rank; the number above kLastUse marks slots in use.
constexpr std::int32_t kFirstUse = 1 << 29, kLastUse = 0x7ffffffe;

} // namespace kvscope
