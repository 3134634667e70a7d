// What a method attends to at most, before a session exists.
#pragma once

#include "core/select/method.h"

namespace kvscope {

/// Tokens that a KV head attends to at most in a step; 0: all.
int mostAttended(const MethodEntry& method, const MethodUse& use, ContextLength length);

} // namespace kvscope
