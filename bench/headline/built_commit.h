// The commit that this program was built from.
#pragma once

#include <string>

namespace kvscope::bench {

/// Forty hexadecimal digits, with + behind them where sources were changed or new; empty where git could not tell.
std::string builtCommit();

} // namespace kvscope::bench
