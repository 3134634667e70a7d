// Options that would change nothing are refused rather than ignored.
#pragma once

#include "app/terminal/options.h"
#include "base/error.h"
#include "core/session/same_value.h" // refuseRepeated

#include <initializer_list>
#include <string>

namespace kvscope::cli {

/// Refuses these options where `vain` holds and they are given. why: stands behind "has no effect", e.g. "with
/// --prompts 0". @throws Error(BadInput) naming the first of them
void refuseVain(bool vain, const Options& command, std::initializer_list<const char*> options, const std::string& why);

} // namespace kvscope::cli
