// kvscope-cli: everything the desktop does that needs no window. No Qt.
#include "app/cli/commands.h"
#include "app/cli/long_action.h"
#include "app/terminal/options.h"
#include "app/terminal/output.h"

#include "base/error.h"
#include "core/model/mapped_watch.h"

#include <cstdio>
#include <exception>
#include <new>
#include <optional>
#include <utility>
#include <vector>

namespace {

using namespace kvscope;

/// Runs the program. @return its exit status, if standard output takes everything that was written
int runCommand(int argc, char** argv) {
    CommandLine program("kvscope-cli",
                        "KVScope: decode with sparse attention and KV-cache offloading, record it, look into the "
                        "recording.",
                        KVSCOPE_VERSION);
    program.requireCommand();
    std::vector<std::pair<Options, cli::Command>> commands;
    using Add = cli::Command (*)(Options&);
    for (const Add add :
         {cli::addRun,      cli::addExport,   cli::addImport, cli::addMerge,    cli::addInfo,    cli::addMethods,
          cli::addTokenize, cli::addReplay,   cli::addCheck,  cli::addInsights, cli::addCompare, cli::addReport,
          cli::addEval,     cli::addQuality,  cli::addTune,   cli::addSweep,    cli::addLabel,   cli::addCalibrate,
          cli::addRoofline, cli::addSimulate, cli::addLoad,   cli::addServe,    cli::addBench}) {
        cli::Command command = add(program);
        commands.emplace_back(program.commands().back(), std::move(command));
    }
    if (const std::optional<int> status = program.parse(argc, argv)) return *status;
    try {
        for (const auto& [options, command] : commands) {
            if (!options.chosen()) continue;
            cli::commandPrints(options.has("--json") ? cli::Prints::Document : cli::Prints::Text);
            return command();
        }
        return 2;
    } catch (const Error& error) {
        printErr("kvscope-cli: {}\n", oneLine(error));
        if (error.kind == ErrorKind::Cancelled) return Interruption::exitStatus();
    } catch (const std::bad_alloc&) {
        printErr("kvscope-cli: out of memory; use a shorter prompt, a smaller batch or a smaller model\n");
    } catch (const std::exception& error) {
        printErr("kvscope-cli: {}\n", sentenceOf(error));
    }
    return 1;
}

} // namespace

int main(int argc, char** argv) {
    prepareOutput();
    explainCutFiles();
    const int status = runCommand(argc, argv);
    return statusAfterOutput(status, "kvscope-cli", cli::commandRemark());
}
