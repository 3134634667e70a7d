// --count-cold, of every command that shows rates, shares or means of a recorded run.
#pragma once

#include "app/terminal/options.h"

namespace kvscope::cli {

Option addColdOption(Options& command);

} // namespace kvscope::cli
