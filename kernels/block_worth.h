// How the cache policy of blocks by their worth (core/cache/cache_policy.h) ranks them: the score-weighted LRU of
// InfLLM's code. A block is worth the attention it received when it was selected last, times `decay` for every step
// since. Blocks keep their order while time passes: each counts as last used log(worth) / log(1/decay) steps later.
#pragma once

namespace kvscope {

constexpr int kUsesPerStep = 64; // fine enough to tell blocks apart

} // namespace kvscope
