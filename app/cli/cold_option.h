// --count-cold, of every command that shows rates, shares or means of a recorded run.
#pragma once

#include <CLI/CLI.hpp>

namespace kvscope::cli {

void addColdOption(CLI::App& command);

} // namespace kvscope::cli
