// Adds up the memory that a method's entry declares for a context, before a session exists.
#pragma once

#include "core/select/method.h"

#include <cstdint>

namespace kvscope {

struct MethodMemory {
    std::int64_t indexBytes = 0; // on the device tier: digests, labels, partial keys, scores of tokens
    std::int64_t deviceKvBytes = 0, hostKvBytes = 0; // keys and values in tiers of the method's own
    int blockSlots = 0;                              // blocks per KV head on that device tier
};

/// All sequences have this length. A method that is data alone takes nothing.
MethodMemory methodMemory(const MethodEntry& method, const MethodUse& use, ContextLength length, int sequences);

/// Tokens that a KV head attends to at most in a step; 0: all.
int mostAttended(const MethodEntry& method, const MethodUse& use, ContextLength length);

} // namespace kvscope
