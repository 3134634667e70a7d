// One file per subcommand; each adds itself to the parser and returns what to run when it was chosen.
#pragma once

#include <functional>

namespace CLI {
class App;
}

namespace kvscope::cli {

/// Runs the subcommand. @return exit status; throws kvscope::Error for the one-line message
using Command = std::function<int()>;

Command addRun(CLI::App& app);
Command addExport(CLI::App& app);
Command addImport(CLI::App& app);
Command addInfo(CLI::App& app);
Command addMethods(CLI::App& app);
Command addReplay(CLI::App& app);
Command addRoofline(CLI::App& app);
Command addInsights(CLI::App& app);
Command addCheck(CLI::App& app);
Command addCompare(CLI::App& app);
Command addReport(CLI::App& app);
Command addEval(CLI::App& app);
Command addCalibrate(CLI::App& app);
Command addBench(CLI::App& app);
Command addTokenize(CLI::App& app);

} // namespace kvscope::cli
