// How the cache policy of blocks by their worth (core/cache/cache_policy.h) ranks them: the score-weighted LRU of
// InfLLM's code. A block is worth the attention it received when it was selected last, times `decay` for every step
// since. Blocks keep their order while time passes: each counts as last used log(worth) / log(1/decay) steps later.
#pragma once

#include <cstdint>

namespace kvscope {

constexpr int kUsesPerStep = 64; // fine enough to tell blocks apart
/// Blocks that make room before all that were ranked; -1 says that a slot is empty.
constexpr std::int32_t kLeavesFirst = 0;
/// Added to every rank: near a decay of 1 a block of little worth counts as used long before the first step.
/// The largest number is left to slots in use.
constexpr std::int32_t kFirstUse = 1 << 29, kLastUse = 0x7ffffffe;

} // namespace kvscope
