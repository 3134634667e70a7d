// --count-cold, of every command that shows rates, shares or means of a recorded run.
#pragma once

namespace kvscope {
class Options;
}

namespace kvscope::cli {

void addColdOption(Options& command);

} // namespace kvscope::cli
