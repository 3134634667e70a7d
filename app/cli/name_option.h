// --name, of every command that records a run.
#pragma once

#include "app/terminal/options.h"

#include <string>

namespace kvscope::cli {

/// Declares --name, which names the recorded run. trace: the option that says where the run is recorded; --name needs
/// it
Option addNameOption(Options& command, std::string& target, const Option& trace);
/// @throws Error(BadInput) where the name is longer than what readers of a trace show
void checkRunName(const std::string& name);

} // namespace kvscope::cli
