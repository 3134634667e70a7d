// One file per subcommand; each adds itself to the parser and returns what to run when it was chosen.
#pragma once

#include <functional>

namespace kvscope {
class Options;
}

namespace kvscope::cli {

/// Runs the subcommand. @return exit status; throws kvscope::Error for the one-line message
using Command = std::function<int()>;

Command addRun(Options& program);
Command addExport(Options& program);
Command addImport(Options& program);
Command addInfo(Options& program);
Command addMerge(Options& program);
Command addMethods(Options& program);
Command addReplay(Options& program);
Command addRoofline(Options& program);
Command addSimulate(Options& program);
Command addLoad(Options& program);
Command addServe(Options& program);
Command addInsights(Options& program);
Command addCheck(Options& program);
Command addCompare(Options& program);
Command addReport(Options& program);
Command addEval(Options& program);
Command addQuality(Options& program);
Command addSweep(Options& program);
Command addLabel(Options& program);
Command addTune(Options& program);
Command addCalibrate(Options& program);
Command addBench(Options& program);
Command addTokenize(Options& program);

} // namespace kvscope::cli
